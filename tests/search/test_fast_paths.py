"""What makes the lookup fast changes nothing: large families, halves by their bits, tries built in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.errors import BadInput
from genius.search.arrays import top_k
from genius.search.codebooks import Codebooks
from genius.search.lookup import lookup
from genius.search.rank import products
from genius.search.trie import Trie
from genius.search.trie.sorting import sort_codes

SIZES = (3, 20, 50, 60)


def dense(items: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return (rng.random((items, len(SIZES))) ** 1.3 * SIZES).astype(np.int64)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 60),
    st.integers(0, 1000),
    st.sampled_from([1, 4, 1000]),
    st.floats(0, 1),
    st.sampled_from([10_000, 20_000]),
)
def test_the_best_of_large_families_are_those_of_all_children(
    beam: int, seed: int, values: int, share: float, items: int
) -> None:
    trie, rng = Trie.build(dense(items, seed % 5), SIZES), np.random.default_rng(seed)
    assert trie.tree_levels == (3 if items == 20_000 else 2)  # children in the tree, and below it
    scores = rng.integers(-values, values + 1, beam).astype(np.float32) / 7
    table = rng.integers(-values, values + 1, SIZES[2]).astype(np.float32) / 3
    node = np.sort(rng.choice(trie.child_tables.prefixes(2)[0], beam, replace=False))
    allowed = None if share == 1 else trie.allow(rng.random(items) < share)
    children = trie.children(trie.nodes(2, node))
    total = np.repeat(scores, children.counts)
    total = (total if children.heads is None else total[children.heads[:-1]]) + table[children.code]
    expected = top_k(total, beam, None if allowed is None else children.with_allowed(allowed))
    nodes = children.take(expected)

    def is_allowed(first: Any, last: Any) -> Any:
        assert allowed is not None
        if trie.tree_levels == 3:
            first, last = trie.node_start[first], trie.node_start[first + 1]
        return allowed.count(first, last) > 0

    check = None if allowed is None else is_allowed
    best = trie.child_tables.best_children(2, node, scores, table, beam, check)
    if best is not None:
        assert np.array_equal(best[2], total[expected])
        if trie.tree_levels == 3:
            assert np.array_equal(best[0], nodes.node)
        else:
            assert np.array_equal(best[0], nodes.start) and np.array_equal(best[1], nodes.end)
    else:
        assert beam < 3 or share < 1  # with enough children, the shortcut is taken


def test_large_families_are_used_and_few_children_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    trie, rng = Trie.build(dense(20_000, 0), SIZES), np.random.default_rng(0)
    tables = [rng.normal(size=size).astype(np.float32) for size in SIZES]
    seen: list[int] = []
    plain = Trie.children
    monkeypatch.setattr(Trie, "children", lambda self, nodes: seen.append(nodes.level) or plain(self, nodes))
    quick = lookup(trie, tables, 40, stop=3)
    assert seen == []
    monkeypatch.setattr("genius.search.trie.child_tables.MIN_CHILDREN_PER_BEAM", 10**9)
    slow = lookup(trie, tables, 40, stop=3)
    assert seen == [2]
    assert np.array_equal(quick.positions, slow.positions)
    assert np.array_equal(quick.scores, slow.scores)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 400), st.integers(1, 90), st.integers(0, 99), st.sampled_from([2, 256, 4096]))
def test_a_trie_built_in_parts_is_the_same(items: int, at_once: int, seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = (3, size, size, size, size, size, size)
    codes = (rng.random((items, 7)) ** 3 * sizes).astype(np.uint16)
    rows = rng.permutation(3 * items + 1)[:items] if seed % 2 else None
    whole, parts = Trie.build(codes, sizes, rows), Trie.build(codes, sizes, rows, at_once=at_once)
    for name, array in whole.arrays().items():
        assert np.array_equal(array, parts.arrays()[name]), name
        assert array.dtype == parts.arrays()[name].dtype


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 500), st.integers(0, 99), st.integers(1, 12))
def test_sorting_is_stable(items: int, seed: int, levels: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 2 + seed % 3, (items, levels)).astype(np.uint16)
    expected = sorted(range(items), key=lambda i: (codes[i].tolist(), i))
    assert sort_codes(codes, [4096] * levels).tolist() == expected


def test_products_of_halves_are_those_of_floats_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    every = np.resize(every[np.isfinite(every)], (300, 210))
    some = rng.normal(size=(1500, 210)).astype(np.float16) / 16
    phi = rng.normal(size=210).astype(np.float32) / 16
    for halves in (every, some, every[:0]):
        assert np.array_equal(products(halves, phi), np.vecdot(halves.astype(np.float32), phi))


@pytest.mark.parametrize("sizes", [(3, 20, 20, 30, 7), (3, 256, 256, 256), (256,) * 8])
def test_lengths_by_pairs_are_those_of_the_sums(sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    books = [rng.normal(size=(size, 16)).astype(np.float32) for size in sizes]
    codes = np.stack([rng.integers(0, len(book), 200) for book in books], 1).astype(np.uint16)
    sums = sum(book[codes[:, level]] for level, book in enumerate(books))
    codebooks = Codebooks(books)
    np.testing.assert_allclose(codebooks.lengths(codes), np.linalg.norm(sums, axis=1), rtol=1e-5)
    assert codebooks.pair_tables.values.nbytes <= 256 << 20  # also without a small level 0


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_lighter_weights_find_nearly_the_same(precision: str) -> None:
    torch = pytest.importorskip("torch")
    from genius.decode.init import initialise
    from genius.decode.model import Decoder
    from genius.decode.shape import DecoderShape
    from genius.search.options import SearchOptions
    from genius.search.searcher import Searcher
    from genius.search.segment import TrieSegment

    rng = np.random.default_rng(0)
    shape = DecoderShape(12, SIZES, layers=2, width=32, heads=2, head_width=16, feed_forward=64, prefix=4)
    decoder, generator = Decoder(shape).eval(), torch.Generator().manual_seed(0)
    initialise(decoder, generator)
    for parameter in decoder.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    books = [rng.normal(size=(size, 12)).astype(np.float32) for size in SIZES]
    pool, z = [TrieSegment(Trie.build(dense(5000, 1), SIZES))], rng.normal(size=(20, 12)).astype(np.float32)
    before = {name: value.clone() for name, value in decoder.state_dict().items()}
    options = SearchOptions("generate", beam=30, k=10)
    plain = Searcher(books, decoder).search(pool, z, options)
    light = Searcher(books, decoder, precision=precision).search(pool, z, options)
    same = [len(set(a.rows) & set(b.rows)) / 10 for a, b in zip(plain, light, strict=True)]
    assert np.mean(same) >= 0.85
    assert all(torch.equal(value, before[name]) for name, value in decoder.state_dict().items())
    with pytest.raises(BadInput, match="int8"):
        Searcher(books, decoder, precision="int4")
