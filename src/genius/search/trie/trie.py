"""The trie of a pool: every prefix of codes that exists, as five flat arrays.

Items are sorted by their codes, so a prefix is a range of positions in that order. The first levels, where
a prefix still has many items, are kept as a tree of node arrays; below them no tree is needed, since the
children of a range can be read off the sorted codes themselves. What the tree implies is not stored again:

    records     (items, width) uint8    codes below the tree and the item's row, packed; in order of the codes
    node_code   (nodes,)                code of each node; breadth first, one sentinel closes each level
    node_start  (nodes,) int32          first position of each node; it ends where the next one starts
    node_first  (inner nodes,) int32    first child of each node; they end where the next node's start
    levels      (tree levels + 1,)      first node of each level; node 0 is the root
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadInput, IndexCorrupt
from genius.search.arrays import Bools, Ints, ragged_ranges
from genius.search.trie.child_tables import ChildTables
from genius.search.trie.packing import RecordLayout
from genius.search.trie.sorting import build_arrays

MEAN_BUCKET = 4  # a level joins the tree while its nodes have at least this many items on average
LISTED = 4  # a filter that allows at most one in so many items has a list of them
SORTED_AT_ONCE = 4_000_000  # items whose codes are sorted together: bounds the memory of a build
ARRAYS = ("records", "node_code", "node_start", "node_first", "levels", "sizes")


@dataclass(frozen=True, slots=True)
class Nodes:
    """Prefixes of `level` codes, in the order of their codes."""

    level: int
    start: Ints  # (n,) first position
    end: Ints  # (n,) one past the last position
    node: Ints  # (n,) number in the tree; empty below it

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class ItemFilter:
    """The items a search may return, as a mask by position and its running count."""

    mask: Bools  # (items,)
    count_before: NDArray[np.int32]  # (items + 1,) allowed items before each position
    positions: NDArray[np.int32] | None = None  # of the allowed items, where they are a small part

    @classmethod
    def of(cls, mask: Bools) -> ItemFilter:
        """The filter that allows the positions where `mask` is true."""
        count_before = np.zeros(len(mask) + 1, dtype=np.int32)
        np.cumsum(mask, out=count_before[1:])
        few = LISTED * int(count_before[-1]) <= len(mask)
        return cls(mask, count_before, np.flatnonzero(mask).astype(np.int32) if few else None)

    @property
    def items(self) -> int:
        """How many items are allowed."""
        return int(self.count_before[-1])

    def count(self, start: Ints, end: Ints) -> Ints:
        """How many allowed items each range has."""
        return (self.count_before[end] - self.count_before[start]).astype(np.int64)

    def within(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """The allowed positions of all ranges, one range after the other, and how many each has."""
        counts = self.count(start, end)
        if self.positions is not None:
            listed = ragged_ranges(self.count_before[start].astype(np.int64), counts)
            return self.positions[listed].astype(np.int64), counts
        positions = ragged_ranges(start, end - start)
        return positions[self.mask[positions]], counts


class Trie:
    """All prefixes of the codes of a pool; the arrays are described at the top of this file."""

    def __init__(
        self,
        sizes: Sequence[int],
        records: NDArray[np.uint8],
        node_code: NDArray[Any],
        node_start: NDArray[np.int32],
        node_first: NDArray[np.int32],
        levels: Ints,
    ) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        self.records = np.asarray(records)  # a memory map stays mapped, as a plain array: faster
        self.node_code = np.asarray(node_code)
        self.node_start = np.asarray(node_start)
        self.node_first = np.asarray(node_first)
        self.levels = np.asarray(levels)
        below = self.sizes[self.tree_levels :]
        self.flat = self.records.reshape(-1)
        self.layout = RecordLayout.of(below, records.shape[1] - RecordLayout.of(below, 0).width)

    @classmethod
    def build(
        cls,
        codes: NDArray[Any],
        sizes: Sequence[int],
        rows: Ints | None = None,
        *,
        at_once: int = SORTED_AT_ONCE,
    ) -> Trie:
        """The trie of `codes` (items, levels); `rows` (items,) names the items, by default 0, 1, 2 …

        Items with equal codes keep the order in which they are given. Beside the codes and the trie itself,
        each thread needs memory for the sorting of about `at_once` items; the codes may be a mapped file.
        """
        return cls(sizes, *build_arrays(_checked(codes, sizes), sizes, rows, MEAN_BUCKET, at_once))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Trie:
        """The trie whose `arrays()` these are; they may be memory-mapped and are not copied."""
        missing = [name for name in ARRAYS if name not in arrays]
        if missing:
            raise IndexCorrupt(f"trie without {', '.join(missing)}: run `genius check --repair`")
        trie = cls(arrays["sizes"].tolist(), *(arrays[name] for name in ARRAYS[:-1]))
        trie._check()
        return trie

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything there is to store, by name."""
        sizes = np.array(self.sizes, dtype=np.int64)
        return {name: sizes if name == "sizes" else getattr(self, name) for name in ARRAYS}

    @property
    def items(self) -> int:
        """How many items the pool has."""
        return len(self.records)

    @cached_property
    def first_codes(self) -> frozenset[int]:
        """The codes of level 0 that items have."""
        return frozenset(self.children(self.root()).code.tolist())

    @property
    def tree_levels(self) -> int:
        """How many levels have nodes; below them, ranges of records take over."""
        return len(self.levels) - 2

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, in memory and (but for file headers) on disk."""
        return sum(array.nbytes for array in self.arrays().values())

    @cached_property
    def child_tables(self) -> ChildTables:
        """Tables that find the best children of many prefixes; built when first needed."""
        return ChildTables(self)

    def root(self) -> Nodes:
        """The empty prefix; its range is the whole pool."""
        return Nodes(0, np.zeros(1, np.int64), np.full(1, self.items), np.zeros(1, np.int64))

    def nodes(self, level: int, number: Ints) -> Nodes:
        """Nodes of the tree with `level` codes, by their numbers."""
        start = self.node_start.take(number).astype(np.int64)
        return Nodes(level, start, self.node_start.take(number + 1).astype(np.int64), number)

    def children(self, nodes: Nodes) -> Children:
        """The prefixes one code longer, of all `nodes` at once."""
        if nodes.level < self.tree_levels:
            low = self.node_first[nodes.node].astype(np.int64)
            high = self.node_first[nodes.node + 1].astype(np.int64)
            return Children(self, nodes.level, low, high)
        return Children(self, nodes.level, nodes.start, nodes.end)

    def code_at(self, level: int, index: Ints) -> NDArray[Any]:
        """Codes of `level` of tree nodes (in the tree) or of positions (below it)."""
        if level < self.tree_levels:
            return np.asarray(self.node_code.take(index))
        return np.asarray(self.layout.code_at(self.flat, index, level - self.tree_levels))

    def codes(self, positions: Ints) -> NDArray[np.uint16]:
        """All codes of the items at these positions, (n, levels)."""
        out = np.empty((len(positions), len(self.sizes)), dtype=np.uint16)
        for level in range(self.tree_levels):
            first, sentinel = int(self.levels[level + 1]), int(self.levels[level + 2]) - 1
            starts = self.node_start[first:sentinel]
            node = np.searchsorted(starts, positions.astype(starts.dtype), "right")  # one type: no copy
            out[:, level] = self.node_code[first + node - 1]
        records = self.records.take(positions, axis=0)  # twice as fast as an index
        for number in range(self.layout.below):
            out[:, self.tree_levels + number] = self.layout.code(records, number)
        return out

    def records_from(self, level: int) -> tuple[RecordLayout, NDArray[np.uint8]]:
        """The records with all codes from a level of the tree on, of which each is a byte; a copy."""
        layout = RecordLayout.of(self.sizes[level:], self.layout.row_bytes)
        assert not layout.high_bits and level <= self.tree_levels
        records = np.empty((self.items, layout.width), np.uint8)
        for own in range(level, self.tree_levels):
            first, sentinel = int(self.levels[own + 1]), int(self.levels[own + 2]) - 1
            items = np.diff(self.node_start[first : sentinel + 1])
            layout.put_code(records, own - level, np.repeat(self.node_code[first:sentinel], items))
        records[:, self.tree_levels - level :] = self.records
        return layout, records

    def rows(self, positions: Ints | slice) -> Ints:
        """Rows of the items at these positions."""
        if isinstance(positions, slice):
            return np.asarray(self.layout.row(self.records[positions]))
        return np.asarray(self.layout.row(self.records.take(positions, axis=0)))

    def allow(self, mask: Bools) -> ItemFilter:
        """A filter from a mask by item row; rows past its end are not allowed."""
        rows = self.rows(slice(None))
        inside = rows < len(mask)
        kept = np.zeros(self.items, dtype=bool)
        kept[inside] = mask[rows[inside]]
        return ItemFilter.of(kept)

    def _check(self) -> None:
        nodes, inner = int(self.levels[-1]), int(self.levels[-2])
        fits = (
            self.records.dtype == np.uint8
            and self.layout.row_bytes in (1, 2, 3, 4)
            and len(self.node_code) == len(self.node_start) == nodes
            and len(self.node_first) == inner
            and int(self.node_start[-1]) == self.items
        )
        if not fits:
            raise IndexCorrupt("trie arrays do not fit each other: run `genius check --repair`")


class Children:
    """The children of some nodes: `code` of each, and `take` for the nodes of those that are kept.

    They are in the order of their codes if the nodes are. `code[i]` belongs to child i.
    """

    def __init__(self, trie: Trie, level: int, low: Ints, high: Ints) -> None:
        self.trie, self.level, self.low = trie, level, low
        self.counts = high - low
        index = ragged_ranges(low, self.counts)  # node numbers in the tree, positions below it
        code = trie.code_at(level, index)
        self.heads: Ints | None = None  # below the tree: where each child begins
        if level >= trie.tree_levels:
            new = np.ones(len(index) + 1, dtype=bool)
            np.not_equal(code[1:], code[:-1], out=new[1:-1])
            new[np.cumsum(self.counts)] = True
            heads = np.flatnonzero(new)
            self.heads, index, code = heads, index[heads[:-1]], code[heads[:-1]]
        self.index, self.code = index, code

    def __len__(self) -> int:
        return len(self.code)

    @cached_property
    def parent(self) -> Ints:
        """Which of the nodes each child belongs to."""
        owner = np.repeat(np.arange(len(self.counts)), self.counts)
        return owner if self.heads is None else owner[self.heads[:-1]]

    def take(self, picked: Any = slice(None)) -> Nodes:
        """The picked children as nodes."""
        index = self.index[picked]
        if self.heads is None:
            return self.trie.nodes(self.level + 1, index)
        length = (self.heads[1:] - self.heads[:-1])[picked]
        return Nodes(self.level + 1, index, index + length, index[:0])

    def with_allowed(self, allowed: ItemFilter) -> Ints:
        """The children that have an allowed item."""
        nodes = self.take()
        return np.flatnonzero(allowed.count(nodes.start, nodes.end))


def _checked(codes: NDArray[Any], sizes: Sequence[int]) -> NDArray[Any]:
    codes = np.asarray(codes)
    if codes.ndim != 2 or codes.shape[1] != len(sizes) or not len(sizes):
        raise BadInput(
            f"codes of shape {codes.shape} for {len(sizes)} levels: give one row of codes per item"
        )
    if max(sizes) > 65536 or len(codes) >= 2**31:
        raise BadInput("a trie holds at most 65,536 codes a level and 2,147,483,647 items: split the pool")
    for level, size in enumerate(sizes):
        column = codes[:, level]
        if len(column) and (int(column.min()) < 0 or int(column.max()) >= size):
            raise BadInput(f"level {level} has codes outside 0 … {size - 1}: quantize with the same model")
    return codes if codes.dtype in (np.uint8, np.uint16) else codes.astype(np.uint16)
