"""Lookup for a re-ranking: the items of the best cells, scored by the cosine of all their codes.

A cell is a prefix of the first codes: 3 x 256 x 256 of them with `mini`, and 256 times as many in pools of
more than 50 million items. The beam is like that of `genius.search.lookup`, but prefixes and items are
compared by cosine instead of inner product, as the re-ranking compares them: a short sum of code vectors has
a small product with any query, and yet its items may be the nearest.

The lengths of all prefixes follow from the codebooks, those of items are computed when first needed.
Everything is in whole numbers, so that any order of summation gives the same candidates:
`genius.search.kernel` is this search compiled, and both agree in every bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from math import ceil, log2, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.search.arrays import Bools, Floats, Ints, ragged_ranges, top_k
from genius.search.candidates import Candidates
from genius.search.codebooks import Codebooks
from genius.search.trie import ItemFilter, Trie
from genius.search.trie.packing import RecordLayout

MAX_CELLS = 1 << 18
MAX_DEEP_CELLS = 1 << 26  # where MAX_CELLS would have more than ITEMS_PER_CELL items each
DEEP_BEAM = 2  # such cells that are kept for each prefix of a beam: they have few items
NEAREST, NEAREST_ITEMS = 16, 300  # cells with so many items; others are compared with the last of these
MARGIN_BEAM = 400  # up to this beam, others may be as far from these as items are from their cell
MEASURED = 512  # items whose distance to their cell is measured
COPIED = 1 << 24  # items whose records are copied where the tree of the trie is deeper than the cells
ITEMS_PER_CELL = 256  # on average; in larger pools the beam of `lookup` goes below the cells
PARENTS_AT_ONCE = 1 << 12  # prefixes whose children's lengths are computed together
COUNTED_AT_ONCE = 1 << 22  # items
MAX_LEVELS = 64
UNITS = np.float32(1 << 16)  # of the longest possible sum of code vectors
INVERSE_UNITS = np.float32(1 << 11)  # of its inverse
MAX_INVERSE = np.float32(32767)
EXACT = 1 << 23  # whole numbers up to twice this are exact in float32, in any order of summation
COARSE, FINE = np.float32(127), np.float32(7)  # the largest number of a code vector: of cells, and below

Units = NDArray[np.int32]
Inverses = NDArray[np.uint16]


class CellCodebooks:
    """The code vectors in whole numbers, and the inverse length of every prefix of up to `depth` codes.

    A cell has as many codes as there can be with at most `max_cells` cells.
    """

    def __init__(self, codebooks: Codebooks, max_cells: int = MAX_CELLS) -> None:
        self.codebooks, self.sizes, vectors = codebooks, codebooks.sizes, codebooks.vectors
        self.depth = max(1, sum(cells <= max_cells for cells in accumulate(self.sizes, lambda a, b: a * b)))
        lengths = np.linalg.norm(vectors, axis=1)
        self.longest = np.float32(max(sum(float(lengths[level].max()) for level in codebooks.levels), 1e-6))
        most = np.maximum(np.abs(vectors).max(1), np.float32(1e-12))
        largest = np.full(len(vectors), FINE)
        largest[: sum(self.sizes[: self.depth])] = COARSE
        self.small = np.rint(vectors * (largest / most)[:, None]).astype(np.int8)  # (codes, dim)
        self.factor = most / largest * (UNITS / self.longest)  # (codes,) float32
        self.inverse_unit = INVERSE_UNITS * self.longest
        self.unit = np.float32(2.0 ** ceil(log2(float(self.longest) / sqrt(EXACT))))  # of `rounded`

    @property
    def strides(self) -> list[int]:
        """How many cells a prefix of 1, 2, … codes has."""
        return [prod(self.sizes[level : self.depth]) for level in range(1, self.depth + 1)]

    @property
    def own_cells(self) -> slice:
        """The cells of the items that the codebooks are for: all of them, or those of one modality."""
        modality, part = self.codebooks.modality, self.strides[0]
        if modality is None:
            return slice(0, part * self.sizes[0])
        return slice(part * modality, part * (modality + 1))

    @cached_property
    def cells(self) -> int:
        """How many cells there are, filled or not."""
        return prod(self.sizes[: self.depth])

    def prefix_inverse(self) -> list[Inverses]:
        """For 1, 2, … codes the inverse length of each sum of code vectors, in the order of the codes."""
        books = [self.codebooks.vectors[level] for level in self.codebooks.levels[: self.depth]]
        found = []
        for level, book in enumerate(books):
            parents = np.arange(prod(self.sizes[:level]))
            lengths = np.vecdot(book, book)
            out = np.empty((len(parents), len(book)), np.uint16)
            for part in np.array_split(parents, 1 + len(parents) // PARENTS_AT_ONCE):
                sums = np.zeros((len(part), self.codebooks.dim), np.float32)
                codes = np.unravel_index(part, self.sizes[:level]) if level else ()
                for above, code in zip(books, codes, strict=False):
                    sums += above.take(code, axis=0)
                squares = np.vecdot(sums, sums)[:, None] + 2 * (sums @ book.T) + lengths
                out[part] = self.inverse(np.sqrt(np.maximum(squares, 0)))
            found.append(out.ravel())
        return found

    @cached_property
    def rounded(self) -> Codebooks:
        """The code vectors in whole multiples of `unit`, from which lengths of items follow exactly."""
        return Codebooks(
            [np.rint(self.codebooks.vectors[level] / self.unit) for level in self.codebooks.levels]
        )

    @cached_property
    def _whole(self) -> NDArray[Any]:
        """`small` in a type whose sums of products are exact."""
        exact = self.codebooks.dim * int(COARSE) ** 2 < 1 << 24
        return np.asarray(self.small, dtype=np.float32 if exact else np.float64)

    def inverse(self, lengths: Floats) -> Inverses:
        """Inverse lengths in units."""
        units = np.rint(self.inverse_unit / np.maximum(lengths, np.float32(1e-6)))
        return np.clip(units, 1, MAX_INVERSE).astype(np.uint16)

    def tables(self, z: Floats) -> list[Units]:
        """The product of a query's direction with each code vector in units, one array per level."""
        most = np.abs(z).max()
        query = np.rint(z * (COARSE / most if most > 0 else np.float32(0)))
        length = np.float32(np.sqrt(max(float(query.astype(np.float64) @ query), 1.0)))
        products = (self._whole @ query.astype(self._whole.dtype)).astype(np.float32)
        units = np.rint(products * self.factor / length).astype(np.int32)
        return [units[level] for level in self.codebooks.levels]


