"""One ranking by vectors and by words together.

An item with words of the query ranks as if its similarity were larger than that of its vector. The
difference, in standard deviations of the similarities with a sample of the items, is

    s / 4 + 8 s^4,   where s, from 0 to 1, is its word score

A few matching words thus decide between items of similar similarity, and an item that has all of them (a
product number, the name of a file) comes first. The weights were chosen on validation data
(benchmarks/words.py). Only the second term raises the confidence: with the first one, confidence was far
above the share of right answers. The score of a hit remains the similarity of the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.confidence import mean_and_deviation
from genius.query.comparing import Floats, Similarities, sample_similarities, similarities
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
    """How many standard deviations a full match is worth: in proportion to the score, and for all words."""

    share: float = 0.25
    full: float = 8.0


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
) -> tuple[RankedItems, Similarities]:
    """The ranking `found` by vectors, with the items that have words of the query, and their similarities.

    The order is that of both together, the scores are the similarities.
    """
    sample = sample_similarities(view, codebooks, query)
    return _rank(view, codebooks, query, found, words, k, pool, weights, sample, _deviation([sample]))


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
    samples = [sample_similarities(view, codebooks, query) for query in several]
    deviation = _deviation(samples)
    both = [
        _rank(view, codebooks, query, own, words, k, pool, WEIGHTS, sample, deviation)
        for query, own, sample in zip(several, found, samples, strict=True)
    ]
    return [one for one, _ in both], [similar for _, similar in both]


def _rank(
    view: PoolView,
    codebooks: Codebooks,
    query: EmbeddedSubquery,
    found: RankedItems,
    words: WordMatches,
    k: int,
    pool: FilteredPool | None,
    weights: WordWeights,
    sample: Floats,
    deviation: float,
) -> tuple[RankedItems, Similarities]:
    """`rank_with_words` on the scale of this deviation."""
    matching = _allowed(view, words.rows, query, pool)
    if not len(matching):
        similar = similarities(view, codebooks, query, found.rows, found.codes)
        return found, Similarities(query.subquery, similar, sample)
    matching = view.with_passages(matching)
    more = matching[~_among(matching, np.sort(found.rows))]
    ordinals = np.concatenate([found.rows, more])
    by_words = _scores(words, view.items_of(ordinals))
    similar = similarities(view, codebooks, query, ordinals)
    sure = similar + np.float32(deviation * weights.full) * by_words**4
    with_words = sure + np.float32(deviation * weights.share) * by_words
    best = np.arange(len(ordinals))
    if len(best) > k and not view.has_passages:  # of several passages of an item, only one will be kept
        best = np.flatnonzero(with_words >= np.partition(with_words, -k)[-k])
    old, codes = best < len(found), np.empty((len(best), found.codes.shape[1]), np.uint16)
    codes[old], codes[~old] = found.codes[best[old]], view.codes(ordinals[best[~old]])
    order = np.lexsort((ordinals[best], *codes.T[::-1], -with_words[best]))
    order = order[best_passages(view, ordinals[best[order]])][:k]
    best, codes = best[order], codes[order]
    ranked = RankedItems(ordinals[best], similar[best], codes, found.beams, found.leaves)
    return ranked, Similarities(query.subquery, similar[best], sample, with_words[best], sure[best])


def best_passages(view: PoolView, ordinals: Ints) -> Ints:
    """Places of the first ordinal of every item, in a ranking of passages."""
    if not view.has_passages:
        return np.arange(len(ordinals))
    _, first = np.unique(view.items_of(ordinals), return_index=True)
    return np.sort(first)


def _deviation(samples: Sequence[Floats]) -> float:
    """The largest standard deviation of several samples: a few items have hardly any of their own."""
    return max([LEAST_DEVIATION, *(mean_and_deviation(sample)[1] for sample in samples if len(sample))])


def _scores(words: WordMatches, rows: Ints) -> Floats:
    """The scores of these rows by words; 0 for those that have none."""
    order = np.argsort(words.rows)
    place = order[np.minimum(np.searchsorted(words.rows, rows, sorter=order), len(order) - 1)]
    return np.where(words.rows[place] == rows, words.scores[place], np.float32(0))


def _among(values: Ints, known: Ints) -> NDArray[np.bool_]:
    """Which of the values are among the known ones, ascending; np.isin takes ten times as long for a few."""
    if not len(known):
        return np.zeros(len(values), dtype=bool)
    place = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.asarray(known[place] == values)


def _allowed(view: PoolView, rows: Ints, query: EmbeddedSubquery, pool: FilteredPool | None) -> Ints:
    """Ordinals of those rows that the query may find."""
    ordinals = view.ordinals(rows[~_among(rows, view.snapshot.gone)])
    modality = query.subquery.modality
    if modality is not None:
        ordinals = ordinals[view.modalities_of(ordinals) == MODALITIES.index(modality)]
    return ordinals if pool is None else ordinals[pool.mask[ordinals]]
