"""Metrics of ranked lists, one number per query: hit@k, recall@k, MRR, nDCG.

The "Recall@k" of M-BEIR and of the paper is a hit rate: 1 when any relevant item is among the first k.
It is called hit@k here; recall@k is the share of the relevant items that were found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadInput
from genius.hit_rate import hits

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NO_ITEM = -1  # pads a ranked list that is shorter than the others
FOREIGN = 1 << 40  # items of a list that the pool lacks count from here: far behind those of `Qrels`


@dataclass(frozen=True, slots=True)
class Qrels:
    """Relevance judgements: one (query, item, gain) per entry, sorted by query, then item.

    `queries` counts all queries, also those without an entry. Items are rows of the pool; relevant items
    that the pool lacks have numbers from the pool's size on. Gains are > 0.
    """

    queries: int
    query: Ints  # (entries,)
    item: Ints  # (entries,)
    gain: Floats  # (entries,)

    @classmethod
    def of(cls, gains: Sequence[Mapping[int, float]]) -> Qrels:
        """Qrels from one {item: gain} per query; gains of 0 and less are left out."""
        entries = sorted((q, item, g) for q, row in enumerate(gains) for item, g in row.items() if g > 0)
        if any(item < 0 for _, item, _ in entries):
            raise BadInput("a judged item has a negative number: number the items from 0")
        columns = np.array(entries, dtype=np.float64).reshape(-1, 3).T
        return cls(len(gains), columns[0].astype(np.int64), columns[1].astype(np.int64), columns[2].copy())

    @classmethod
    def concat(cls, parts: Sequence[Qrels]) -> Qrels:
        """The qrels of several sets of queries on the same items, one set after the other."""
        firsts = np.cumsum([0, *(part.queries for part in parts)])
        return cls(
            int(firsts[-1]),
            np.concatenate([part.query + first for part, first in zip(parts, firsts[:-1], strict=True)]),
            np.concatenate([part.item for part in parts]),
            np.concatenate([part.gain for part in parts]),
        )

    def relevant(self) -> Ints:
        """Number of relevant items of each query, (queries,)."""
        return np.bincount(self.query, minlength=self.queries).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Graded:
    """Ranked lists with the gain of each position; every metric is a method, one number per query.

    A query without any relevant item has 0 everywhere: leave it out of an average (`relevant > 0`).
    """

    gains: Floats  # (queries, depth); 0 where the position is empty or the item is not relevant
    relevant: Ints  # (queries,)
    ideal: Floats  # (queries, widest); each query's gains, highest first, then zeros

    def hit(self, k: int) -> Floats:
        """1.0 where any of the first k is relevant: the "Recall@k" of the paper, (queries,)."""
        return hits(self.gains > 0, k).astype(np.float64)

    def recall(self, k: int) -> Floats:
        """Share of the relevant items that are among the first k, (queries,)."""
        found = (self.gains[:, : _checked(k)] > 0).sum(axis=1)
        return np.asarray(found / np.maximum(self.relevant, 1), dtype=np.float64)

    def reciprocal_rank(self) -> Floats:
        """1 / rank of the first relevant item, 0 where there is none, (queries,); its mean is the MRR."""
        relevant = self.gains > 0
        first = relevant.argmax(axis=1) if relevant.shape[1] else np.zeros(len(relevant), dtype=np.int64)
        return np.where(relevant.any(axis=1), 1.0 / (first + 1.0), 0.0)

    def ndcg(self, k: int) -> Floats:
        """Discounted gain of the first k over that of the best possible list, (queries,)."""
        best = _discounted(self.ideal, _checked(k))
        return np.divide(_discounted(self.gains, k), best, out=np.zeros_like(best), where=best > 0)


def grade(ranked: NDArray[np.integer], qrels: Qrels) -> Graded:
    """The lists `ranked` (queries, depth), best first, with the gains of `qrels`.

    A short list is padded with NO_ITEM. Refused: an item twice in one list (it would count twice), and an
    item behind padding.
    """
    if ranked.ndim != 2 or len(ranked) != qrels.queries:
        raise BadInput(f"{qrels.queries} judged queries, but ranked lists of shape {ranked.shape}")
    lists = ranked.astype(np.int64, copy=False)
    _check_lists(lists)
    return Graded(_gains(lists, qrels), qrels.relevant(), _ideal(qrels))


def _gains(ranked: Ints, qrels: Qrels) -> Floats:
    """Gain of every position of every list, (queries, depth), by search in the sorted (query, item) keys."""
    if not len(qrels.item) or not ranked.size:
        return np.zeros(ranked.shape)
    base = int(max(ranked.max(), qrels.item.max())) + 1
    judged = qrels.query * base + qrels.item
    wanted = np.arange(len(ranked), dtype=np.int64)[:, None] * base + ranked
    position = np.minimum(np.searchsorted(judged, wanted), len(judged) - 1)
    return np.where((judged[position] == wanted) & (ranked != NO_ITEM), qrels.gain[position], 0.0)


def _ideal(qrels: Qrels) -> Floats:
    """Gains of each query, highest first, (queries, most relevant items of any query)."""
    counts = qrels.relevant()
    order = np.lexsort((-qrels.gain, qrels.query))
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]) if len(counts) else counts
    position = np.arange(len(order)) - np.repeat(starts, counts)
    ideal = np.zeros((qrels.queries, int(counts.max(initial=0))))
    ideal[qrels.query[order], position] = qrels.gain[order]
    return ideal


def _discounted(gains: Floats, k: int) -> Floats:
    """Sum of gain / log2(rank + 1) over the first k positions, (queries,)."""
    first = gains[:, :k]
    return np.asarray(first @ (1.0 / np.log2(np.arange(first.shape[1]) + 2.0)), dtype=np.float64)


def _checked(k: int) -> int:
    if k < 1:
        raise BadInput(f"k is {k}: it has to be 1 or more")
    return k


def _check_lists(ranked: Ints) -> None:
    if (ranked < NO_ITEM).any():
        raise BadInput("a ranked list names an item below -1: -1 alone means padding")
    padding = ranked == NO_ITEM
    if (padding[:, :-1] & ~padding[:, 1:]).any():
        raise BadInput("a ranked list has an item behind padding: move the padding to its end")
    ordered = np.sort(ranked, axis=1)
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NO_ITEM)).any(axis=1)
    if twice.any():
        raise BadInput(f"ranked list {int(twice.argmax())} holds an item twice: a system may return it once")
