"""Sub-queries to ranked rows: one search for all, and one ranking where several modalities compete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from genius.confidence import Calibration
from genius.query.comparing import Similarities, compare, confidence_logits, confidences, standardized
from genius.query.embedding import EmbeddedSubquery
from genius.query.exhaustive import is_exhaustive, rank_all
from genius.query.filtered import FilteredPool
from genius.query.hybrid import best_passages, rank_all_with_words
from genius.query.merging import merge_rankings
from genius.query.view import PoolView
from genius.query.words import WordMatches
from genius.retrieval_model import RetrievalModel
from genius.search.options import SearchOptions
from genius.search.rank import RankedItems
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment


class ScoredRow(NamedTuple):
    """An item by its row in the truth, with its score, codes and confidence."""

    row: int
    score: float
    codes: tuple[int, ...]
    confidence: float | None = None  # None without a calibration
    passage: int = 0  # the one that was found, if the text has several


class Ranking(NamedTuple):
    """The items found for one query, best first, and what the search touched."""

    items: list[ScoredRow]
    beams: int  # prefixes the search ended with
    leaves: int  # items under them


def rank(
    view: PoolView,
    searcher: Searcher,
    model: RetrievalModel,
    queries: Sequence[Sequence[EmbeddedSubquery]],
    options: SearchOptions,
    pool: FilteredPool | None = None,
    words: Sequence[WordMatches | None] | None = None,
) -> list[Ranking]:
    """The best items for each query, which is one sub-query or several that compete.

    With a `pool`, only its items are found; an item has the score that it has without. `words` are, for each
    query, the items that have words of it; None for a ranking by vectors alone.
    """
    flat = [one for several in queries for one in several]
    found = iter(_find_items(view, searcher, model, flat, options, pool))
    calibration = _calibration(model, view)
    ranked = []
    for number, several in enumerate(queries):
        own = [next(found) for _ in several]
        matches = None if words is None else words[number]
        if matches is not None and len(matches.rows):
            own, compared = rank_all_with_words(
                view, searcher.codebooks, several, own, matches, options.k, pool
            )
        elif calibration is None and len(own) < 2:  # nothing to compare
            compared = []
        else:
            compared = [
                compare(view, searcher.codebooks, *one, options) for one in zip(several, own, strict=True)
            ]
        parts = [_scored(view, *one, calibration, options) for one in zip_longest(own, compared)]
        if len(parts) < 2:
            best = [item for part in parts for item in part]
        else:
            best = _merge(parts, compared, calibration, options.k)
        ranked.append(Ranking(best, sum(one.beams for one in own), sum(one.leaves for one in own)))
    return ranked


def pool_size(view: PoolView, pool: FilteredPool | None, query: Sequence[EmbeddedSubquery]) -> int:
    """How many items a query could find."""
    modalities = [one.subquery.modality for one in query]
    if pool is not None:
        return sum(pool.count(modality) for modality in modalities)
    return sum(len(view) if modality is None else view.count(modality) for modality in modalities)


def _calibration(model: RetrievalModel, view: PoolView) -> Calibration | None:
    """The model's calibration for what the index keeps; a model of one's own need not have any."""
    by: Mapping[str, Calibration] = getattr(model, "calibrations", {})
    return by.get("vectors" if view.has_vectors else "codes")


def _find_items(
    view: PoolView,
    searcher: Searcher,
    model: RetrievalModel,
    flat: Sequence[EmbeddedSubquery],
    options: SearchOptions,
    pool: FilteredPool | None,
) -> list[RankedItems]:
    """What each sub-query finds, of every item the best passage alone."""
    if not view.has_passages:
        return _find(view, searcher, model, flat, options, pool)
    depth = 2 * options.k
    while True:
        found = _find(view, searcher, model, flat, replace(options, k=depth), pool)
        best = [one.take(best_passages(view, one.rows)[: options.k]) for one in found]
        if all(len(own) == options.k or len(one) < depth for own, one in zip(best, found, strict=True)):
            return best
        depth *= 2  # too many were passages of the same items


def _find(
    view: PoolView,
    searcher: Searcher,
    model: RetrievalModel,
    flat: Sequence[EmbeddedSubquery],
    options: SearchOptions,
    pool: FilteredPool | None,
) -> list[RankedItems]:
    """What each sub-query finds among the items of its modality."""
    found: dict[int, RankedItems] = {}
    if pool is not None:
        for number, one in enumerate(flat):
            modality = one.subquery.modality
            if is_exhaustive(len(pool.ordinals(modality)), options, vectors=view.has_vectors):
                found[number] = rank_all(pool, modality, searcher.codebooks, one.z, one.phi, options)
    segments = view.segments if pool is None or len(found) == len(flat) else pool.segments
    others = [one for number, one in enumerate(flat) if number not in found]
    searched = iter(_search(view, segments, searcher, model, others, options))
    return [found[number] if number in found else next(searched) for number in range(len(flat))]


def _search(
    view: PoolView,
    segments: Sequence[TrieSegment],
    searcher: Searcher,
    model: RetrievalModel,
    flat: Sequence[EmbeddedSubquery],
    options: SearchOptions,
) -> list[RankedItems]:
    """The same by a search of the tries."""
    if not flat:
        return []
    codes = model.modality_codes
    if any(one.subquery.modality for one in flat) and not view.level_zero_is(codes):
        return [_search_masked(view, segments, searcher, one, options) for one in flat]
    wanted = np.zeros((len(flat), searcher.codebooks.sizes[0]), dtype=bool)
    for row, one in enumerate(flat):
        modality = one.subquery.modality
        wanted[row, slice(None) if modality is None else codes[modality]] = True
    return searcher.search(
        segments,
        np.stack([one.z for one in flat]),
        options,
        modalities=wanted,
        phi=np.stack([one.phi for one in flat]),
        fetch=view.vectors if view.has_vectors else None,
    )


def _search_masked(
    view: PoolView,
    segments: Sequence[TrieSegment],
    searcher: Searcher,
    query: EmbeddedSubquery,
    options: SearchOptions,
) -> RankedItems:
    """The same for a model whose level 0 is not the modality: items are filtered one by one."""
    modality = query.subquery.modality
    (found,) = searcher.search(
        segments,
        query.z[None],
        options,
        mask=None if modality is None else view.mask(modality),
        phi=query.phi[None],
        fetch=view.vectors if view.has_vectors else None,
    )
    return found


def _scored(
    view: PoolView,
    found: RankedItems,
    compared: Similarities | None,
    calibration: Calibration | None,
    options: SearchOptions,
) -> list[ScoredRow]:
    """What a sub-query found, by row; with a calibration, how sure each is."""
    rows = view.rows(found.rows)
    items = view.snapshot.passages.items_of(rows)
    # rounding may take a cosine beyond 1
    scores = np.minimum(found.scores, 1.0) if options.by_similarity else found.scores
    sure: list[Any] = [None] * len(rows)
    if calibration is not None and compared is not None:
        sure = confidences(calibration, compared).tolist()
    columns = (one.tolist() for one in (items, rows, scores, found.codes))
    return [
        ScoredRow(item, score, tuple(codes), confidence, row - item)
        for item, row, score, codes, confidence in zip(*columns, sure, strict=True)
    ]


def _merge(
    parts: Sequence[list[ScoredRow]],
    compared: Sequence[Similarities],
    calibration: Calibration | None,
    k: int,
) -> list[ScoredRow]:
    """One ranking of several by confidence, or by standardized similarity without a calibration.

    The score is the similarity, whatever ranked the items of each.
    """
    if calibration is None:
        order = standardized(compared)
    else:
        order = [confidence_logits(calibration, one) for one in compared]
    return [
        parts[which][rank]._replace(score=float(compared[which].similar[rank]))
        for which, rank in zip(*merge_rankings(order, k), strict=True)
    ]
