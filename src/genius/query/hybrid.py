"""One ranking by vectors and by words together.

An item that has words of the query ranks as if it were more similar than its vector says, by so many standard
deviations of the similarities with a sample of the items:

    3 s + 16 s^4,   s from 0 to 1 its score by words

so some of the words decide between items of about the same similarity, and an item that has all of them (a
product number, the name of a file) comes first. The weights were chosen on validation data
(benchmarks/words.py). Only the second term makes an answer more sure: with the first one, confidence was far
above the share of right answers. The score of a hit remains the similarity of the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from genius.query.comparing import Similarities, compare
from genius.query.embedding import EmbeddedSubquery
from genius.query.filtered import FilteredPool
from genius.query.view import PoolView
from genius.query.words import WordMatches
from genius.search.codebooks import Codebooks
from genius.search.rank import RankedItems
from genius.search.trie import Ints
from genius.store.records import MODALITIES

LEAST_DEVIATION = 0.02  # of similarities that are all alike


class WordWeights(NamedTuple):
    """Standard deviations that a full match counts: in proportion to the score, and for all words."""

    share: float = 3.0
    full: float = 16.0


WEIGHTS = WordWeights()


def rank_with_words(
    view: PoolView,
    codebooks: Codebooks,
    query: EmbeddedSubquery,
    found: RankedItems,
    words: WordMatches,
    k: int,
    pool: FilteredPool | None,
    weights: WordWeights = WEIGHTS,
    least: float = LEAST_DEVIATION,
) -> tuple[RankedItems, Similarities]:
    """The ranking `found` by vectors, with the items that have words of the query, and their similarities.

    The order is that of both together, the scores are the similarities.
    `least` is the least standard deviation that counts: a modality of a few items has hardly any of its own.
    """
    scores = dict(zip(words.rows.tolist(), words.scores.tolist(), strict=True))
    matching = _allowed(view, words.rows, query, pool)
    if not len(matching):
        return found, compare(view, codebooks, query, found)
    matching = view.with_passages(matching)
    more = matching[~np.isin(matching, found.rows)]
    ordinals = np.concatenate([found.rows, more])
    codes = np.concatenate([found.codes, view.codes(more)])
    every = RankedItems(ordinals, np.zeros(len(ordinals), np.float32), codes, found.beams, found.leaves)
    compared = compare(view, codebooks, query, every)
    deviation = max(_deviation(compared), least)
    by_words = np.array([scores.get(row, 0.0) for row in view.items_of(ordinals).tolist()], dtype=np.float32)
    sure = compared.similar + np.float32(deviation * weights.full) * by_words**4
    with_words = sure + np.float32(deviation * weights.share) * by_words
    order = np.lexsort((ordinals, *codes.T[::-1], -with_words))
    order = order[best_passages(view, ordinals[order])][:k]
    similar = compared.similar[order]
    best = RankedItems(ordinals[order], similar, codes[order], found.beams, found.leaves)
    return best, compared._replace(similar=similar, with_words=with_words[order], sure=sure[order])


def best_passages(view: PoolView, ordinals: Ints) -> Ints:
    """Places of the first ordinal of every item, in a ranking of passages."""
    if not view.has_passages:
        return np.arange(len(ordinals))
    _, first = np.unique(view.items_of(ordinals), return_index=True)
    return np.sort(first)


def rank_all_with_words(
    view: PoolView,
    codebooks: Codebooks,
    several: Sequence[EmbeddedSubquery],
    found: Sequence[RankedItems],
    words: WordMatches,
    k: int,
    pool: FilteredPool | None,
) -> tuple[list[RankedItems], list[Similarities]]:
    """The same for all sub-queries of a query, on one scale."""
    pairs = list(zip(several, found, strict=True))
    least = max([LEAST_DEVIATION, *(_deviation(compare(view, codebooks, *one)) for one in pairs)])
    both = [rank_with_words(view, codebooks, *one, words, k, pool, least=least) for one in pairs]
    return [one for one, _ in both], [similar for _, similar in both]


def _deviation(compared: Similarities) -> float:
    return float(compared.sample.std()) if len(compared.sample) else 0.0


def _allowed(view: PoolView, rows: Ints, query: EmbeddedSubquery, pool: FilteredPool | None) -> Ints:
    """Ordinals of those rows that the query may find."""
    gone = view.snapshot.gone
    place = np.searchsorted(gone, rows)
    removed = place < len(gone)
    removed[removed] = gone[place[removed]] == rows[removed]
    ordinals = view.ordinals(rows[~removed])
    modality = query.subquery.modality
    if modality is not None:
        ordinals = ordinals[view.modalities_of(ordinals) == MODALITIES.index(modality)]
    return ordinals if pool is None else ordinals[pool.mask[ordinals]]
