"""Searches of fixed shape find what the plain searches find, without a number that travels to the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from genius.decode.init import initialise
from genius.decode.model import Decoder
from genius.decode.shape import DecoderShape
from genius.search.beam import DecoderScorer, beam_search
from genius.search.candidates import Candidates
from genius.search.codebooks import Codebooks
from genius.search.gpu import operations, steps
from genius.search.gpu.fixed_decoder import FixedDecoder
from genius.search.gpu.fixed_lookup import MIN_DENSITY, FixedLookup
from genius.search.gpu.fixed_trie import FilteredTrie, FixedTrie
from genius.search.gpu.operations import PLAIN, ordered_top_k, plain_top_k
from genius.search.gpu.passes import DecoderPasses
from genius.search.gpu.steps import CandidateTensors, FixedShape, choose_shape
from genius.search.lookup import lookup
from genius.search.trie import ItemFilter, Trie
from genius.search.trie.tensors import Forest, TensorTrie

SIZES = (3, 17, 11, 11, 11)
DIM = 12
Codes = NDArray[np.int64]


def pool(items: int, sizes: tuple[int, ...] = SIZES, seed: int = 0) -> Codes:
    rng = np.random.default_rng(seed)
    codes = (rng.random((items, len(sizes))) ** 1.5 * sizes).astype(np.int64)
    codes[items // 2] = codes[items // 3]  # two items with the same codes
    return codes


def books(sizes: tuple[int, ...] = SIZES) -> Codebooks:
    rng = np.random.default_rng(1)
    return Codebooks(
        [rng.normal(size=(size, DIM)).astype(np.float32) / (1 + n) for n, size in enumerate(sizes)]
    )


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "query_logits"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    shape = DecoderShape(
        DIM, SIZES, layers=2, width=16, heads=2, head_width=8, feed_forward=32, prefix=4,
        query_logits=request.param,
    )  # fmt: skip
    decoder, generator = Decoder(shape).eval(), torch.Generator().manual_seed(0)
    initialise(decoder, generator)
    for parameter in decoder.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return decoder


def queries(count: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(count, DIM, generator=torch.Generator().manual_seed(2)))


def everything(count: int, size: int = 3) -> torch.Tensor:
    return torch.ones(count, size, dtype=torch.bool)


def found(answers: CandidateTensors, query: int) -> dict[int, float]:
    there = answers.scores[query] > -torch.inf
    positions = answers.positions[query][there]
    assert (positions.diff() > 0).all()
    return dict(zip(positions.tolist(), answers.scores[query][there].tolist(), strict=True))


def best(leaves: Candidates, k: int) -> dict[int, float]:
    few = leaves.best(k)
    return dict(zip(few.positions.tolist(), few.scores.tolist(), strict=True))


@pytest.mark.parametrize("stop", [2, 3, 4, 5])
@pytest.mark.parametrize(("items", "beam"), [(3000, 6), (3000, 40), (200, 8), (250, 50)])
def test_decoder_equals_the_plain_search(decoder: Decoder, stop: int, items: int, beam: int) -> None:
    check_decoder(decoder, stop, items, beam)


@pytest.mark.parametrize("stop", [2, 3, 4, 5])
@pytest.mark.parametrize(("items", "beam"), [(3000, 40), (250, 50)])
def test_passes_of_a_gpu_equal_the_plain_search(
    decoder: Decoder, stop: int, items: int, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a GPU does in another way: its passes, and the best of many children by blocks."""
    monkeypatch.setattr(steps, "WIDE", 20)
    monkeypatch.setattr(steps, "BLOCK", 4)
    monkeypatch.setattr(operations, "WIDE", 20)
    monkeypatch.setattr(operations, "BLOCK", 4)
    check_decoder(decoder, stop, items, beam, DecoderPasses(decoder, PLAIN))


@pytest.mark.parametrize("stop", [3, 5])
def test_decoder_normalised_over_the_vocabulary(decoder: Decoder, stop: int) -> None:
    published = Decoder(replace(decoder.shape, normalise="vocabulary", query_logits=False)).eval()
    published.load_state_dict(decoder.state_dict(), strict=False)
    check_decoder(published, stop, 3000, 40)


def check_decoder(
    decoder: Decoder, stop: int, items: int, beam: int, passes: DecoderPasses | None = None
) -> None:
    trie, z, wanted = Trie.build(pool(items), SIZES), queries(4), everything(4)
    wanted[1] = torch.tensor([False, True, True])
    fixed = FixedDecoder(
        FixedTrie(trie, books(), "cpu"),
        books(),
        decoder,
        FixedShape(beam, 10, stop, items, items),
        suffixes=True,
        passes=passes,
    )
    answers = fixed(z, wanted)
    assert answers.exact.all()
    forest = Forest([TensorTrie(trie)])
    plain = beam_search(DecoderScorer(decoder, z), forest, 4, beam, stop=stop, modalities=wanted)[0]
    for query, leaves in enumerate(plain):
        assert int(answers.leaves[query]) == len(leaves)
        assert found(answers, query) == pytest.approx(best(leaves, 10), abs=1e-4)


