"""The front: every method and re-ranking against plain formulas, segments, filters and bad input."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from genius.decode.init import initialise
from genius.decode.model import Decoder
from genius.decode.shape import DecoderShape
from genius.errors import BadInput
from genius.search.options import SearchOptions
from genius.search.rank import RankedItems, merge
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

SIZES = (3, 17, 11, 11)
DIM = 12
ITEMS = 600
METHODS = ["generate", "lookup", "both"]


class World:
    """A small pool, a model for it, and the score of every item for every query by each formula.

    Its codebooks are common to all modalities, or there are some for each modality.
    """

    def __init__(self, codebooks: str = "common") -> None:
        rng = np.random.default_rng(0)
        self.codes = (rng.random((ITEMS, len(SIZES))) ** 2 * SIZES).astype(np.int64)
        self.codes[7] = self.codes[3]  # two items with the same codes
        of_each = [rng.normal(size=(3, size, DIM)).astype(np.float32) for size in SIZES]
        common = [book[0] for book in of_each]
        self.books = common if codebooks == "common" else [common[0], *of_each[1:]]
        self.z = rng.normal(size=(4, DIM)).astype(np.float32)
        self.vectors = rng.normal(size=(ITEMS, 20)).astype(np.float16)
        self.phi = rng.normal(size=(4, 20)).astype(np.float32)
        shape = DecoderShape(DIM, SIZES, layers=2, width=16, heads=2, head_width=8, feed_forward=32, prefix=4)
        decoder = Decoder(shape).eval()
        initialise(decoder, torch.Generator().manual_seed(0))
        self.searcher = Searcher(self.books, decoder)
        self.trie = Trie.build(self.codes, SIZES)
        every = torch.from_numpy(self.codes).expand(4, -1, -1)
        self.decoded = decoder.score_codes(torch.from_numpy(self.z), every).sum(-1).numpy()
        quantized = np.zeros((ITEMS, DIM), np.float32)
        for book, code in zip(self.books, self.codes.T, strict=True):
            quantized += book[code] if book.ndim == 2 else book[self.codes[:, 0], code]
        self.similar = self.z @ quantized.T
        self.cosine = self.similar / np.linalg.norm(quantized, axis=1)
        self.exact = self.phi @ self.vectors.astype(np.float32).T

    def expected(self, method: str, rerank: str, weight: float, fusion: float) -> NDArray[Any]:
        """(queries, items)."""
        score = {
            "generate": self.decoded,
            "lookup": self.similar,
            "both": self.decoded + weight * self.similar,
        }[method]
        if rerank == "none":
            return score
        return (self.cosine if rerank == "codes" else self.exact) + fusion * score

    def search(self, options: SearchOptions, segments: Any = None, **more: Any) -> list[RankedItems]:
        segments = segments or [TrieSegment(self.trie)]
        return self.searcher.search(
            segments, self.z, options, phi=self.phi, fetch=lambda rows: self.vectors[rows], **more
        )


@pytest.fixture(scope="module", params=["common", "modality"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def assert_best(found: list[RankedItems], scores: NDArray[Any], codes: NDArray[Any], k: int) -> None:
    """The answers are the k best of all items, with right scores and codes, ties by codes and row."""
    for answer, score in zip(found, scores, strict=True):
        np.testing.assert_allclose(answer.scores, score[answer.rows], atol=1e-4)
        assert np.array_equal(answer.codes, codes[answer.rows])
        assert np.all(np.diff(answer.scores) <= 0)
        expected = np.sort(score[np.isfinite(score)])[::-1][:k]
        np.testing.assert_allclose(answer.scores, expected, atol=1e-4)
        ties = np.flatnonzero(np.diff(answer.scores) == 0)
        for place in ties:
            pair = [(*answer.codes[i].tolist(), int(answer.rows[i])) for i in (place, place + 1)]
            assert pair == sorted(pair)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rerank", ["none", "codes", "vectors"])
@pytest.mark.parametrize("stop", [None, 2, 4])
def test_a_wide_beam_ranks_all_items_by_the_formula(
    world: World, method: Any, rerank: Any, stop: int | None
) -> None:
    options = SearchOptions(method, rerank, beam=ITEMS, k=ITEMS, stop=stop, weight=0.7, fusion=0.3)
    found = world.search(options)
    assert [len(answer) for answer in found] == [ITEMS] * 4
    assert_best(found, world.expected(method, rerank, 0.7, 0.3), world.codes, ITEMS)
    assert all(answer.leaves >= ITEMS for answer in found)


@pytest.mark.parametrize("method", METHODS)
def test_segments_with_removed_items_answer_as_one_pool(world: World, method: Any) -> None:
    alive = np.random.default_rng(1).random(ITEMS) < 0.8
    parts = np.split(np.arange(ITEMS), [500, 550])
    tries = [Trie.build(world.codes[part], SIZES, part) for part in parts]
    segments = [TrieSegment(trie, trie.allow(alive)) for trie in tries]
    options = SearchOptions(method, beam=ITEMS, k=15)
    wanted = np.where(alive, world.expected(method, "none", 1.0, 0.0), -np.inf)
    assert_best(world.search(options, segments), wanted, world.codes, 15)
    narrow = SearchOptions(method, beam=5, k=5)
    one = world.search(narrow, [TrieSegment(world.trie, world.trie.allow(alive))])
    for answer, whole in zip(world.search(narrow, segments), one, strict=True):
        if method == "generate":
            assert answer.rows.tolist() == whole.rows.tolist()
        assert np.all(answer.scores[: len(whole)] >= whole.scores - 1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_filters(world: World, method: Any) -> None:
    mask = np.random.default_rng(2).random(ITEMS) < 0.3
    modality = world.codes[:, 0]
    score = world.expected(method, "none", 1.0, 0.0)
    options = SearchOptions(method, beam=ITEMS, k=9)
    found = world.search(options, modalities=[1, 2], mask=mask)
    assert_best(found, np.where(mask & (modality > 0), score, -np.inf), world.codes, 9)
    per_query = np.array([[True, False, False], [False, True, False], [False] * 3, [True] * 3])
    found = world.search(options, modalities=per_query)
    assert_best(found, np.where(per_query[:, modality], score, -np.inf), world.codes, 9)
    assert len(found[2]) == 0
    assert all(len(answer) == 0 for answer in world.search(options, mask=np.zeros(ITEMS, dtype=bool)))


@pytest.mark.parametrize("method", METHODS)
def test_odd_pools(world: World, method: Any) -> None:
    options = SearchOptions(method, beam=20, k=10)
    empty = Trie.build(world.codes[:0], SIZES)
    assert [len(answer) for answer in world.search(options, [TrieSegment(empty)])] == [0] * 4
    assert [len(a) for a in world.search(options, [TrieSegment(empty), TrieSegment(world.trie)])] == [10] * 4
    few = Trie.build(world.codes[:4], SIZES)
    assert [len(answer) for answer in world.search(options, [TrieSegment(few)])] == [4] * 4
    same = Trie.build(np.ones((30, 4), dtype=np.int64), SIZES)
    for answer in world.search(options, [TrieSegment(same)]):
        assert answer.rows.tolist() == list(range(10))
        assert np.isfinite(answer.scores).all()
    assert world.searcher.search([TrieSegment(world.trie)], world.z[:0], options) == []
    one = world.searcher.search([TrieSegment(world.trie)], world.z[:1], options)
    assert one[0].rows.tolist() == world.search(options)[0].rows.tolist()


@pytest.mark.parametrize("method", METHODS)
def test_more_answers_than_beams(world: World, method: Any) -> None:
    found = world.search(SearchOptions(method, beam=2, k=40, stop=4))
    assert [len(answer) for answer in found] == [40] * 4


def test_only_the_vectors_of_found_items_are_read(world: World) -> None:
    read: list[int] = []

    def fetch(rows: NDArray[np.int64]) -> NDArray[Any]:
        read.extend(rows.tolist())
        return world.vectors[rows]

    options = SearchOptions("lookup", "vectors", beam=5, k=3, leaves=40, reranked=12)
    found = world.searcher.search([TrieSegment(world.trie)], world.z, options, phi=world.phi, fetch=fetch)
    assert len(read) <= 4 * 12 * max(1, len(world.searcher.own))  # so many of each modality
    assert set(np.concatenate([answer.rows for answer in found]).tolist()) <= set(read)
    pool = [TrieSegment(world.trie)]
    whole = world.searcher.search(pool, world.z, options, phi=world.phi, fetch=world.vectors)
    assert [a.rows.tolist() for a in whole] == [a.rows.tolist() for a in found]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stop", [None, 2, 4])
def test_a_gpu_answers_as_the_cpu(method: Any, stop: int | None) -> None:
    alive = np.random.default_rng(1).random(ITEMS) < 0.8
    options = SearchOptions(method, beam=20, k=20, stop=stop)
    answers = []
    for device in ("cpu", "cuda"):
        world = World()
        world.searcher = Searcher(world.books, world.searcher.decoder, device)
        segments = [TrieSegment(world.trie, world.trie.allow(alive))]
        answers.append(world.search(options, segments, modalities=[0, 2]))
    for ours, theirs in zip(*answers, strict=True):
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-3)
        assert len(set(ours.rows) & set(theirs.rows)) >= 0.9 * len(ours)


@pytest.mark.parametrize("rerank", ["none", "codes", "vectors"])
@pytest.mark.parametrize("method", METHODS)
def test_equal_items_keep_their_order(world: World, method: Any, rerank: Any) -> None:
    """Also when their scores come from matrix products of odd shapes."""
    copies = np.repeat(world.codes[[3, 50, 9]], 37, axis=0)
    vectors = np.repeat(world.vectors[[3, 50, 9]], 37, axis=0)
    (found,) = world.searcher.search(
        [TrieSegment(Trie.build(copies, SIZES))],
        world.z[:1],
        SearchOptions(method, rerank, beam=111, k=111),
        phi=world.phi[:1],
        fetch=vectors,
    )
    assert len(found) == 111
    for part in found.rows.reshape(3, 37):
        assert part.tolist() == list(range(part[0], part[0] + 37))


def test_merge_keeps_the_rule_for_ties() -> None:
    def found(*triples: tuple[float, int, int]) -> RankedItems:
        score, code, row = (np.array(column) for column in zip(*triples, strict=True))
        return RankedItems(row, score.astype(np.float32), code[:, None].astype(np.uint16), 2, 5)

    both = merge([found((3.0, 4, 0), (1.0, 2, 9)), found((3.0, 1, 7), (1.0, 2, 8), (0.0, 0, 1))], 4)
    assert both.rows.tolist() == [7, 0, 8, 9]
    assert (both.beams, both.leaves) == (2, 10)


def test_bad_input_is_named(world: World) -> None:
    pool = [TrieSegment(world.trie)]
    with pytest.raises(BadInput, match="lookup or both"):
        SearchOptions("magic")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="re-ranking"):
        SearchOptions(rerank="magic")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="NaN"):
        world.searcher.search(pool, world.z * np.nan, SearchOptions())
    with pytest.raises(BadInput, match="width 12"):
        world.searcher.search(pool, world.z[:, :5], SearchOptions())
    with pytest.raises(BadInput, match="no vectors"):
        world.searcher.search(pool, world.z, SearchOptions(rerank="vectors"))
    with pytest.raises(BadInput, match="no decoder"):
        Searcher([np.zeros((size, DIM)) for size in SIZES]).search(pool, world.z, SearchOptions("generate"))
    with pytest.raises(BadInput, match="index the items with this model"):
        other = [TrieSegment(Trie.build(np.zeros((1, 2)).astype(int), (3, 4)))]
        world.searcher.search(other, world.z, SearchOptions())
    with pytest.raises(BadInput, match="sizes"):
        Searcher([np.zeros((5, DIM))], world.searcher.decoder)
    with pytest.raises(BadInput, match="index the items with the model"):
        world.searcher.search(
            pool, world.z, SearchOptions(rerank="vectors"), phi=world.phi[:, :7], fetch=world.vectors
        )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("beam", 0, "at least 1"),
        ("beam", None, "whole number"),
        ("beam", "50", "beam '50': must be a whole number"),
        ("beam", 2.5, "whole number"),
        ("k", -1, "at least 1"),
        ("stop", -1, "at least 0"),
        ("leaves", -1, "at least 0"),
        ("reranked", 1.0, "whole number"),
        ("weight", float("nan"), "finite"),
        ("fusion", "much", "finite"),
        ("stop", np.int64(3), None),
        ("fusion", 1, None),
    ],
)
def test_options_are_numbers_in_their_range(name: str, value: Any, message: str | None) -> None:
    if message is None:
        SearchOptions(**{name: value})
        return
    with pytest.raises(BadInput, match=message):
        SearchOptions(**{name: value})


def test_lookup_does_not_import_torch() -> None:
    script = (
        "import sys, numpy as np\n"
        "from genius.search.options import SearchOptions\n"
        "from genius.search.searcher import Searcher\n"
        "from genius.search.segment import TrieSegment\n"
        "from genius.search.trie import Trie\n"
        "pool = [TrieSegment(Trie.build(np.array([[0, 1], [2, 3]]), (3, 4)))]\n"
        "searcher = Searcher([np.ones((3, 2)), np.ones((4, 2))])\n"
        "assert len(searcher.search(pool, np.ones((1, 2)), SearchOptions())[0]) == 2\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
