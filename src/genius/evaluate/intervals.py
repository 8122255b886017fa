"""Bootstrap intervals of means over queries, and which queries are drawn together.

Queries that share a picture or a relevant item are alike: captions of one photo are easy or hard together, in
every row that asks with it. They form a group, and groups are drawn, so an interval says what other photos
would give, not what other sentences about the same photos would.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from genius.errors import BadInput
from genius.evaluate.metrics import Floats, Ints

Interval = tuple[float, float]
Name = TypeVar("Name", bound=Hashable)

SAMPLES = 5000
LEVEL = 0.95  # confidence of an interval
DRAWN_AT_ONCE = 4_000_000  # numbers held in memory


def bootstrap(
    rows: Sequence[Floats],
    groups: Sequence[Ints] | None = None,
    *,
    level: float = LEVEL,
    samples: int = SAMPLES,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval of the plain mean over rows of their means.

    `groups` numbers the group of each query, across rows; without it every query is drawn alone. For the
    difference of two systems on the same queries pass the differences: the draw is then paired.
    """
    if not rows or any(len(row) == 0 for row in rows):
        raise BadInput("no queries to draw from: an interval needs at least one in each row")
    numbers = np.arange(sum(map(len, rows))) if groups is None else np.concatenate(groups)
    distinct, numbers = np.unique(numbers, return_inverse=True)
    places = np.split(numbers, np.cumsum([len(row) for row in rows])[:-1])
    sums = [np.bincount(place, row, len(distinct)) for place, row in zip(places, rows, strict=True)]
    counts = [np.bincount(place, minlength=len(distinct)) for place in places]
    means = _drawn_means(np.stack(sums, axis=1), np.stack(counts, axis=1), samples, seed)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _drawn_means(sums: Floats, counts: Ints, samples: int, seed: int) -> Floats:
    """Mean over rows in `samples` draws of groups, from sums and counts (groups, rows).

    A draw with replacement is a multinomial draw of how often each distinct kind of group comes up; there are
    far fewer kinds than groups. A row that a draw leaves empty keeps its own mean.
    """
    rows = sums.shape[1]
    kinds, times = np.unique(np.concatenate([sums, counts], axis=1), axis=0, return_counts=True)
    plain = sums.sum(axis=0) / counts.sum(axis=0)
    generator = np.random.default_rng(seed)
    means = []
    at_once = max(1, DRAWN_AT_ONCE // len(kinds))
    for start in range(0, samples, at_once):
        size = min(at_once, samples - start)
        drawn = generator.multinomial(len(sums), times / len(sums), size=size) @ kinds
        total, count = drawn[:, :rows], drawn[:, rows:]
        each = np.divide(total, count, out=np.broadcast_to(plain, total.shape).copy(), where=count > 0)
        means.append(each.mean(axis=1))
    return np.concatenate(means)


def group_queries(links: Mapping[Name, Sequence[Collection[Hashable]]]) -> dict[Name, Ints]:
    """The group of each query of each row; `links` has what each query is about: pictures, relevant items.

    Queries with a link in common are in one group, and so are those that a chain of such queries joins.
    """
    parent: dict[Hashable, Hashable] = {}

    def root(node: Hashable) -> Hashable:
        while (above := parent.setdefault(node, node)) != node:
            parent[node] = parent[above]
            node = above
        return node

    firsts: dict[Name, list[Hashable]] = {}
    for row, queries in links.items():
        firsts[row] = []
        for number, linked in enumerate(queries):
            nodes = [("query", row, number), *(("link", link) for link in linked)]
            firsts[row].append(nodes[0])
            for node in nodes[1:]:
                parent[root(node)] = root(nodes[0])
    numbers: dict[Hashable, int] = {}
    return {
        row: np.array([numbers.setdefault(root(node), len(numbers)) for node in nodes], dtype=np.int64)
        for row, nodes in firsts.items()
    }