def books_by_modality() -> Codebooks:
    rng = np.random.default_rng(1)
    first, *others = (
        rng.normal(size=(3, size, DIM)).astype(np.float32) / (1 + n) for n, size in enumerate(SIZES)
    )
    return Codebooks([first[0], *others])


@pytest.mark.parametrize("tables", [books(), books_by_modality()], ids=["common", "modality"])
def test_leaves_by_their_codes(decoder: Decoder, tables: Codebooks) -> None:
    trie, z = Trie.build(pool(3000), SIZES), queries(3)
    for stop in (2, 3, 5):
        shape = FixedShape(20, 10, stop, 3000, 3000)
        answers = FixedDecoder(FixedTrie(trie, tables, "cpu"), tables, decoder, shape, suffixes=False)(
            z, everything(3)
        )
        forest = Forest([TensorTrie(trie)])
        plain = beam_search(DecoderScorer(decoder, z), forest, 3, 20, stop=stop, suffixes=False)[0]
        for query, leaves in enumerate(plain):
            cosine = tables.cosine(z[query].numpy(), trie.codes(leaves.positions))
            assert found(answers, query) == pytest.approx(best(leaves.with_scores(cosine), 10), abs=1e-5)


@pytest.mark.parametrize("suffixes", [False, True])
def test_a_beam_that_is_not_full_has_no_items_of_others(decoder: Decoder, suffixes: bool) -> None:
    """Few items of a modality: the rest of the beam is padding, whose children must not be found."""
    codes = pool(3000)
    codes[:, 0] = 0
    codes[:5, 0] = 1
    trie, z = Trie.build(codes, SIZES), queries(3)
    fixed = FixedTrie(trie, books(), "cpu")
    wanted = torch.tensor([[False, True, False]] * 2 + [[False, False, True]])
    search = FixedDecoder(fixed, books(), decoder, FixedShape(40, 10, 4, 3000, 3000), suffixes)
    answers = search(z, wanted)
    assert [sorted(trie.rows(np.array(list(found(answers, n)), dtype=np.int64))) for n in range(3)] == [
        list(range(5)),
        list(range(5)),
        [],
    ]


@pytest.mark.parametrize("stop", [2, 3, 4])
@pytest.mark.parametrize(("items", "beam"), [(20_000, 5), (20_000, 60), (300, 10)])
def test_lookup_equals_the_plain_search(stop: int, items: int, beam: int) -> None:
    trie, z, tables = Trie.build(pool(items), SIZES), queries(5), books()
    wanted = everything(5)
    wanted[3] = torch.tensor([True, False, False])
    shape = FixedShape(beam, 10, stop, items, items)
    answers = FixedLookup(FixedTrie(trie, tables, "cpu"), tables, shape)(z, wanted)
    assert answers.exact.float().mean() >= 0.8  # the others must be asked in the plain way
    for query, own in enumerate(tables.tables(z.numpy())):
        leaves = lookup(trie, own, beam, stop=stop, modalities=wanted[query].numpy())
        if answers.exact[query]:
            assert int(answers.leaves[query]) == len(leaves)
            assert found(answers, query) == pytest.approx(best(leaves, 10), abs=1e-5)


@pytest.mark.parametrize("stop", [2, 3, 4, 5])
@pytest.mark.parametrize("kept", [0.9, 0.3])
def test_filters_equal_the_plain_search(decoder: Decoder, stop: int, kept: float) -> None:
    """One program, recorded once: the filter of the moment is in its tensors."""
    trie, z, tables = Trie.build(pool(3000), SIZES), queries(5), books()
    filtered, forest = FilteredTrie(FixedTrie(trie, tables, "cpu")), TensorTrie(trie)
    shape = FixedShape(30, 10, stop, 3000, 3000)
    by_tables = FixedLookup(filtered, tables, shape)
    by_decoder = FixedDecoder(filtered, tables, decoder, shape, suffixes=True)
    rng = np.random.default_rng(4)
    for _ in range(2):
        allowed = ItemFilter.of(rng.random(3000) < kept)
        with filtered.restricted(allowed):
            answers, generated = by_tables(z, everything(5)), by_decoder(z, everything(5))
        assert generated.exact.all() and answers.exact.float().mean() >= 0.6
        pool_of_allowed = Forest([forest.filtered(allowed)])
        plain = beam_search(DecoderScorer(decoder, z), pool_of_allowed, 5, 30, stop=stop)[0]
        for query, own in enumerate(tables.tables(z.numpy())):
            leaves = lookup(trie, own, 30, stop=stop, allowed=allowed)
            if answers.exact[query]:
                assert int(answers.leaves[query]) == len(leaves)
                assert found(answers, query) == pytest.approx(best(leaves, 10), abs=1e-5)
            assert int(generated.leaves[query]) == len(plain[query])
            assert found(generated, query) == pytest.approx(best(plain[query], 10), abs=1e-4)