class Cells:
    """The items of a trie by cell; it holds the trie's arrays, not the trie."""

    def __init__(self, trie: Trie, books: CellCodebooks) -> None:
        self.books, self.items = books, trie.items
        self.layout, self.records, self.tree_levels = trie.layout, trie.records, trie.tree_levels
        self.copied = trie.tree_levels > books.depth
        if self.copied:
            self.layout, self.records = trie.records_from(books.depth)
            self.tree_levels = books.depth
        counts = _cell_counts(trie, books)
        self.start = np.zeros(len(counts) + 1, dtype=np.int32)  # first position of each cell
        np.cumsum(counts, out=self.start[1:])
        self.prefix_inverse = books.prefix_inverse()  # of each prefix; 0 where it has no items
        for inverse, stride in zip(self.prefix_inverse, books.strides, strict=True):
            inverse[counts.reshape(-1, stride).sum(1) == 0] = 0
        own = counts[books.own_cells].astype(np.float64)
        around = max(1.0, float(np.square(own).sum() / max(1.0, own.sum())))  # items in the cell of an item
        self.nearest, self.distance = max(NEAREST, round(NEAREST_ITEMS / around)), self._distance(trie)
        self.inverse = np.zeros(trie.items, dtype=np.uint16)  # inverse length of each item; 0: not known yet

    def kept(self, beam: int) -> int:
        """How many cells a beam keeps."""
        return beam if self.books.cells <= MAX_CELLS else DEEP_BEAM * beam

    def margin(self, beam: int) -> int:
        """How much worse than the nearest cells others may be, in units; a wider beam gets further."""
        wide = sqrt(max(beam / MARGIN_BEAM, 1))
        return round(wide * self.distance * float(UNITS * INVERSE_UNITS))

    def _distance(self, trie: Trie) -> float:
        """How far the items of these codebooks are from their own cell: 1 - cosine, the mean of some."""
        own = self.books.own_cells
        first, last = int(self.start[own.start]), int(self.start[own.stop])
        if first == last:
            return 0.0
        codes = trie.codes(np.unique(np.linspace(first, last - 1, MEASURED).astype(np.int64)))
        books = self.books.codebooks
        parts = [books.vectors[level][codes[:, number]] for number, level in enumerate(books.levels)]
        sums, cells = np.sum(parts, axis=0), np.sum(parts[: self.books.depth], axis=0)
        lengths = np.linalg.norm(sums, axis=1) * np.linalg.norm(cells, axis=1)
        cosine = np.vecdot(sums, cells) / np.maximum(lengths, np.float32(1e-6))
        return float(np.mean(1 - cosine))

    @property
    def nbytes(self) -> int:
        """Bytes in memory beside those of the trie."""
        prefixes = sum(inverse.nbytes for inverse in self.prefix_inverse)
        records = self.records.nbytes if self.copied else 0
        return self.start.nbytes + self.inverse.nbytes + prefixes + records

    @classmethod
    def suit(cls, trie: Trie, books: CellCodebooks) -> bool:
        """Whether the items of a trie can be searched by cells."""
        below = trie.sizes[min(books.depth, trie.tree_levels) :]
        return (
            (trie.tree_levels <= books.depth or trie.items <= COPIED)
            and RecordLayout.of(below, 0).high_bits == 0
            and len(trie.sizes) <= MAX_LEVELS
            and trie.items <= ITEMS_PER_CELL * max(books.cells, 1 << 14)
        )

    def learn_lengths(self, trie: Trie, positions: Ints) -> None:
        """Compute the lengths of items that are not known yet."""
        unknown = positions[self.inverse[positions] == 0]
        if len(unknown):
            lengths = self.books.rounded.lengths(trie.codes(unknown))
            self.inverse[unknown] = self.books.inverse(lengths * self.books.unit)


