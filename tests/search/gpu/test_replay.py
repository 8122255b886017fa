"""Programs of fixed shape behind the front: any batch, the answers of the plain search, one program each."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from genius.decode.init import initialise
from genius.decode.model import Decoder
from genius.decode.shape import DecoderShape
from genius.search import rank
from genius.search import searcher as searcher_module
from genius.search.candidates import Candidates
from genius.search.gpu.fixed_lookup import FixedLookup
from genius.search.gpu.fixed_trie import FixedTrie
from genius.search.gpu.programs import MAX_PROGRAMS
from genius.search.gpu.replay import CandidateArrays, GraphReplay
from genius.search.gpu.steps import FixedShape
from genius.search.options import SearchOptions
from genius.search.plan import plan_search
from genius.search.rank import rerank_batch_by_vectors, rerank_by_vectors
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

SIZES = (3, 17, 11, 11)
DIM, ITEMS = 12, 3000


class World:
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.codes = (rng.random((ITEMS, len(SIZES))) ** 1.5 * SIZES).astype(np.int64)
        self.books = books = [rng.normal(size=(size, DIM)).astype(np.float32) for size in SIZES]
        z = rng.normal(size=(9, DIM)).astype(np.float32)
        self.z = z / np.linalg.norm(z, axis=1, keepdims=True)
        self.vectors = rng.normal(size=(ITEMS, DIM)).astype(np.float16)
        shape = DecoderShape(DIM, SIZES, layers=2, width=16, heads=2, head_width=8, feed_forward=32, prefix=4)
        decoder = Decoder(shape).eval()
        initialise(decoder, torch.Generator().manual_seed(0))
        self.searcher = Searcher(books, decoder)
        self.trie = Trie.build(self.codes, SIZES)

    def program(self, options: SearchOptions, trie: Trie | None = None) -> GraphReplay:
        plan = plan_search(options, self.searcher.gpu).fixed
        assert plan is not None
        return self.searcher.programs.get(trie or self.trie, plan)

    def search(self, options: SearchOptions, segments: Any = None, **more: Any) -> Any:
        pool = segments or [TrieSegment(self.trie)]
        return self.searcher.search(pool, self.z, options, phi=self.z, fetch=self.vectors, **more)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.mark.parametrize("method", ["lookup", "generate"])
@pytest.mark.parametrize("rerank", ["none", "codes", "vectors"])
def test_answers_as_the_plain_search(world: World, method: Any, rerank: Any) -> None:
    plain = SearchOptions(method, rerank, beam=40, k=10, stop=3, leaves=ITEMS, reranked=ITEMS)
    found = world.search(replace(plain, fixed=True))
    for ours, theirs in zip(found, world.search(plain), strict=True):
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-4)
        assert len(set(ours.rows) & set(theirs.rows)) >= 9  # the last may be one of two with nearly one score
        assert np.array_equal(ours.codes, world.codes[ours.rows])


def test_modalities_and_filters(world: World) -> None:
    plain = SearchOptions("generate", beam=20, k=5)
    fixed = replace(plain, fixed=True)
    wanted = np.zeros((9, 3), dtype=bool)
    wanted[np.arange(9), np.arange(9) % 3] = True
    wanted[8] = False
    for query, answer in enumerate(world.search(fixed, modalities=wanted)):
        assert len(answer) == (0 if query == 8 else 5)
        assert (answer.codes[:, 0] == query % 3).all()
    rng = np.random.default_rng(3)
    for share in (0.5, 0.9, 0.1):  # the last goes the plain way
        mask = rng.random(ITEMS) < share
        exact = replace(plain, rerank="codes", leaves=ITEMS, reranked=ITEMS, stop=3, beam=40)
        found = world.search(replace(exact, fixed=True), mask=mask)
        for ours, theirs in zip(found, world.search(exact, mask=mask), strict=True):
            assert mask[ours.rows].all()
            np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-4)


def test_removed_items_stay_out_of_programs_that_are_recorded(world: World) -> None:
    """Searches with and without removals take turns, in threads, too: each has its own items."""
    fixed = SearchOptions("lookup", "codes", beam=40, k=10, fixed=True)
    whole = TrieSegment(world.trie)
    first = [answer.rows[0] for answer in world.search(fixed, [whole])]
    gone = [
        whole.without(np.flatnonzero(np.isin(world.trie.rows(np.arange(ITEMS)), first[:n]))) for n in (3, 9)
    ]
    expected = [
        [answer.rows.tolist() for answer in world.search(fixed, [segment])] for segment in (whole, *gone)
    ]
    for removed, answers in zip((0, 3, 9), expected, strict=True):
        assert not set(first[:removed]) & {row for rows in answers for row in rows}

    def ask(number: int) -> bool:
        segment = (whole, *gone)[number % 3]
        return [answer.rows.tolist() for answer in world.search(fixed, [segment])] == expected[number % 3]

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(ask, range(60)))


def test_it_is_for_gpus_and_for_segments_that_suit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    asked: list[int] = []
    fixed = Searcher._fixed

    def noted(self: Searcher, segment: TrieSegment, *rest: Any) -> Any:
        asked.append(segment.trie.items)
        return fixed(self, segment, *rest)

    monkeypatch.setattr(Searcher, "_fixed", noted)
    options = SearchOptions("generate", "codes", beam=40, k=10, stop=3, leaves=ITEMS, reranked=ITEMS)
    large, small = np.arange(ITEMS - 500), np.arange(ITEMS - 500, ITEMS)
    two = [TrieSegment(Trie.build(world.codes[rows], SIZES, rows)) for rows in (large, small)]
    whole, parts = world.search(options), world.search(options, two)
    assert not asked  # this searcher is on the CPU
    world.searcher.gpu = True  # as on a GPU
    for segments, plain, sizes in ((None, whole, [ITEMS]), (two, parts, [ITEMS - 500]), (two[1:], None, [])):
        found = world.search(options, segments)
        assert asked == sizes
        for ours, theirs in zip(found, plain or [], strict=plain is not None):
            assert (ours.scores >= theirs.scores - 1e-4).all()  # each of two segments has beams of its own
        asked.clear()
    world.searcher.warm(two, options)
    program = world.program(replace(options, k=3), two[0].trie)
    assert sorted(program._recordings) == [1, 4, 16, 64, 256]  # a smaller k is cut from the same program
    world.search(replace(options, stop=1))
    world.search(replace(options, fixed=False))
    assert not asked
    deep = replace(options, rerank="none")
    world.search(deep)
    assert asked == [ITEMS]
    program = world.program(replace(deep, k=3))
    assert program.batch_sizes == (1, 4, 16, 64) and len(program._recordings) == 1


@pytest.mark.parametrize("method", ["lookup", "generate"])
def test_queries_without_exact_beams_are_searched_again_and_scored_alike(
    monkeypatch: pytest.MonkeyPatch, method: Any
) -> None:
    world = World()
    plain = SearchOptions(method, "codes", beam=40, k=10, stop=3, leaves=ITEMS, reranked=ITEMS)
    expected, fixed = world.search(plain), replace(plain, fixed=True)
    replayed = world.search(fixed)
    program = world.program(fixed)
    run = program._run

    def inexact(z: Any, wanted: Any) -> Any:
        out = run(z, wanted)
        out[::2, -1] = 0
        return out

    monkeypatch.setattr(program, "_run", inexact)
    for query, (ours, exact, theirs) in enumerate(zip(world.search(fixed), replayed, expected, strict=True)):
        same = theirs if query % 2 == 0 else exact
        assert ours.rows.tolist() == same.rows.tolist()
        np.testing.assert_array_equal(ours.scores, same.scores)
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-5)


@pytest.mark.parametrize("rerank", ["none", "codes", "vectors"])
def test_few_queries_are_looked_up_by_the_cpu(monkeypatch: pytest.MonkeyPatch, rerank: Any) -> None:
    """By programs of fixed shape and by others; what the rule says is in `tests/search/test_placement.py`."""
    world, devices = World(), []
    lookup, fixed = searcher_module.search_by_lookup, Searcher._fixed
    expected = world.search(SearchOptions("lookup", rerank, beam=20, fixed=False))

    def noted(*args: Any, device: str, **rest: Any) -> Any:
        devices.append(device)
        return lookup(*args, device="cpu", **rest)

    def noted_fixed(*args: Any) -> Any:
        devices.append("graph")
        return fixed(*args)

    monkeypatch.setattr(searcher_module, "search_by_lookup", noted)
    monkeypatch.setattr(Searcher, "_fixed", noted_fixed)
    monkeypatch.setattr(searcher_module, "runs_on_gpu", lambda method, rerank, batch, items: batch >= 5)
    assert world.searcher.programs  # made on the CPU
    world.searcher.device, world.searcher.gpu = "cuda", True
    for options in (
        SearchOptions("lookup", rerank, beam=20, fixed=False),
        SearchOptions("lookup", rerank, beam=20),
    ):
        for batch in (1, 4, 5):
            found = world.searcher.search(
                [TrieSegment(world.trie)], world.z[:batch], options, phi=world.z[:batch], fetch=world.vectors
            )
            if batch < 5:
                assert [answer.rows.tolist() for answer in found] == [
                    answer.rows.tolist() for answer in expected[:batch]
                ]
    few = ["cpu", "cpu"] if rerank == "none" else []  # re-ranked ones go by cells
    assert devices == [*few, "cuda", *few, "graph"]


def test_a_program_is_made_once(world: World) -> None:
    options = SearchOptions("lookup", beam=20, k=5, fixed=True)
    first = world.program(options)
    assert world.program(options) is first
    assert world.program(replace(options, beam=21)) is not first


def test_tries_are_freed_with_their_programs() -> None:
    """A compaction replaces the trie: the old one must not stay on the device."""
    world = World()
    options = SearchOptions("generate", "codes", beam=20, k=5, fixed=True)
    programs, tries = [], []
    for rows in (np.arange(2000), np.arange(2500)):
        segment = TrieSegment(Trie.build(world.codes[rows], SIZES, rows))
        assert world.search(options, [segment])
        programs.append(weakref.ref(world.program(options, segment.trie)))
        tries.append(weakref.ref(segment.trie))
        del segment
    assert [ref() for ref in programs + tries] == [None] * 4  # at once, without a garbage collection


def test_only_a_few_programs_are_kept() -> None:
    world = World()
    options = SearchOptions("lookup", beam=20, k=5, fixed=True)
    first, often = (world.program(replace(options, beam=beam)) for beam in (20, 21))
    dropped = weakref.ref(first)
    del first
    for beam in range(30, 30 + MAX_PROGRAMS):
        world.program(replace(options, beam=beam))
        assert world.program(replace(options, beam=21)) is often  # used again and again: kept
    assert dropped() is None
    assert world.search(options)  # built again


def test_batches_of_any_size_are_padded_to_a_recorded_one(world: World) -> None:
    calls: list[int] = []
    program = FixedLookup(
        FixedTrie(world.trie, world.searcher.codebooks, "cpu"),
        world.searcher.codebooks,
        FixedShape(20, 5, 3, 400, 400),
    )

    def noted(z: torch.Tensor, wanted: torch.Tensor) -> Any:
        calls.append(len(z))
        return program(z, wanted)

    replay = GraphReplay(noted, DIM, 3, "cpu", batch_sizes=(2, 4)).warm()
    calls.clear()
    whole = replay(world.z)
    assert calls == [4, 4, 2]
    for query in range(9):
        one = replay(world.z[query : query + 1])
        assert np.array_equal(one.positions[0], whole.positions[query])
        np.testing.assert_allclose(one.scores[0], whole.scores[query], atol=1e-6)


def test_queries_without_exact_beams_are_searched_again() -> None:
    world = World()
    plain = SearchOptions("generate", beam=30, k=10, stop=4)
    few = replace(plain, fixed=True)
    program: Any = world.program(few).program
    program.trie.dense_levels.clear()
    program.shape = replace(program.shape, children=3)  # too few for any query
    found = world.program(few)(world.z)
    assert not found.exact.any()
    for ours, theirs in zip(world.search(few), world.search(plain), strict=True):
        assert ours.rows.tolist() == theirs.rows.tolist()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", ["lookup", "generate"])
def test_a_recorded_graph_answers_as_the_cpu(world: World, method: Any) -> None:
    options = SearchOptions(method, beam=20, k=10, stop=3, fixed=True)
    expected = world.search(options)
    gpu = World()
    gpu.searcher = Searcher(
        [gpu.searcher.codebooks.vectors[level] for level in gpu.searcher.codebooks.levels],
        gpu.searcher.decoder,
        "cuda",
    )
    for ours, theirs in zip(gpu.search(options), expected, strict=True):
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-3)


def test_a_compiled_program_is_compiled_whole_and_answers_alike(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced by torch for real; what it traced is run as it is, without the minute of code generation."""
    asked: list[dict[str, Any]] = []
    traced = partial(torch.compile, backend="eager")
    monkeypatch.setattr(
        torch, "compile", lambda call, **named: (asked.append(named), traced(call, **named))[1]
    )
    options = SearchOptions("generate", "codes", beam=40, k=10, fixed=True)
    plain = world.search(options)
    assert not asked
    compiled = Searcher(world.books, world.searcher.decoder, compiled=True)
    found = compiled.search([TrieSegment(world.trie)], world.z, options)
    assert asked == [{"fullgraph": True, "dynamic": False}]
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(found, plain, strict=True))