def test_at_a_dense_level_all_children_are_looked_at() -> None:
    sizes = (3, 17, 200, 11)
    trie, z, tables = Trie.build(pool(1500, sizes), sizes), queries(5), books(sizes)
    fixed, level = FixedTrie(trie, tables, "cpu"), trie.tree_levels
    assert level == 2 and fixed.dense_levels[level].density < MIN_DENSITY
    answers = FixedLookup(fixed, tables, FixedShape(40, 10, 3, 1500, children=1))(z, everything(5))
    assert answers.exact.all()
    for query, own in enumerate(tables.tables(z.numpy())):
        assert found(answers, query) == pytest.approx(best(lookup(trie, own, 40, stop=3), 10), abs=1e-5)


def test_what_does_not_fit_is_reported(decoder: Decoder) -> None:
    trie, z = Trie.build(pool(3000), SIZES), queries(3)
    fixed = FixedTrie(trie, books(), "cpu")
    narrow = FixedDecoder(fixed, books(), decoder, FixedShape(20, 10, 3, 30, 3000), suffixes=True)(
        z, everything(3)
    )
    assert narrow.exact.all() and (narrow.leaves > 30).all()
    assert (narrow.scores > -torch.inf).all()
    wide = FixedDecoder(fixed, books(), decoder, FixedShape(20, 10, 3, 3000, 3000), suffixes=True)(
        z, everything(3)
    )
    common = [len(found(narrow, q).keys() & found(wide, q).keys()) for q in range(3)]
    assert sum(common) >= 10  # the best prefixes keep their items
    few = FixedDecoder(fixed, books(), decoder, FixedShape(20, 10, 5, 3000, 4), suffixes=True)(
        z, everything(3)
    )
    assert not few.exact.any()


def test_of_equal_scores_the_lowest_order_wins() -> None:
    rng = np.random.default_rng(0)
    for values in (1, 3, 1000):
        scores = torch.from_numpy(rng.integers(-values, values + 1, (4, 300)).astype(np.float32)) * -0.5
        scores[scores > 100] = -torch.inf
        order = torch.from_numpy(np.stack([rng.permutation(1000)[:300] for _ in range(4)]))
        rank, best, place = ordered_top_k(scores, order, 20)
        for row in range(4):
            expected = sorted(range(300), key=lambda i: (-float(scores[row, i]), int(order[row, i])))[:20]
            expected = sorted(expected, key=lambda i: int(order[row, i]))
            assert place[row].tolist() == expected
            assert rank[row].tolist() == order[row, expected].tolist()
            assert torch.equal(best[row], scores[row, expected])


@pytest.mark.parametrize(("block", "count", "k"), [(4, 300, 20), (7, 301, 20), (64, 5000, 50), (4, 30, 40)])
def test_the_best_of_many_are_found_by_blocks(
    block: int, count: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "WIDE", 20)
    monkeypatch.setattr(operations, "BLOCK", block)
    rng = np.random.default_rng(0)
    for values in (1, 3, 10_000):  # many equal ones, few, none
        scores = torch.from_numpy(rng.integers(-values, values + 1, (4, count)).astype(np.float32))
        scores[3, 5:] = -torch.inf  # fewer than k
        column, best = plain_top_k(scores, k)
        _, expected, place = ordered_top_k(scores, torch.arange(count).expand(4, -1), k)
        there = expected > -torch.inf
        assert torch.equal(best, expected) and torch.equal(column[there], place[there])
        assert int(column.max()) < count


class Watch(TorchDispatchMode):
    """Counts operations, and those that need a number of the device on the host."""

    operations = waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += not func.is_view
        name = func.name()
        self.waits += any(part in name for part in ("_local_scalar_dense", "nonzero", "bincount", "unique"))
        masks = [a for a in (args[1] if name.startswith("aten::index.") else ()) if a is not None]
        self.waits += any(mask.dtype == torch.bool for mask in masks)
        return func(*args, **(kwargs or {}))


def watched(run: Any, count: int) -> tuple[int, int]:
    with Watch() as watch:
        run(queries(count), everything(count))
    return watch.operations, watch.waits


def test_operations_depend_on_nothing_and_nothing_waits(decoder: Decoder) -> None:
    def count(queried: int, beam: int, items: int, kind: str) -> tuple[int, int]:
        trie = FixedTrie(Trie.build(pool(items), SIZES), books(), "cpu")
        assert trie.tree_levels == 3
        shape = FixedShape(beam, 10, 3, 200, 200)
        if kind == "lookup":
            return watched(FixedLookup(trie, books(), shape), queried)
        return watched(FixedDecoder(trie, books(), decoder, shape, suffixes=kind == "suffixes"), queried)

    for kind, most in (("lookup", 135), ("codes", 340), ("suffixes", 460)):
        counts = {count(1, 5, 4000, kind), count(1, 50, 4000, kind), count(8, 50, 8000, kind)}
        ((operations, waits),) = counts
        assert waits == 0
        assert operations <= most, f"{kind} takes {operations} operations"


def test_the_shape_follows_the_pool() -> None:
    small = FixedTrie(Trie.build(pool(300), SIZES), books(), "cpu")
    large = FixedTrie(Trie.build(pool(20_000), SIZES), books(), "cpu")
    assert choose_shape(small, 10, 5, 8).stop < choose_shape(large, 10, 5, 8).stop
    assert choose_shape(large, 10, 5, 8, stop=3).stop == 3
