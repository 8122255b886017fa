"""The code vectors of all levels as NumPy arrays: what a lookup and a re-ranking by codes compare with.

The similarity of a query with an item's codes is a sum over levels,

    <z_q, e_0[c_0] + e_1[c_1] + …> = table_0[c_0] + table_1[c_1] + …,   table_l = codebook_l @ z_q,

so one small matrix product per query gives tables that score every item, and every prefix of codes. Where
each modality has code vectors of its own, its items are scored by tables of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadInput
from genius.search.arrays import Floats, Ints

GRAM_CODES = 8192  # with more codes in all levels together, there are no pair tables
PAIR_ENTRIES = GRAM_CODES**2  # of all pair tables together (256 MB)


class PairTables(NamedTuple):
    """What each pair of codes of two levels adds to the squared length of a sum of code vectors."""

    values: Floats  # all tables, one after the other, each row by row
    one: Ints  # (tables,) level of the rows
    other: Ints  # (tables,) level of the columns
    start: Ints  # (tables, 1) where each table begins in `values`
    width: Ints  # (tables, 1) length of its rows


class Codebooks:
    """The code vectors of all levels, ready to be compared with queries.

    A level is an array (codes, dim); levels 1, 2, … may be (modalities, codes, dim), for each code of level 0
    its own code vectors: `own` has the codebooks of each, and only these make tables.
    """

    def __init__(self, codebooks: Sequence[NDArray[Any]], modality: int | None = None) -> None:
        self.sizes: tuple[int, ...] = tuple(book.shape[-2] for book in codebooks)
        self.modality = modality  # code of level 0 of the items that these are for; None: of all
        self.own: list[Codebooks] = []
        self.vectors: Floats  # (rows, dim)
        starts = (0, *accumulate(self.sizes))
        self.levels = [slice(a, b) for a, b in pairwise(starts)]  # rows of each level
        self.row_of_level = np.array([starts[:-1]])  # (1, levels), or by modality (modalities, levels)
        first, *others = codebooks
        if codebooks[-1].ndim == 3:
            self.own = [Codebooks([first, *(book[m] for book in others)], m) for m in range(len(first))]
            shift = np.arange(len(first)) * (starts[-1] - len(first))
            self.row_of_level = self.row_of_level + shift[:, None] * (np.arange(len(self.sizes)) > 0)
            codebooks = [first, *(own.vectors[len(first) :] for own in self.own)]
        self.vectors = np.ascontiguousarray(np.concatenate(codebooks), dtype=np.float32)

    @property
    def dim(self) -> int:
        """Width of the code vectors."""
        return int(self.vectors.shape[1])

    def tables(self, z: NDArray[Any]) -> list[list[Floats]]:
        """For each query of `z` (batch, dim), the similarity with each code, one array per level."""
        assert not self.own
        if z.ndim != 2 or z.shape[1] != self.dim:
            raise BadInput(
                f"queries of shape {z.shape} for codes of width {self.dim}: encode with this model"
            )
        every = np.asarray(z, dtype=np.float32) @ self.vectors.T
        return [[row[level] for level in self.levels] for row in every]

    def similarity(self, z: Floats, codes: NDArray[np.uint16]) -> Floats:
        """<z, sum of code vectors> of one query `z` (dim,) with items of these codes (n, levels)."""
        if self.own:
            return self._by_modality(codes, lambda own, some: own.similarity(z, some))
        rows = self._rows(codes)
        if rows.size < len(self.vectors):  # few items: read their code vectors only
            products = np.vecdot(self.vectors.take(rows.ravel(), axis=0), z)  # equal codes, equal scores
            return np.asarray(products.reshape(rows.shape).sum(1))
        return np.asarray((self.vectors @ z).take(rows).sum(1))

    def cosine(self, z: Floats, codes: NDArray[np.uint16]) -> Floats:
        """Cosine of one unit query `z` (dim,) with the sums of code vectors of items, codes (n, levels).

        A sum that misses much of its item is short; its direction is still the best estimate of the item's.
        """
        return self.cosine_from_similarity(self.similarity(z, codes), codes)

    def cosine_from_similarity(self, similarity: Floats, codes: NDArray[np.uint16]) -> Floats:
        """`cosine` where the `similarity` (n,) is known already."""
        return np.asarray(similarity / np.maximum(self.lengths(codes), np.float32(1e-6)))

    def lengths(self, codes: NDArray[np.uint16]) -> Floats:
        """Length of the sum of code vectors of each item, (n,); it follows from the codes alone."""
        if self.own:
            return self._by_modality(codes, Codebooks.lengths)
        if len(self.vectors) > GRAM_CODES or len(self.sizes) < 3:
            chunks = np.array_split(self._rows(codes), 1 + len(codes) // 1024)
            return np.concatenate([np.linalg.norm(self.vectors[part].sum(1), axis=1) for part in chunks])
        tables = self.pair_tables
        columns = np.ascontiguousarray(codes.T, dtype=np.int64)
        if self._joins_first_levels:
            columns[1] += columns[0] * self.sizes[1]  # both codes as one
            columns = columns[1:]
        cells = columns.take(tables.one, axis=0)
        cells *= tables.width
        cells += columns.take(tables.other, axis=0)
        cells += tables.start
        squared = tables.values.take(cells).sum(0)  # |sum|^2 is a sum of products of pairs of code vectors
        return np.asarray(np.sqrt(np.maximum(squared, 0)))

    @cached_property
    def pair_tables(self) -> PairTables:
        """For any two levels and two codes what they add to |sum|^2.

        That is twice the product of the two code vectors; their own squares are in the tables of the first
        level. Levels 0 and 1 count as one level if level 0 is small (the modality), which saves reads.
        """
        books = [self.vectors[level] for level in self.levels]
        if self._joins_first_levels:
            books = [(books[0][:, None] + books[1][None]).reshape(-1, self.dim), *books[2:]]
        pairs = list(combinations(range(len(books)), 2))
        tables = [2 * (books[a] @ books[b].T) for a, b in pairs]
        for (a, b), table in zip(pairs, tables, strict=True):
            if a == 0:
                table += np.vecdot(books[b], books[b])
            if (a, b) == (0, 1):
                table += np.vecdot(books[0], books[0])[:, None]
        one, other = np.array(pairs).T
        start = np.cumsum([0, *(table.size for table in tables[:-1])])[:, None]
        width = np.array([table.shape[1] for table in tables])[:, None]
        return PairTables(np.concatenate([table.ravel() for table in tables]), one, other, start, width)

    @cached_property
    def _joins_first_levels(self) -> bool:
        """Whether the pair tables stay small with levels 0 and 1 as one level."""
        joined = [self.sizes[0] * self.sizes[1], *self.sizes[2:]]
        return sum(a * b for a, b in combinations(joined, 2)) <= PAIR_ENTRIES

    def _rows(self, codes: NDArray[np.uint16]) -> Ints:
        """Row of each code in `vectors`, int64, of the shape of `codes` (n, levels)."""
        return np.asarray(codes + self.row_of_level[0])

    def _by_modality(
        self, codes: NDArray[np.uint16], values: Callable[[Codebooks, NDArray[np.uint16]], Floats]
    ) -> Floats:
        """A value of each item, (n,), by the codebooks of its modality."""
        found = np.empty(len(codes), dtype=np.float32)
        for modality in np.unique(codes[:, 0]).tolist():
            items = codes[:, 0] == modality
            found[items] = values(self.own[modality], codes[items])
        return found
