"""Re-ranking: a better score for the items a search has found.

    none      the score of the search itself
    codes     cosine of z_q with the sum of code vectors: nothing but codes is stored
    vectors   <phi_q, phi_item>: vectors are stored, but only those of the found items are read

With a fusion weight w, the score of the search has its say too: similarity + w * search score.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadInput
from genius.search.leaves import Floats, Leaves
from genius.search.lookup import Tables
from genius.search.trie import Ints, Trie

IN_CACHE = 1 << 18  # bytes of converted vectors that stay near the processor
KEPT_BITS = np.int32(-0x70000001)  # all but three copies of the sign

Fetch = Callable[[Ints], NDArray[Any]]  # item rows -> their vectors phi (n, dim), unit length, any float type


def by_codes(
    trie: Trie, leaves: Leaves, tables: Tables, z: Floats, fusion: float = 0.0, looked_up: bool = False
) -> Leaves:
    """The same items, scored by what their codes stand for, for the query `z` (dim,).

    After a lookup, their scores are the products with z already, and only the lengths are needed.
    """
    codes = trie.codes(leaves.positions)
    similar = tables.scaled(leaves.scores, codes) if looked_up else tables.cosine(z, codes)
    return leaves.rescored(_fused(similar, leaves, fusion))


def by_vectors(
    trie: Trie, leaves: Leaves, phi: Floats, fetch: Fetch | NDArray[Any], fusion: float = 0.0
) -> Leaves:
    """The same items, scored by the cosine of their vectors with the query's `phi` (dim,).

    `fetch` gives vectors by item row: a function, or an array (possibly memory-mapped) that has them all.
    """
    rows = trie.rows(leaves.positions)
    vectors = fetch(rows) if callable(fetch) else fetch.take(rows, axis=0)
    if vectors.shape != (len(rows), len(phi)):
        raise BadInput(
            f"vectors of shape {vectors.shape} for {len(rows)} items and a query of width {len(phi)}: "
            "index the items with the model that encodes the queries"
        )
    return leaves.rescored(_fused(products(vectors, phi), leaves, fusion))


def products(vectors: NDArray[Any], phi: Floats) -> Floats:
    """<vector, phi> in float32 for each row; equal rows get equal numbers, as from no matrix product.

    The bits of a finite float16, moved to where a float32 has them, are its value times 2^-112: NumPy takes
    eight times as long to convert it. The factor goes to `phi`, which changes no bit of the result.
    """
    if vectors.dtype != np.float16:
        return np.asarray(np.vecdot(np.asarray(vectors, dtype=np.float32), phi))
    scaled = phi * np.float32(2.0**112)
    out = np.empty(len(vectors), dtype=np.float32)
    at_once = max(1, IN_CACHE // (4 * len(phi)))
    for start in range(0, len(vectors), at_once):
        bits = vectors[start : start + at_once].view(np.int16).astype(np.int32)
        bits <<= 13
        bits &= KEPT_BITS
        np.vecdot(bits.view(np.float32), scaled, out=out[start : start + at_once])
    return out


def _fused(similar: Floats, leaves: Leaves, fusion: float) -> Floats:
    return similar if fusion == 0.0 else similar + np.float32(fusion) * leaves.scores
