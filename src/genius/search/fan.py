"""The best children of many prefixes without a look at all of them.

A prefix of the first levels has nearly every code of the next level as a child, so a beam of 200 has tens of
thousands of children, of which 200 are kept. Their scores are sums, score of the prefix + score of the code:
with both sorted, a sum at (i, j) has (i + 1)(j + 1) - 1 others at least as large before it. The sums near the
two axes, (i + 1)(j + 1) <= 1.25 * beam, give a bar that `beam` children reach; whatever reaches it is then
found by bisection. The children are exactly those that a look at all of them would pick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.search.leaves import Floats, Ints, top

Bools = NDArray[np.bool_]
AT_START = 1 << 14  # nodes that are scored all at once, to begin with
WORTH = 8  # times the beam: with fewer children, all are looked at
MARGIN = np.float32(1e-6)  # of the larger magnitude: what rounding could hide from the bisection


class Fans:
    """For each level with large families a table of the child for each code; made when first needed."""

    def __init__(
        self,
        items: int,
        sizes: Sequence[int],
        node_code: NDArray[Any],
        node_first: NDArray[np.int32],
        levels: Ints,
    ) -> None:
        self.items, self.sizes = items, sizes
        self.node_code, self.node_first, self.levels = node_code, node_first, levels.tolist()
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
        among: Callable[[Ints], Bools] | None,
    ) -> tuple[Ints, Floats] | None:
        """The `beam` best children of nodes with `level` codes: their numbers, rising, and scores.

        `table` has the score of each code; `among` says which children may be taken. None: a look at all
        children is as quick, or there is no table.
        """
        children = self._table(level) if level < len(self.levels) - 2 else None
        if children is None or len(node) * self._family(level) < WORTH * beam:
            return None
        size = len(table)
        order = np.argsort(-table)
        falling = table.take(order)
        base = (node - self.levels[level]) * size
        row, column = near_the_axes(len(node), size, 1.25 * beam)
        row = np.argsort(-scores).take(row)
        sums = scores.take(row) + falling.take(column)
        child = children.take(base.take(row) + order.take(column))
        sums[child == 0 if among is None else (child == 0) | ~among(child)] = -np.inf
        if len(sums) <= beam:
            return None
        sums.partition(len(sums) - beam)
        bar = sums[len(sums) - beam]
        if bar == -np.inf:
            return None
        reach = np.searchsorted(-falling, scores - bar + MARGIN * (np.abs(scores) + abs(bar)), "right")
        after = np.cumsum(reach)
        parent = np.repeat(np.arange(len(node)), reach)
        code = order.take(np.arange(int(after[-1])) - np.repeat(after - reach, reach))
        child = children.take(base.take(parent) + code)
        total = scores.take(parent) + table.take(code)
        kept = np.flatnonzero((child > 0) & (total >= bar))
        kept = kept[np.argsort(child[kept])]
        child, total = child[kept].astype(np.int64), total[kept]
        picked = top(total, beam, None if among is None else np.flatnonzero(among(child)))
        return child[picked], total[picked]

    def _nodes(self, level: int) -> int:
        return int(self.levels[level + 1] - self.levels[level] - 1)

    def _family(self, level: int) -> float:
        """Children of a node with `level` codes, on average."""
        return self._nodes(level + 1) / max(1, self._nodes(level))

    def _table(self, level: int) -> NDArray[np.int32] | None:
        """The child for each node with `level` codes and each code, 0 where there is none; flat."""
        if level not in self._tables:
            cells = self._nodes(level) * self.sizes[level]
            # at most a byte per item, and no larger than four times what is looked up in it
            worth = 4 * cells <= max(self.items, 1 << 16) and self._nodes(level + 1) * 8 >= cells
            self._tables[level] = self._made(level) if worth else None
        return self._tables[level]

    def _made(self, level: int) -> NDArray[np.int32]:
        first, last = self.levels[level], self.levels[level + 1] - 1
        begin = self.node_first[first : last + 1].astype(np.int64)
        child = np.arange(begin[0], begin[-1])
        parent = np.repeat(np.arange(last - first), np.diff(begin))
        table = np.zeros((last - first) * self.sizes[level], dtype=np.int32)
        table[parent * self.sizes[level] + self.node_code[child]] = child
        return table


@lru_cache(64)
def near_the_axes(rows: int, columns: int, most: float) -> tuple[Ints, Ints]:
    """The places (i, j) with (i + 1)(j + 1) <= most, row by row."""
    product = np.arange(1, rows + 1)[:, None] * np.arange(1, columns + 1)
    i, j = np.nonzero(product <= most)
    return i, j
