"""The best children of many prefixes without a look at all of them.

A prefix of the first levels has nearly every code of the next level as a child, so a beam of 200 has tens of
thousands of children, of which 200 are kept. Their scores are sums, score of the prefix + score of the code:
with both sorted, a sum at (i, j) has (i + 1)(j + 1) - 1 others at least as large before it. The sums near the
two axes, (i + 1)(j + 1) <= 1.25 * beam, give a bar that `beam` children reach; whatever reaches it is then
found by bisection. The children are exactly those that a look at all of them would pick.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.search.leaves import Floats, Ints, top

if TYPE_CHECKING:
    from genius.search.trie import Trie

Bools = NDArray[np.bool_]
AT_START = 1 << 14  # nodes that are scored all at once, to begin with
NODES_AT_ONCE = 4096
WORTH = 8  # times the beam: with fewer children, all are looked at
MARGIN = np.float32(1e-6)  # of the larger magnitude: what rounding could hide from the bisection


class Fans:
    """For each level with large families a table of where the child for each code is; made when needed."""

    def __init__(self, trie: Trie) -> None:
        self.items, self.sizes = trie.items, trie.sizes
        self.node_code, self.node_start, self.node_first = trie.node_code, trie.node_start, trie.node_first
        self.levels = trie.levels.tolist()
        self.layout, self.records = trie.layout, trie.records
        self._tables: dict[int, NDArray[np.int32] | None] = {}
        self._starts: dict[int, tuple[Ints, Ints]] = {}

    def start(self, beam: int) -> int:
        """How many levels can be taken at once: those before the last have no more nodes than `beam`."""
        level = 1
        while (
            level < len(self.levels) - 2 and self._nodes(level) <= beam and self._nodes(level + 1) <= AT_START
        ):
            level += 1
        return level

    def paths(self, level: int) -> tuple[Ints, Ints]:
        """Nodes of `level` codes: their numbers (n,), and their codes (level, n)."""
        if level not in self._starts:
            first, last = self.levels[level], self.levels[level + 1] - 1
            own = np.arange(first, last)
            codes = [self.node_code[own].astype(np.int64)]
            parent = own
            for above in range(level - 1, 0, -1):
                first, last = self.levels[above], self.levels[above + 1] - 1
                parent = first - 1 + np.searchsorted(self.node_first[first:last], parent, "right")
                codes.append(self.node_code[parent].astype(np.int64))
            self._starts[level] = own, np.stack(codes[::-1])
        return self._starts[level]

    def best(
        self,
        level: int,
        node: Ints,
        scores: Floats,
        table: Floats,
        beam: int,
        among: Callable[[Any, Any], Bools] | None,
    ) -> tuple[Ints, Ints, Floats] | None:
        """The `beam` best children of nodes with `level` codes: first, one past the last, scores; rising.

        First and last are numbers of nodes in the tree, positions below it. `table` has the score of each
        code; `among` says which children may be taken. None: a look at all children is as quick, or there is
        no table.
        """
        few = len(node) * self._family(level) < WORTH * beam
        children = None if few or not len(node) else self._table(level)
        if children is None:
            return None
        size = len(table)
        order = np.argsort(-table)
        falling = table.take(order)
        base = (node - self.levels[level]) * (size + 1)
        row, column = near_the_axes(len(node), size, 1.25 * beam)
        if len(row) <= beam:
            return None
        row = np.argsort(-scores).take(row)
        sums = scores.take(row) + falling.take(column)
        _, _, there = _find(children, base.take(row) + order.take(column), among)
        sums[~there] = -np.inf
        sums.partition(len(sums) - beam)
        bar = sums[len(sums) - beam]
        if bar == -np.inf:
            return None
        reach = np.searchsorted(-falling, scores - bar + MARGIN * (np.abs(scores) + abs(bar)), "right")
        after = np.cumsum(reach)
        parent = np.repeat(np.arange(len(node)), reach)
        code = order.take(np.arange(int(after[-1])) - np.repeat(after - reach, reach))
        first, last, there = _find(children, base.take(parent) + code, among)
        total = scores.take(parent) + table.take(code)
        kept = np.flatnonzero(there & (total >= bar))
        kept = kept[np.argsort(first[kept])]
        kept = kept[top(total[kept], beam)]
        return first[kept].astype(np.int64), last[kept].astype(np.int64), total[kept]

    def _nodes(self, level: int) -> int:
        return int(self.levels[level + 1] - self.levels[level] - 1)

    def _family(self, level: int) -> float:
        """Children of a node with `level` codes, on average; at the edge of the tree, at most so many."""
        if level > len(self.levels) - 2 or level >= len(self.sizes):
            return 0.0
        below = level == len(self.levels) - 2
        most = min(self.items, self._nodes(level) * self.sizes[level]) if below else self._nodes(level + 1)
        return most / max(1, self._nodes(level))

    def _table(self, level: int) -> NDArray[np.int32] | None:
        """For each node with `level` codes and each code where the children from that code on begin; flat.

        A row has one place more than there are codes: a child ends where the next one begins.
        """
        if level not in self._tables:
            cells = self._nodes(level) * self.sizes[level]
            # at most 4 bytes per item, and an eighth of it is children
            worth = cells <= max(self.items, 1 << 14) and 8 * self._family(level) >= self.sizes[level]
            self._tables[level] = self._made(level) if worth else None
        return self._tables[level]

    def _made(self, level: int) -> NDArray[np.int32]:
        first, last, width = self.levels[level], self.levels[level + 1] - 1, self.sizes[level] + 1
        table = np.zeros((last - first) * width, dtype=np.int32)
        edge = level == len(self.levels) - 2
        begin = (self.node_start if edge else self.node_first)[first : last + 1].astype(np.int64)
        for start in range(0, last - first, NODES_AT_ONCE):
            stop = min(start + NODES_AT_ONCE, last - first)
            span = slice(int(begin[start]), int(begin[stop]))
            code = self.layout.code(self.records[span], 0) if edge else self.node_code[span]
            parent = np.repeat(np.arange(stop - start), np.diff(begin[start : stop + 1]))
            held = np.bincount(parent * width + code + 1, minlength=(stop - start) * width)
            held[0] += span.start  # the last place of a row has no code of its own, so rows join up
            table[start * width : stop * width] = np.cumsum(held)
        return table


def _find(
    children: NDArray[np.int32], place: Ints, among: Callable[[Any, Any], Bools] | None
) -> tuple[NDArray[Any], NDArray[Any], Bools]:
    """Where the children at these places of a table begin and end, and which of them there are."""
    first, last = children.take(place), children.take(place + 1)
    there = last > first
    if among is not None:  # only children that exist can be asked: past the last one there is no node
        there[there] = among(first[there], last[there])
    return first, last, there


@lru_cache(64)
def near_the_axes(rows: int, columns: int, most: float) -> tuple[Ints, Ints]:
    """The places (i, j) with (i + 1)(j + 1) <= most, row by row."""
    product = np.arange(1, rows + 1)[:, None] * np.arange(1, columns + 1)
    i, j = np.nonzero(product <= most)
    return i, j