def _cell_counts(trie: Trie, books: CellCodebooks) -> NDArray[np.int32]:
    """How many items each cell has."""
    depth = min(books.depth, trie.tree_levels)
    prefix = np.zeros(1, dtype=np.int32)  # of each node of the tree's level `depth`
    for level in range(depth):
        first, sentinel = int(trie.levels[level]), int(trie.levels[level + 1]) - 1
        children = np.diff(trie.node_first[first : sentinel + 1])
        own = trie.node_code[int(trie.levels[level + 1]) :][: int(children.sum())]
        prefix = np.repeat(prefix, children) * np.int32(books.sizes[level]) + own
    first, sentinel = int(trie.levels[depth]), int(trie.levels[depth + 1]) - 1
    starts = trie.node_start[first : sentinel + 1]
    counts = np.zeros(books.cells, dtype=np.int32)
    if depth == books.depth:
        counts[prefix] = np.diff(starts)
        return counts
    for begin in range(0, trie.items, COUNTED_AT_ONCE):
        positions = np.arange(begin, min(begin + COUNTED_AT_ONCE, trie.items), dtype=np.int32)
        cell = prefix[np.searchsorted(starts, positions, "right") - 1]
        for level in range(depth, books.depth):
            own = trie.layout.code(trie.records[begin : begin + len(positions)], level - trie.tree_levels)
            cell = cell * np.int32(books.sizes[level]) + own
        heads = np.flatnonzero(np.diff(cell, prepend=-1))  # cells ascend
        counts[cell[heads]] += np.diff(heads, append=len(cell)).astype(np.int32)
    return counts


