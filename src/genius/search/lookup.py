"""Search without a decoder: a beam over the trie by table lookup.

The similarity of a query with an item's codes is a sum over levels,

    <z_q, e_0[c_0] + e_1[c_1] + …> = table_0[c_0] + table_1[c_1] + …,   table_l = codebook_l @ z_q,

so one small matrix product per query scores every prefix. The beam stops once its prefixes are selective:
then the items under them (the leaves) are scored by all their codes. This is the NumPy path, one query after
the other; `TableScorer` in `genius.search.beam` does the same for batches on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import accumulate, combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadInput
from genius.search.leaves import Floats, Leaves, top
from genius.search.trie import Bools, Filter, Ints, Nodes, Trie, ragged

GRAM_CODES = 8192  # so many codes at most for tables of the products of all pairs (256 MB)


class Tables:
    """The code vectors of all levels, ready to be compared with queries."""

    def __init__(self, codebooks: Sequence[NDArray[Any]]) -> None:
        self.sizes = tuple(len(book) for book in codebooks)
        self.vectors = np.ascontiguousarray(np.concatenate(codebooks), dtype=np.float32)  # (codes, dim)
        starts = (0, *accumulate(self.sizes))
        self.levels = [slice(a, b) for a, b in pairwise(starts)]  # columns of each level

    @property
    def dim(self) -> int:
        """Width of the code vectors."""
        return int(self.vectors.shape[1])

    def of(self, z: NDArray[Any]) -> list[list[Floats]]:
        """For each query of `z` (batch, dim), the similarity with each code, one array per level."""
        if z.ndim != 2 or z.shape[1] != self.dim:
            raise BadInput(
                f"queries of shape {z.shape} for codes of width {self.dim}: encode with this model"
            )
        every = np.asarray(z, dtype=np.float32) @ self.vectors.T
        return [[row[level] for level in self.levels] for row in every]

    def similarity(self, z: Floats, codes: NDArray[np.uint16]) -> Floats:
        """<z, sum of code vectors> of one query `z` (dim,) with items of these codes (n, levels)."""
        places = codes + np.array([level.start for level in self.levels])  # int64
        if places.size < len(self.vectors):  # few items: read their code vectors only
            products = np.vecdot(self.vectors.take(places.ravel(), axis=0), z)  # equal codes, equal scores
            return np.asarray(products.reshape(places.shape).sum(1))
        return np.asarray((self.vectors @ z).take(places).sum(1))

    def cosine(self, z: Floats, codes: NDArray[np.uint16]) -> Floats:
        """Cosine of one unit query `z` (dim,) with the sums of code vectors of items, codes (n, levels).

        A sum that misses much of its item is short; its direction is still the best guess of the item's.
        """
        return self.scaled(self.similarity(z, codes), codes)

    def scaled(self, similar: Floats, codes: NDArray[np.uint16]) -> Floats:
        """The same from the products with z, (n,), where they are known."""
        return np.asarray(similar / np.maximum(self.lengths(codes), np.float32(1e-6)))

    def lengths(self, codes: NDArray[np.uint16]) -> Floats:
        """Length of the sum of code vectors of each item, (n,): nothing about it has to be stored."""
        if len(self.vectors) > GRAM_CODES or len(self.sizes) < 3:
            places = codes + np.array([level.start for level in self.levels])
            chunks = np.array_split(places, 1 + len(places) // 1024)
            return np.concatenate([np.linalg.norm(self.vectors[part].sum(1), axis=1) for part in chunks])
        joint = np.empty((len(self.sizes) - 1, len(codes)), dtype=np.int64)
        joint[0] = codes[:, 0] * np.int64(self.sizes[1]) + codes[:, 1]  # both codes as one
        joint[1:] = codes[:, 2:].T
        tables, one, other, first, size = self.pairs
        places = joint.take(one, axis=0)
        places *= size
        places += joint.take(other, axis=0)
        places += first
        squared = tables.take(places).sum(0)  # |sum|^2 is a sum of products of pairs of code vectors
        return np.asarray(np.sqrt(np.maximum(squared, 0)))

    @cached_property
    def pairs(self) -> tuple[Floats, Ints, Ints, Ints, Ints]:
        """For each two levels and each two codes what they add to |sum|^2; levels 0 and 1 count as one.

        That is twice the product of the two code vectors, and a share of their own squares. Returns all
        tables one after the other, the two levels of each, where it begins and the width of its rows; the
        last two as columns.
        """
        books = [self.vectors[level] for level in self.levels]
        books = [(books[0][:, None] + books[1][None]).reshape(-1, self.dim), *books[2:]]
        squares = [np.vecdot(book, book) / (len(books) - 1) for book in books]
        both = list(combinations(range(len(books)), 2))
        tables = [2 * (books[a] @ books[b].T) + squares[a][:, None] + squares[b] for a, b in both]
        one, other = np.array(both).T
        first = np.cumsum([0, *(table.size for table in tables[:-1])])[:, None]
        sizes = np.array([table.shape[1] for table in tables])[:, None]
        return np.concatenate([table.ravel() for table in tables]), one, other, first, sizes


def lookup(
    trie: Trie,
    tables: Sequence[Floats],
    beam: int,
    *,
    leaves: int | None = None,
    stop: int | None = None,
    modalities: Bools | None = None,
    allowed: Filter | None = None,
) -> Leaves:
    """Leaves of one query, scored by its `tables` (one row of `Tables.of`).

    The beam keeps `beam` prefixes a level. It ends after `stop` levels (level 0 counts) or, by default, as
    soon as it holds no more than `leaves` items (32 per beam), and then scores all of them. `modalities` is a
    mask over the codes of level 0, `allowed` a filter of the trie's items.
    """
    most = 32 * beam if leaves is None else leaves
    nodes, scores, ended = _start(trie, tables, beam, stop, most, modalities, allowed)
    for level in range(nodes.level, len(trie.sizes)):
        ended = ended or (level == stop if stop is not None else _items(nodes, allowed).sum() <= most)
        if ended and level >= trie.tree_levels:
            break  # inside the tree the leaves' codes are known from the nodes: go on, but keep them all
        may = None if allowed is None else partial(_may, trie, allowed, level)
        best = None
        if not ended and level <= trie.tree_levels:
            best = trie.fans.best(level, nodes.node, scores, tables[level], beam, may)
        if best is not None:
            first, last, scores = best
            inside = level < trie.tree_levels
            nodes = trie.nodes(level + 1, first) if inside else Nodes(level + 1, first, last, first[:0])
            continue
        children = trie.children(nodes)
        total = np.repeat(scores, children.counts)
        if children.heads is not None:
            total = total[children.heads[:-1]]
        total += tables[level].take(children.code)
        kept = None if allowed is None else children.having(allowed)
        picked = kept if ended else top(total, beam, kept)
        nodes = children.take(slice(None) if picked is None else picked)
        scores = total if picked is None else total[picked]
    if stop is None:
        nodes, scores = _within(nodes, scores, most, allowed)
    return _score_leaves(trie, nodes, scores, tables, allowed)


def _start(
    trie: Trie,
    tables: Sequence[Floats],
    beam: int,
    stop: int | None,
    most: int,
    modalities: Bools | None,
    allowed: Filter | None,
) -> tuple[Nodes, Floats, bool]:
    """The first levels at once: all but the last have too few nodes for a beam to drop any.

    Returns the nodes, their scores, and whether so few items may be found that all of them are kept.
    """
    level = trie.fans.start(beam) if stop is None else min(trie.fans.start(beam), max(stop, 1))
    node, codes = trie.fans.paths(level)
    scores = tables[0].take(codes[0])
    for own, code in zip(tables[1:level], codes[1:], strict=True):
        scores += own.take(code)
    kept = None if allowed is None else np.flatnonzero(_found_under(trie, allowed, node))
    items = trie.items if allowed is None else allowed.items
    if modalities is not None:
        roots = trie.children(trie.root())
        items = int(_items(roots.take(modalities[roots.code]), allowed).sum())
        kept = np.flatnonzero(modalities[codes[0]]) if kept is None else kept[modalities[codes[0][kept]]]
    ended = items <= most if stop is None else stop < level
    picked = kept if ended else top(scores, beam, kept)
    if picked is None:
        return trie.nodes(level, node), scores, ended
    return trie.nodes(level, node[picked]), scores[picked], ended


def _found_under(trie: Trie, allowed: Filter, node: Ints) -> Bools:
    """Whether each node of the tree has an allowed item."""
    return np.asarray(allowed.before[trie.node_start[node + 1]] > allowed.before[trie.node_start[node]])


def _may(trie: Trie, allowed: Filter, level: int, first: Ints, last: Ints) -> Bools:
    """Whether children one code longer than `level` have an allowed item."""
    if level < trie.tree_levels:
        return _found_under(trie, allowed, first)
    return np.asarray(allowed.before[last] > allowed.before[first])


def _items(nodes: Nodes, allowed: Filter | None) -> Ints:
    """How many items each node may contribute."""
    return nodes.end - nodes.start if allowed is None else allowed.count(nodes.start, nodes.end)


def _within(nodes: Nodes, scores: Floats, most: int, allowed: Filter | None) -> tuple[Nodes, Floats]:
    """The best nodes, as many as it takes to have `most` items."""
    count = _items(nodes, allowed)
    if count.sum() <= most:
        return nodes, scores
    order = np.argsort(-scores, kind="stable")
    before = np.cumsum(count[order]) - count[order]
    kept = np.sort(order[before < most])
    return Nodes(nodes.level, nodes.start[kept], nodes.end[kept], nodes.node[:0]), scores[kept]


def _score_leaves(
    trie: Trie, nodes: Nodes, scores: Floats, tables: Sequence[Floats], allowed: Filter | None
) -> Leaves:
    """Every item under the nodes, with the rest of its codes added to the node's score."""
    counts = nodes.end - nodes.start
    positions = ragged(nodes.start, counts)
    total = np.repeat(scores, counts)
    if allowed is not None:
        kept = allowed.mask[positions]
        positions, total = positions[kept], total[kept]
    records = trie.records.take(positions, axis=0)
    for level in range(nodes.level, len(trie.sizes)):
        total += tables[level].take(trie.layout.code(records, level - trie.tree_levels))
    return Leaves(positions, total, len(nodes))
