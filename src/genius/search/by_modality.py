"""Lookups where each modality has codebooks of its own: one for each modality that a query wants.

All searchers here have the codebooks of one modality, in the order of the codes of level 0. What they find is
compared by the same score, so the best of all are the best of each, merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.search.arrays import Bools, Floats, Ints
from genius.search.candidates import Candidates
from genius.search.lookup import CandidatesBySegment
from genius.search.options import SearchOptions
from genius.search.plan import SearchPlan
from genius.search.rank import Fetch, RankedItems, merge
from genius.search.segment import TrieSegment

if TYPE_CHECKING:
    from genius.search.searcher import Searcher


def search_by_modality(
    searchers: Sequence[Searcher],
    segments: Sequence[TrieSegment],
    z: Floats,
    options: SearchOptions,
    modalities: Bools | None,
    phi: NDArray[Any] | None,
    fetch: Fetch | NDArray[Any] | None,
) -> list[RankedItems]:
    """The best items for each query of `z` (batch, dim); `modalities` as (batch, modalities) or None."""
    found: list[list[RankedItems]] = [[] for _ in z]
    for code, queries in _wanted(len(searchers), modalities, len(z)):
        there = [segment for segment in segments if code in segment.trie.first_codes]
        own_phi = None if phi is None else phi[queries]
        ranked = searchers[code].search(
            there, z[queries], options, modalities=[code], phi=own_phi, fetch=fetch
        )
        for query, items in zip(queries.tolist(), ranked, strict=True):
            found[query].append(items)
    levels = len(searchers[0].codebooks.sizes)
    return [merge(parts, options.k) if parts else RankedItems.none(levels) for parts in found]


def candidates_by_modality(
    searchers: Sequence[Searcher],
    segments: Sequence[TrieSegment],
    z: Floats,
    modalities: Bools | None,
    plan: SearchPlan,
    device: str,
) -> CandidatesBySegment:
    """The candidates of a lookup, before any re-ranking."""
    found: list[list[list[Candidates]]] = [[[] for _ in z] for _ in segments]
    for code, queries in _wanted(len(searchers), modalities, len(z)):
        mask = np.tile(np.arange(len(searchers)) == code, (len(queries), 1))
        looked_up = searchers[code].look_up(segments, z[queries], mask, plan, device)
        for parts, several in zip(found, looked_up, strict=True):
            for query, candidates in zip(queries.tolist(), several, strict=True):
                parts[query].append(candidates)
    return [[Candidates.join(parts) for parts in of_segment] for of_segment in found]


def _wanted(codes: int, modalities: Bools | None, batch: int) -> Iterator[tuple[int, Ints]]:
    """Each code of level 0 with the queries, by number, that want its items."""
    for code in range(codes):
        queries = np.arange(batch) if modalities is None else np.flatnonzero(modalities[:, code])
        if len(queries):
            yield code, queries
