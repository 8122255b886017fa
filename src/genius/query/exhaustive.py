"""Exact search over a few items: each of them is scored, none is missed."""

from __future__ import annotations

import numpy as np

from genius.query.filtered import FilteredPool
from genius.search.arrays import Floats
from genius.search.codebooks import Codebooks
from genius.search.options import SearchOptions
from genius.search.rank import RankedItems, products
from genius.types import Modality

MAX_ITEMS = 8192  # so many are scored about as fast as a trie is searched


def is_exhaustive(items: int, options: SearchOptions, *, vectors: bool) -> bool:
    """Whether so few items are all scored: not if a score of the beam search is part of the result."""
    similarity = options.rerank != "none" or options.method == "lookup"
    return (
        items <= MAX_ITEMS
        and similarity
        and options.fusion == 0.0
        and (vectors or options.rerank != "vectors")
    )


def rank_all(
    pool: FilteredPool,
    modality: Modality | None,
    codebooks: Codebooks,
    z: Floats,
    phi: Floats,
    options: SearchOptions,
) -> RankedItems:
    """The best of a pool's items by the score of the re-ranking, with the rule for ties of every search."""
    ordinals = pool.ordinals(modality)
    if options.rerank == "vectors":
        scores = products(pool.vectors(modality), phi)
    else:
        by = codebooks.cosine if options.rerank == "codes" else codebooks.similarity
        scores = by(z, pool.codes(modality))
    kept = np.arange(len(scores))
    if len(scores) > options.k:
        kept = np.flatnonzero(scores >= np.partition(scores, -options.k)[-options.k])
    codes = pool.codes(modality)[kept]
    order = np.lexsort((ordinals[kept], *codes.T[::-1], -scores[kept]))[: options.k]
    best = kept[order]
    return RankedItems(ordinals[best], scores[best], codes[order], 0, len(ordinals))
