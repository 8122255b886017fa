"""The trie against a dict of dicts, and its promises about bytes, order and storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from genius.errors import BadInput, IndexCorrupt
from genius.search.arrays import ragged_ranges
from genius.search.trie import Nodes, Trie

Pool = tuple[NDArray[np.int64], tuple[int, ...]]


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    """Codes of a small pool with many shared prefixes, and the sizes of the levels."""
    levels = draw(st.integers(1, 5))
    sizes = tuple(draw(st.sampled_from([1, 2, 3, 5, 256, 257, 4096, 65536])) for _ in range(levels))
    items = draw(st.integers(0, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([1, 2, 4, 100_000]))
    columns = [rng.integers(0, min(size, spread), items) for size in sizes]
    if draw(st.booleans()):  # use the top of the range too, where the packing could lose bits
        columns = [size - 1 - column for size, column in zip(sizes, columns, strict=True)]
    return np.stack(columns, axis=1), sizes


def nested(codes: NDArray[np.int64]) -> dict[int, Any]:
    """The same trie as a dict of dicts; the last level holds lists of rows."""
    root: dict[int, Any] = {}
    for row, item in enumerate(codes.tolist()):
        inner = root
        for code in item[:-1]:
            inner = inner.setdefault(code, {})
        inner.setdefault(item[-1], []).append(row)
    return root


def rows_under(tree: Any) -> list[int]:
    if isinstance(tree, list):
        return tree
    return [row for code in sorted(tree) for row in rows_under(tree[code])]


@settings(max_examples=150, deadline=None)
@given(pools())
def test_walk_equals_dict_of_dicts(pool: Pool) -> None:
    codes, sizes = pool
    trie = Trie.build(codes, sizes)
    nodes, trees = trie.root(), [nested(codes)]
    for _ in sizes:
        children = trie.children(nodes)
        expected = [(number, code) for number, tree in enumerate(trees) for code in sorted(tree)]
        assert list(zip(children.parent.tolist(), children.code.tolist(), strict=True)) == expected
        trees = [trees[number][code] for number, code in expected]
        nodes = children.take()
        ranges = zip(nodes.start.tolist(), nodes.end.tolist(), strict=True)
        assert [trie.rows(np.arange(*r)).tolist() for r in ranges] == [rows_under(tree) for tree in trees]
    everything = np.arange(trie.items)
    assert np.array_equal(trie.codes(everything), codes[trie.rows(everything)])


@settings(max_examples=100, deadline=None)
@given(pools(), st.integers(0, 2**32 - 1))
def test_filter_prunes_exactly_the_prefixes_without_allowed_items(pool: Pool, seed: int) -> None:
    codes, sizes = pool
    mask = np.random.default_rng(seed).random(len(codes)) < 0.3
    trie, smaller = Trie.build(codes, sizes), Trie.build(codes[mask], sizes, np.flatnonzero(mask))
    allowed = trie.allow(mask)
    assert allowed.items == smaller.items
    nodes, fewer = trie.root(), smaller.root()
    for _ in sizes:
        children, expected = trie.children(nodes), smaller.children(fewer)
        kept = children.with_allowed(allowed)
        assert np.array_equal(children.code[kept], expected.code)
        assert np.array_equal(children.parent[kept], expected.parent)
        nodes, fewer = children.take(kept), expected.take()
    positions = ragged_ranges(nodes.start, nodes.end - nodes.start)
    assert np.array_equal(trie.rows(positions[allowed.mask[positions]]), smaller.rows(slice(None)))


def test_children_of_a_choice_of_nodes_only() -> None:
    codes = np.random.default_rng(0).integers(0, 7, (500, 4))
    trie = Trie.build(codes, [7] * 4)
    first = trie.children(trie.root()).take(np.array([1, 4]))
    second = trie.children(first)
    nodes = second.take([0, len(second) - 1])
    assert second.parent[0] == 0 and second.parent[-1] == 1
    assert trie.codes(nodes.start)[:, 0].tolist() == [1, 4]


def test_a_row_outside_the_mask_is_not_allowed() -> None:
    trie = Trie.build(np.array([[0], [1], [1]]), [2], rows=np.array([5, 900, 70_000]))
    assert trie.rows(slice(None)).tolist() == [5, 900, 70_000]
    mask = np.zeros(901, dtype=bool)
    mask[[5, 900]] = True
    assert trie.allow(mask).mask.tolist() == [True, True, False]


@pytest.mark.parametrize(("size", "limit"), [(256, 10), (4096, 16)])
def test_bytes_per_item(size: int, limit: int) -> None:
    """300 k items with as many items per prefix as a large pool has keep the promise made for 5.6 M."""
    rng = np.random.default_rng(1)
    items = 300_000
    codes = (rng.random((items, 9)) * [3, 64, 64, *[size] * 6]).astype(np.uint16)
    trie = Trie.build(codes, [3, *[size] * 8])
    assert trie.nbytes == sum(array.nbytes for array in trie.arrays().values())
    assert trie.nbytes / items <= limit


def test_equal_codes_keep_the_given_order() -> None:
    trie = Trie.build(np.zeros((5, 3), dtype=np.uint8), [3, 4, 4], rows=np.array([9, 2, 7, 1, 300]))
    assert trie.rows(slice(None)).tolist() == [9, 2, 7, 1, 300]


def test_survives_the_disk_memory_mapped(tmp_path: Path) -> None:
    codes = np.random.default_rng(3).integers(0, 300, (400, 5))
    trie = Trie.build(codes, [300] * 5)
    for name, array in trie.arrays().items():
        np.save(tmp_path / f"{name}.npy", array, allow_pickle=False)
    mapped = Trie.from_arrays(
        {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in tmp_path.glob("*.npy")}
    )
    assert isinstance(mapped.records.base, np.memmap)
    everything = np.arange(400)
    assert np.array_equal(mapped.codes(everything), trie.codes(everything))
    assert np.array_equal(mapped.rows(everything), trie.rows(everything))
    level_one = mapped.children(mapped.root()).take()
    assert isinstance(level_one, Nodes) and len(level_one) == len(np.unique(codes[:, 0]))


def test_damaged_arrays_are_refused() -> None:
    arrays = Trie.build(np.zeros((4, 2), dtype=np.uint8), [3, 3]).arrays()
    with pytest.raises(IndexCorrupt, match="records"):
        Trie.from_arrays({name: array for name, array in arrays.items() if name != "records"})
    with pytest.raises(IndexCorrupt, match="check --repair"):
        Trie.from_arrays({**arrays, "records": arrays["records"][:-1]})


def test_codes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadInput, match="level 1"):
        Trie.build(np.array([[0, 4]]), [3, 4])
    with pytest.raises(BadInput, match="2 levels"):
        Trie.build(np.array([[0, 4, 1]]), [3, 4])
