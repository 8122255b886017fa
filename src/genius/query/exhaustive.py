"""Exact search over a few items: each of them is scored, none is missed."""

from __future__ import annotations

import numpy as np

from genius.query.view import PoolView
from genius.search.arrays import Floats, Ints
from genius.search.codebooks import Codebooks
from genius.search.options import SearchOptions
from genius.search.rank import RankedItems, products

MAX_ITEMS = 4096  # so many are scored about as fast as a trie is searched


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
    view: PoolView, codebooks: Codebooks, z: Floats, phi: Floats, ordinals: Ints, options: SearchOptions
) -> RankedItems:
    """The best of these items by the score of the re-ranking, with the rule for ties of every search."""
    codes = None
    if options.rerank == "vectors":
        scores = products(view.vectors(ordinals), phi)
    else:
        codes = view.codes(ordinals)
        by = codebooks.cosine if options.rerank == "codes" else codebooks.similarity
        scores = by(z, codes)
    kept = np.arange(len(scores))
    if len(scores) > options.k:
        kept = np.flatnonzero(scores >= np.partition(scores, -options.k)[-options.k])
    own = view.codes(ordinals[kept]) if codes is None else codes[kept]
    order = np.lexsort((ordinals[kept], *own.T[::-1], -scores[kept]))[: options.k]
    best = kept[order]
    return RankedItems(ordinals[best], scores[best], own[order], 0, len(ordinals))
