"""The best children of many prefixes without listing all children.

A prefix of the first levels has nearly every code of the next level as a child, so a beam of 200 has tens of
thousands of children, of which 200 are kept. Their scores are sums, score of the prefix + score of the code:
with both sorted in descending order, the sum at (i, j) has at least (i + 1)(j + 1) - 1 others before it that
are as large. The sums with (i + 1)(j + 1) <= 1.25 * beam give a threshold that `beam` children reach; all
children that reach it are then found by bisection. The result equals that of a look at all children.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.search.arrays import Bools, Floats, Ints, top_k

if TYPE_CHECKING:
    from genius.search.trie.trie import Trie

START_NODES = 1 << 14  # most nodes of a level that a search can start from
NODES_AT_ONCE = 4096
MIN_CHILDREN_PER_BEAM = 8  # with fewer children, listing them all is as fast
ROUNDING = np.float32(1e-6)  # of the larger magnitude: what rounding could hide from the bisection


class ChildTables:
    """For each level whose prefixes have many children, a table of where the child of each code begins.

    Tables are built when first needed. They hold the trie's arrays, not the trie.
    """

    def __init__(self, trie: Trie) -> None:
        self.items, self.sizes = trie.items, trie.sizes
        self.node_code, self.node_start, self.node_first = trie.node_code, trie.node_start, trie.node_first
        self.levels = trie.levels.tolist()
        self.layout, self.records = trie.layout, trie.records
        self._tables: dict[int, NDArray[np.int32] | None] = {}
        self._prefixes: dict[int, tuple[Ints, Ints]] = {}

    def start_level(self, beam: int) -> int:
        """How many levels a beam search can skip: all but the last of them have no more nodes than `beam`."""
        level = 1
        while (
            level < len(self.levels) - 2
            and self._nodes(level) <= beam
            and self._nodes(level + 1) <= START_NODES
        ):
            level += 1
        return level

    def prefixes(self, level: int) -> tuple[Ints, Ints]:
        """All prefixes of `level` codes: their node numbers (n,), and their codes (level, n)."""
        if level not in self._prefixes:
            first, last = self.levels[level], self.levels[level + 1] - 1
            nodes = np.arange(first, last)
            codes = [self.node_code[nodes].astype(np.int64)]
            parent = nodes
            for above in range(level - 1, 0, -1):
                first, last = self.levels[above], self.levels[above + 1] - 1
                parent = first - 1 + np.searchsorted(self.node_first[first:last], parent, "right")
                codes.append(self.node_code[parent].astype(np.int64))
            self._prefixes[level] = nodes, np.stack(codes[::-1])
        return self._prefixes[level]

    def best_children(
        self,
        level: int,
        node: Ints,
        scores: Floats,
        table: Floats,
        beam: int,
        is_allowed: Callable[[Any, Any], Bools] | None,
    ) -> tuple[Ints, Ints, Floats] | None:
        """The `beam` best children of nodes with `level` codes: first, one past the last, scores; ascending.

        First and last are node numbers in the tree, positions below it. `table` has the score of each code;
        `is_allowed` says which children can be taken. None: use `Trie.children`, because it is as fast or
        this level has no table.
        """
        few = len(node) * self._mean_children(level) < MIN_CHILDREN_PER_BEAM * beam
        children = None if few or not len(node) else self._table(level)
        if children is None:
            return None
        size = len(table)
        order = np.argsort(-table)
        descending = table.take(order)
        base = (node - self.levels[level]) * (size + 1)
        row, column = cells_below_hyperbola(len(node), size, 1.25 * beam)
        if len(row) <= beam:
            return None
        row = np.argsort(-scores).take(row)
        sums = scores.take(row) + descending.take(column)
        _, _, exists = _find(children, base.take(row) + order.take(column), is_allowed)
        sums[~exists] = -np.inf
        sums.partition(len(sums) - beam)
        threshold = sums[len(sums) - beam]
        if threshold == -np.inf:
            return None
        slack = ROUNDING * (np.abs(scores) + abs(threshold))
        reach = np.searchsorted(-descending, scores - threshold + slack, "right")
        after = np.cumsum(reach)
        parent = np.repeat(np.arange(len(node)), reach)
        code = order.take(np.arange(int(after[-1])) - np.repeat(after - reach, reach))
        first, last, exists = _find(children, base.take(parent) + code, is_allowed)
        total = scores.take(parent) + table.take(code)
        kept = np.flatnonzero(exists & (total >= threshold))
        kept = kept[np.argsort(first[kept])]
        kept = kept[top_k(total[kept], beam)]
        return first[kept].astype(np.int64), last[kept].astype(np.int64), total[kept]

    def _nodes(self, level: int) -> int:
        return int(self.levels[level + 1] - self.levels[level] - 1)

    def _mean_children(self, level: int) -> float:
        """Children of a node with `level` codes, on average; at the last level of the tree an upper bound."""
        if level > len(self.levels) - 2 or level >= len(self.sizes):
            return 0.0
        last = level == len(self.levels) - 2
        children = min(self.items, self._nodes(level) * self.sizes[level]) if last else self._nodes(level + 1)
        return children / max(1, self._nodes(level))

    def _table(self, level: int) -> NDArray[np.int32] | None:
        """Flat: for each node with `level` codes and each code, where the children from that code on begin.

        A row has one entry more than there are codes: a child ends where the next one begins. None if the
        table would be larger than 4 bytes per item, or less than an eighth of its cells were children.
        """
        if level not in self._tables:
            cells = self._nodes(level) * self.sizes[level]
            dense = 8 * self._mean_children(level) >= self.sizes[level]
            small = cells <= max(self.items, 1 << 14)
            self._tables[level] = self._built(level) if small and dense else None
        return self._tables[level]

    def _built(self, level: int) -> NDArray[np.int32]:
        first, last, width = self.levels[level], self.levels[level + 1] - 1, self.sizes[level] + 1
        table = np.zeros((last - first) * width, dtype=np.int32)
        below_tree = level == len(self.levels) - 2
        begin = (self.node_start if below_tree else self.node_first)[first : last + 1].astype(np.int64)
        for start in range(0, last - first, NODES_AT_ONCE):
            stop = min(start + NODES_AT_ONCE, last - first)
            span = slice(int(begin[start]), int(begin[stop]))
            code = self.layout.code(self.records[span], 0) if below_tree else self.node_code[span]
            parent = np.repeat(np.arange(stop - start), np.diff(begin[start : stop + 1]))
            counts = np.bincount(parent * width + code + 1, minlength=(stop - start) * width)
            counts[0] += span.start  # the last entry of a row counts no code, so one sum runs over all rows
            table[start * width : stop * width] = np.cumsum(counts)
        return table


def _find(
    children: NDArray[np.int32], cell: Ints, is_allowed: Callable[[Any, Any], Bools] | None
) -> tuple[NDArray[Any], NDArray[Any], Bools]:
    """Where the children in these cells of a table begin and end, and which exist (and are allowed)."""
    first, last = children.take(cell), children.take(cell + 1)
    exists = last > first
    if is_allowed is not None:  # asked about existing children only: past the last one there is no node
        exists[exists] = is_allowed(first[exists], last[exists])
    return first, last, exists


@lru_cache(64)
def cells_below_hyperbola(rows: int, columns: int, limit: float) -> tuple[Ints, Ints]:
    """The cells (i, j) with (i + 1)(j + 1) <= limit, row by row."""
    product = np.arange(1, rows + 1)[:, None] * np.arange(1, columns + 1)
    i, j = np.nonzero(product <= limit)
    return i, j