@pytest.mark.parametrize("fusion", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_batch_is_re_ranked_by_vectors_as_one_query_after_the_other(
    world: World, fusion: float, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank, "FETCHED_BYTES", 1 << 13)  # several parts
    rng = np.random.default_rng(5)
    positions = np.sort(np.stack([rng.permutation(ITEMS)[:40] for _ in range(9)]), axis=1)
    scores = rng.normal(size=(9, 40)).astype(np.float32)
    scores[2, 30:] = scores[7] = -np.inf
    vectors = world.vectors.astype(dtype)
    calls: list[int] = []

    def fetch(rows: Any) -> Any:
        calls.append(len(rows))
        return vectors[rows]

    found, best = rerank_batch_by_vectors(world.trie, positions, scores, world.z, fetch, fusion)
    assert 1 < len(calls) < 9 and sum(calls) == 310
    for query in range(9):
        there = scores[query] > -np.inf
        own = Candidates(positions[query][there], scores[query][there], 1)
        expected = rerank_by_vectors(world.trie, own, world.z[query], vectors, fusion)
        order = np.argsort(-expected.scores, kind="stable")
        assert np.array_equal(found[query][: len(own)], expected.positions[order])
        np.testing.assert_array_equal(best[query][: len(own)], expected.scores[order])
        assert (best[query][len(own) :] == -np.inf).all()


@pytest.mark.parametrize("method", ["lookup", "generate"])
@pytest.mark.parametrize("by", ["none", "codes", "vectors"])
def test_the_host_does_nothing_for_single_queries(
    world: World, method: Any, by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are cut from arrays of the whole batch; removals and filters change nothing about it."""

    def refused(*_: Any) -> Any:
        raise AssertionError("one query after the other")

    monkeypatch.setattr(Searcher, "_ranked", refused)
    monkeypatch.setattr(CandidateArrays, "of_query", refused)
    options = SearchOptions(method, by, beam=40, k=10, fixed=True)
    whole = TrieSegment(world.trie)
    for segment in (whole, whole.without(np.arange(5)), whole.restricted(np.arange(ITEMS) % 2 == 0)):
        assert all(len(answer) == 10 for answer in world.search(options, [segment]))


@pytest.mark.parametrize("rerank", ["none", "codes", "vectors"])
def test_codebooks_by_modality_have_programs_of_their_own(world: World, rerank: Any) -> None:
    rng = np.random.default_rng(3)
    books = [rng.normal(size=(3, size, DIM)).astype(np.float32) for size in SIZES]
    searcher, pool = Searcher([books[0][0], *books[1:]]), [TrieSegment(world.trie)]
    plain = SearchOptions("lookup", rerank, beam=40, k=10, stop=3, leaves=ITEMS, reranked=ITEMS)
    fixed = replace(plain, fixed=True)
    searcher.warm(pool, fixed)
    wanted = np.ones((len(world.z), 3), dtype=bool)
    wanted[2:4] = [False, True, False]
    options = {"modalities": wanted, "phi": world.z, "fetch": world.vectors}
    found, expected = (searcher.search(pool, world.z, each, **options) for each in (fixed, plain))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-4)
        assert len(set(ours.rows) & set(theirs.rows)) >= 9
    assert {int(code) for answer in found[2:4] for code in answer.codes[:, 0]} == {1}