def parents_kept(beam: int) -> int:
    """How many prefixes are kept at each level above the cells: the best cells are under few of them."""
    return max(beam // 8, 64)


def cell_candidates(
    trie: Trie,
    cells: Cells,
    z: Floats,
    beam: int,
    *,
    leaves: int,
    limit: int,
    modalities: Bools | None = None,
    allowed: ItemFilter | None = None,
) -> Candidates:
    """The `limit` items with the largest cosine, of those under the `beam` best prefixes.

    The beam ends at the cells or as soon as it holds no more than `leaves` items. Cells that are worse than
    the nearest ones by the margin are left out, unless there is a filter: for most queries, the beam is wider
    than it has to be. If the cells have more items than `leaves`, the best are taken until there are so many.
    """
    books = cells.books
    tables = books.tables(z)
    prefixes, sums = np.zeros(1, np.int64), np.zeros(1, np.int32)
    for level, stride in enumerate(books.strides):
        sums = (sums[:, None] + tables[level]).ravel()
        prefixes = (prefixes[:, None] * books.sizes[level] + np.arange(books.sizes[level])).ravel()
        count = _items(cells.start[prefixes * stride], cells.start[(prefixes + 1) * stride], allowed)
        if level == 0 and modalities is not None:
            count = np.where(modalities, count, 0)
        scores = sums * cells.prefix_inverse[level].take(prefixes)
        most = cells.kept(beam) if stride == 1 else parents_kept(beam)
        kept = top_k(scores, most, np.flatnonzero(count))
        prefixes, sums, scores, count = prefixes[kept], sums[kept], scores[kept], count[kept]
        if stride == 1 and len(kept) > cells.nearest and allowed is None:
            near = scores >= np.partition(scores, -cells.nearest)[-cells.nearest] - cells.margin(beam)
            prefixes, sums, scores, count = prefixes[near], sums[near], scores[near], count[near]
        if count.sum() <= leaves:
            break
    if count.sum() > leaves:
        order = np.argsort(-scores, kind="stable")
        kept = np.sort(order[np.cumsum(count[order]) - count[order] < leaves])
        prefixes, count = prefixes[kept], count[kept]
    start, end = cells.start[prefixes * stride], cells.start[(prefixes + 1) * stride]
    if allowed is None:
        counts = (end - start).astype(np.int64)
        positions = ragged_ranges(start.astype(np.int64), counts)
    else:
        positions, counts = allowed.within(start.astype(np.int64), end.astype(np.int64))
    if stride == 1:
        total = np.repeat(_sums(tables[: books.depth], prefixes, books.sizes), counts)
    else:
        cell = np.searchsorted(cells.start, positions.astype(np.int32), "right") - 1
        total = _sums(tables[: books.depth], cell, books.sizes)
    records = cells.records.take(positions, axis=0)
    for level in range(books.depth, len(tables)):
        total += tables[level].take(cells.layout.code(records, level - cells.tree_levels))
    cells.learn_lengths(trie, positions)
    scores = total * cells.inverse.take(positions)
    best = top_k(scores, limit)
    return Candidates(positions[best], scores[best].astype(np.float32), len(prefixes), int(count.sum()))


def _items(start: NDArray[Any], end: NDArray[Any], allowed: ItemFilter | None) -> Ints:
    """How many (allowed) items ranges of positions have."""
    return (end - start).astype(np.int64) if allowed is None else allowed.count(start, end)


def _sums(tables: Sequence[Units], found: Ints, sizes: Sequence[int]) -> Units:
    """What the tables say of all codes of each cell."""
    codes = np.unravel_index(found, sizes[: len(tables)])
    return np.asarray(sum(table.take(code) for table, code in zip(tables, codes, strict=True)))
