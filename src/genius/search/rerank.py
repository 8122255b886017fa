"""Re-ranking: a better score for the items a search has found.

    none      the score of the search itself
    codes     cosine of z_q with the sum of code vectors: nothing but codes is stored
    vectors   <phi_q, phi_item>: vectors are stored, but only those of the found items are read

With a fusion weight w, the score of the search has its say too: similarity + w * search score.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadInput
from genius.search.leaves import Floats, Leaves
from genius.search.lookup import Tables
from genius.search.trie import Ints, Trie

Fetch = Callable[[Ints], NDArray[Any]]  # item rows -> their vectors phi (n, dim), unit length, any float type


def by_codes(trie: Trie, leaves: Leaves, tables: Tables, z: Floats, fusion: float = 0.0) -> Leaves:
    """The same items, scored by what their codes stand for, for the query `z` (dim,)."""
    similar = tables.cosine(z, trie.codes(leaves.positions))
    return leaves.rescored(_fused(similar, leaves, fusion))


def by_vectors(
    trie: Trie, leaves: Leaves, phi: Floats, fetch: Fetch | NDArray[Any], fusion: float = 0.0
) -> Leaves:
    """The same items, scored by the cosine of their vectors with the query's `phi` (dim,).

    `fetch` gives vectors by item row: a function, or an array (possibly memory-mapped) that has them all.
    """
    rows = trie.rows(leaves.positions)
    vectors = _float32(fetch(rows) if callable(fetch) else fetch.take(rows, axis=0))
    if vectors.shape != (len(rows), len(phi)):
        raise BadInput(
            f"vectors of shape {vectors.shape} for {len(rows)} items and a query of width {len(phi)}: "
            "index the items with the model that encodes the queries"
        )
    # A matrix product may round equal rows differently; one product per row keeps equal items equal.
    return leaves.rescored(_fused(np.vecdot(vectors, phi), leaves, fusion))


@cache
def _halves() -> Floats:
    """The value of every float16."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _float32(vectors: NDArray[Any]) -> Floats:
    """The vectors in float32; from float16 by a table, twice as fast as NumPy converts them."""
    if vectors.dtype == np.float16:
        return _halves().take(np.ascontiguousarray(vectors).view(np.uint16))
    return np.asarray(vectors, dtype=np.float32)


def _fused(similar: Floats, leaves: Leaves, fusion: float) -> Floats:
    return similar if fusion == 0.0 else similar + np.float32(fusion) * leaves.scores
