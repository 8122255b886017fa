"""Sub-queries to ranked rows: one search for all, and one ranking where several modalities compete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.data.validate import unit_vector
from genius.encode.base import Parts
from genius.query.exhaustive import is_exhaustive, rank_all
from genius.query.filtered import FilteredPool
from genius.query.merging import backgrounds, merge_rankings
from genius.query.subqueries import Subquery
from genius.query.view import PoolView
from genius.retrieval_model import RetrievalModel
from genius.search.codebooks import Codebooks
from genius.search.options import SearchOptions
from genius.search.rank import RankedItems
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.types import Modality

Floats = NDArray[np.float32]


class EmbeddedSubquery(NamedTuple):
    """A sub-query with its embeddings."""

    subquery: Subquery
    z: Floats  # (d,)
    phi: Floats  # (d,)


class ScoredRow(NamedTuple):
    """An item by its row in the truth, with its score and codes."""

    row: int
    score: float
    codes: tuple[int, ...]


class Ranking(NamedTuple):
    """The items found for one query, best first, and what the search touched."""

    items: list[ScoredRow]
    beams: int  # prefixes the search ended with
    leaves: int  # items under them


def embed(model: RetrievalModel, subqueries: Sequence[Subquery]) -> list[EmbeddedSubquery]:
    """The sub-queries with their embeddings."""
    if not subqueries:
        return []
    parts = _parts(model, subqueries)
    return [EmbeddedSubquery(*one) for one in zip(subqueries, model.z(parts), model.phi(parts), strict=True)]


def _parts(model: RetrievalModel, subqueries: Sequence[Subquery]) -> Parts:
    """Image and text embeddings of sub-queries; one that is an embedding is not encoded."""
    shape = (len(subqueries), model.dim)
    parts = Parts(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
    rest = [row for row, one in enumerate(subqueries) if one.vector is None]
    for row, one in enumerate(subqueries):
        if one.vector is not None:
            parts.text[row] = unit_vector(one.vector, model.dim)
    if rest:
        some = [subqueries[row] for row in rest]
        encoded = model.embed_queries(
            [one.image for one in some], [one.text for one in some], [one.instruction for one in some]
        )
        parts.image[rest], parts.text[rest] = encoded.image, encoded.text
    return parts


def rank(
    view: PoolView,
    searcher: Searcher,
    model: RetrievalModel,
    queries: Sequence[Sequence[EmbeddedSubquery]],
    options: SearchOptions,
    pool: FilteredPool | None = None,
) -> list[Ranking]:
    """The best items for each query, which is one sub-query or several that compete.

    With a `pool`, only its items are found; an item has the score that it has without.
    """
    flat = [one for several in queries for one in several]
    found = iter(_find(view, searcher, model, flat, options, pool))
    ranked = []
    for several in queries:
        own = [next(found) for _ in several]
        if len(own) > 1:
            best = _merge(view, searcher.codebooks, several, own, options.k)
        else:
            best = [item for one in own for item in _scored(view, one)]
        ranked.append(Ranking(best, sum(one.beams for one in own), sum(one.leaves for one in own)))
    return ranked


def pool_size(view: PoolView, pool: FilteredPool | None, query: Sequence[EmbeddedSubquery]) -> int:
    """How many items a query could find."""
    modalities = [one.subquery.modality for one in query]
    if pool is not None:
        return sum(len(pool.ordinals(modality)) for modality in modalities)
    return sum(len(view) if modality is None else view.count(modality) for modality in modalities)


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
            few = pool.ordinals(one.subquery.modality)
            if is_exhaustive(len(few), options, vectors=view.has_vectors):
                found[number] = rank_all(view, searcher.codebooks, one.z, one.phi, few, options)
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
    wanted = np.ones((len(flat), searcher.codebooks.sizes[0]), dtype=bool)
    for row, one in enumerate(flat):
        if one.subquery.modality is not None:
            wanted[row] = np.arange(wanted.shape[1]) == codes[one.subquery.modality]
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


def _scored(view: PoolView, found: RankedItems) -> list[ScoredRow]:
    rows = view.rows(found.rows)
    return [
        ScoredRow(int(row), float(score), tuple(codes.tolist()))
        for row, score, codes in zip(rows, found.scores, found.codes, strict=True)
    ]


def _merge(
    view: PoolView,
    tables: Codebooks,
    several: Sequence[EmbeddedSubquery],
    found: Sequence[RankedItems],
    k: int,
) -> list[ScoredRow]:
    """One ranking of all modalities; the score is the similarity standardized within its modality."""
    competing = [(one.subquery.modality, one) for one in several if one.subquery.modality is not None]
    samples = {modality: _sample_similarity(view, tables, one, modality) for modality, one in competing}
    ground = backgrounds(samples)
    scores = [
        ground[modality].standardize(_similarity(view, tables, one, own))
        for (modality, one), own in zip(competing, found, strict=True)
    ]
    parts = [_scored(view, own) for own in found]
    return [
        parts[which][rank]._replace(score=float(scores[which][rank]))
        for which, rank in zip(*merge_rankings(scores, k), strict=True)
    ]


def _sample_similarity(
    view: PoolView, tables: Codebooks, query: EmbeddedSubquery, modality: Modality
) -> Floats:
    """Similarities of the sample of a modality to the query: by vectors, or by codes without them."""
    sample = view.sample(modality)
    if sample.vectors is not None:
        return _cosines(sample.vectors, query.phi)
    assert sample.codes is not None
    return tables.cosine(query.z, sample.codes)


def _similarity(view: PoolView, tables: Codebooks, query: EmbeddedSubquery, found: RankedItems) -> Floats:
    """The same for the items that were found."""
    if view.has_vectors:
        return _cosines(view.vectors(found.rows), query.phi)
    return tables.cosine(query.z, found.codes)


def _cosines(vectors: NDArray[np.float16], phi: Floats) -> Floats:
    """Cosines of unit vectors; equal rows get equal numbers, which a matrix product does not guarantee."""
    return np.asarray(np.einsum("nd,d->n", vectors.astype(np.float32), phi))
