"""How good ranked lists are: hit@k, recall@k, MRR and nDCG, one number per query, in NumPy.

The "Recall@k" of M-BEIR and of the paper is a hit rate: 1 when any relevant item is among the first k.
It is called hit@k here; recall@k is the share of the relevant items that were found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadInput

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NOTHING = -1  # fills the end of a ranked list that is shorter than the others


@dataclass(frozen=True, slots=True)
class Judgements:
    """Which items are relevant to which query: one (query, item, gain) per entry, sorted by query, then item.

    `queries` counts all queries, also those without an entry. Items are numbers >= 0: rows of the pool,
    and numbers from the pool's size on for relevant items that the pool lacks (nothing can find those).
    Gains are > 0; a judgement of 0 means not relevant and is no entry.
    """

    queries: int
    query: Ints  # (entries,)
    item: Ints  # (entries,)
    gain: Floats  # (entries,)

    @classmethod
    def of(cls, gains: Sequence[Mapping[int, float]]) -> Judgements:
        """Judgements from one {item: gain} per query; gains of 0 and less are left out."""
        entries = sorted((q, item, g) for q, row in enumerate(gains) for item, g in row.items() if g > 0)
        if any(item < 0 for _, item, _ in entries):
            raise BadInput("a judged item has a negative number: number the items from 0")
        columns = np.array(entries, dtype=np.float64).reshape(-1, 3).T
        return cls(len(gains), columns[0].astype(np.int64), columns[1].astype(np.int64), columns[2].copy())

    def relevant(self) -> Ints:
        """Number of relevant items of each query, (queries,)."""
        return np.bincount(self.query, minlength=self.queries).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Judged:
    """Ranked lists with the gain of each place filled in; every metric is a method, one number per query.

    A query without any relevant item has 0 everywhere: it says nothing about a system, so leave it out of
    an average (`relevant > 0`) and say how many there were.
    """

    gains: Floats  # (queries, depth); 0 where the place is empty or the item is not relevant
    relevant: Ints  # (queries,)
    ideal: Floats  # (queries, widest); each query's gains, highest first, then zeros

    def hit(self, k: int) -> Floats:
        """1.0 where any of the first k is relevant: the "Recall@k" of the paper, (queries,)."""
        return np.asarray(self._first(k).any(axis=1), dtype=np.float64)

    def recall(self, k: int) -> Floats:
        """Share of the relevant items that are among the first k, (queries,)."""
        found = self._first(k).sum(axis=1)
        return np.asarray(found / np.maximum(self.relevant, 1), dtype=np.float64)

    def reciprocal_rank(self) -> Floats:
        """1 / place of the first relevant item, 0 where there is none, (queries,); its mean is the MRR."""
        relevant = self.gains > 0
        first = relevant.argmax(axis=1) if relevant.shape[1] else np.zeros(len(relevant), dtype=np.int64)
        return np.where(relevant.any(axis=1), 1.0 / (first + 1.0), 0.0)

    def ndcg(self, k: int) -> Floats:
        """Discounted gain of the first k over that of the best possible list, (queries,)."""
        best = _discounted(self.ideal, _checked(k))
        return np.divide(_discounted(self.gains, k), best, out=np.zeros_like(best), where=best > 0)

    def _first(self, k: int) -> NDArray[np.bool_]:
        return self.gains[:, : _checked(k)] > 0


def judge(ranked: NDArray[np.integer], judgements: Judgements) -> Judged:
    """The lists `ranked` (queries, depth), best first, set against `judgements`.

    A short list ends in NOTHING. Refused: an item twice in one list (it would be counted twice), and a place
    that is filled after an empty one.
    """
    if ranked.ndim != 2 or len(ranked) != judgements.queries:
        raise BadInput(f"{judgements.queries} judged queries, but ranked lists of shape {ranked.shape}")
    lists = ranked.astype(np.int64, copy=False)
    _refuse_wrong_lists(lists)
    gains = _gains(lists, judgements)
    return Judged(gains, judgements.relevant(), _ideal(judgements))


def stacked(parts: Sequence[Judgements]) -> Judgements:
    """The judgements of several sets of queries on the same items, one set after the other."""
    firsts = np.cumsum([0, *(part.queries for part in parts)])
    return Judgements(
        int(firsts[-1]),
        np.concatenate([part.query + first for part, first in zip(parts, firsts[:-1], strict=True)]),
        np.concatenate([part.item for part in parts]),
        np.concatenate([part.gain for part in parts]),
    )


def _gains(ranked: Ints, judgements: Judgements) -> Floats:
    """Gain of every place of every list, (queries, depth), by one search in the sorted (query, item) keys."""
    if not len(judgements.item) or not ranked.size:
        return np.zeros(ranked.shape)
    base = int(max(ranked.max(), judgements.item.max())) + 1
    known = judgements.query * base + judgements.item
    asked = np.arange(len(ranked), dtype=np.int64)[:, None] * base + ranked
    place = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    return np.where((known[place] == asked) & (ranked != NOTHING), judgements.gain[place], 0.0)


def _ideal(judgements: Judgements) -> Floats:
    """Gains of each query, highest first, (queries, most relevant items of any query)."""
    counts = judgements.relevant()
    order = np.lexsort((-judgements.gain, judgements.query))
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]) if len(counts) else counts
    place = np.arange(len(order)) - np.repeat(starts, counts)
    ideal = np.zeros((judgements.queries, int(counts.max(initial=0))))
    ideal[judgements.query[order], place] = judgements.gain[order]
    return ideal


def _discounted(gains: Floats, k: int) -> Floats:
    """Sum of gain / log2(place + 1) over the first k places, (queries,)."""
    first = gains[:, :k]
    return np.asarray(first @ (1.0 / np.log2(np.arange(first.shape[1]) + 2.0)), dtype=np.float64)


def _checked(k: int) -> int:
    if k < 1:
        raise BadInput(f"k is {k}: it has to be 1 or more")
    return k


def _refuse_wrong_lists(ranked: Ints) -> None:
    if (ranked < NOTHING).any():
        raise BadInput("a ranked list names an item below -1: -1 alone means an empty place")
    empty = ranked == NOTHING
    if (empty[:, :-1] & ~empty[:, 1:]).any():
        raise BadInput("a ranked list goes on after an empty place: move the empty places to its end")
    ordered = np.sort(ranked, axis=1)
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NOTHING)).any(axis=1)
    if twice.any():
        raise BadInput(
            f"ranked list {int(twice.argmax())} holds an item twice: a system may return it once only"
        )
