"""From candidates to ranked items: re-ranking, the k best, and the merge of several segments.

Re-ranking gives candidates a better score:

    none      the score of the search itself
    codes     cosine of z_q with the sum of code vectors: nothing but codes is stored
    vectors   <phi_q, phi_item>: vectors are stored, but only those of the candidates are read

With a fusion weight w, the score is similarity + w * search score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadInput
from genius.search.arrays import Floats, Ints
from genius.search.candidates import Candidates
from genius.search.codebooks import Codebooks
from genius.search.trie import Trie

CONVERTED_BYTES = 1 << 18  # of vectors that are converted at a time, so that they stay in the CPU's cache
FETCHED_BYTES = 1 << 26  # of vectors, as float32, that are re-ranked at a time
FLOAT16_BITS = np.int32(-0x70000001)  # all but three copies of the sign

Fetch = Callable[[Ints], NDArray[Any]]  # item rows -> their vectors phi (n, dim), unit length, any float type


@dataclass(frozen=True, slots=True)
class RankedItems:
    """The items found for one query, best first."""

    rows: Ints  # (n,) item rows
    scores: Floats  # (n,)
    codes: NDArray[np.uint16]  # (n, levels)
    beams: int = 0  # prefixes the search ended with
    leaves: int = 0  # items under them

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: Ints) -> RankedItems:
        """Those at these places of the ranking."""
        return RankedItems(
            self.rows[places], self.scores[places], self.codes[places], self.beams, self.leaves
        )

    @classmethod
    def none(cls, levels: int) -> RankedItems:
        """Nothing found."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros((0, levels), np.uint16))


def rerank_by_codes(
    trie: Trie,
    candidates: Candidates,
    codebooks: Codebooks,
    z: Floats,
    fusion: float = 0.0,
    similarity_known: bool = False,
) -> Candidates:
    """The same items, scored by the cosine of their summed code vectors with the query `z` (dim,).

    With `similarity_known` (after a lookup) their scores are <z, sum> already, and only lengths are needed.
    """
    codes = trie.codes(candidates.positions)
    if similarity_known:
        cosine = codebooks.cosine_from_similarity(candidates.scores, codes)
    else:
        cosine = codebooks.cosine(z, codes)
    return candidates.with_scores(_fused(cosine, candidates.scores, fusion))


def rerank_by_vectors(
    trie: Trie, candidates: Candidates, phi: Floats, fetch: Fetch | NDArray[Any], fusion: float = 0.0
) -> Candidates:
    """The same items, scored by the cosine of their vectors with the query's `phi` (dim,).

    `fetch` gives vectors by item row: a function, or an array (possibly memory-mapped) that has them all.
    """
    vectors = _fetched(fetch, trie.rows(candidates.positions), len(phi))
    return candidates.with_scores(_fused(products(vectors, phi), candidates.scores, fusion))


def rerank_batch_by_vectors(
    trie: Trie,
    positions: Ints,
    scores: Floats,
    phi: Floats,
    fetch: Fetch | NDArray[Any],
    fusion: float = 0.0,
) -> tuple[Ints, Floats]:
    """The same for candidates (batch, n) of many queries, ranked: positions and scores, best first.

    Positions ascend in each row; where a score is -inf, there is no candidate. All queries are one step, in
    parts that bound the memory of the vectors.
    """
    total = np.full(scores.shape, -np.inf, dtype=np.float32)
    at_once = max(1, FETCHED_BYTES // (4 * max(1, scores.shape[1]) * phi.shape[1]))
    for start in range(0, len(scores), at_once):
        part = slice(start, start + at_once)
        owner, column = np.nonzero(scores[part] > -np.inf)
        own = phi[part]
        vectors = _fetched(fetch, trie.rows(positions[part][owner, column]), own.shape[1])
        similarity = products(vectors, own, owner)
        total[part][owner, column] = _fused(similarity, scores[part][owner, column], fusion)
    order = np.argsort(-total, axis=1, kind="stable")
    return np.take_along_axis(positions, order, 1), np.take_along_axis(total, order, 1)


def _fetched(fetch: Fetch | NDArray[Any], rows: Ints, width: int) -> NDArray[Any]:
    """The vectors of item rows, (n, width)."""
    vectors = fetch(rows) if callable(fetch) else fetch.take(rows, axis=0)
    if vectors.shape != (len(rows), width):
        raise BadInput(
            f"vectors of shape {vectors.shape} for {len(rows)} items and a query of width {width}: "
            "index the items with the model that encodes the queries"
        )
    return vectors


def products(vectors: NDArray[Any], phi: Floats, owner: Ints | None = None) -> Floats:
    """<vector, phi> in float32 for each row; unlike a matrix product, equal rows give equal numbers.

    With `owner` (n,), `phi` has a row for each of several queries, and row i is multiplied with that of its
    owner. The bits of a finite float16, moved to where a float32 has them, are its value times 2^-112: NumPy
    takes eight times as long to convert it. The factor goes to `phi`, which changes no bit of the result.
    """
    is_half = vectors.dtype == np.float16
    if not is_half and owner is None:
        return np.asarray(np.vecdot(np.asarray(vectors, dtype=np.float32), phi))
    scaled = phi * np.float32(2.0**112) if is_half else phi
    out = np.empty(len(vectors), dtype=np.float32)
    at_once = max(1, CONVERTED_BYTES // (4 * phi.shape[-1]))
    for start in range(0, len(vectors), at_once):
        part = slice(start, start + at_once)
        own = scaled if owner is None else scaled[owner[part]]
        np.vecdot(_float32(vectors[part]), own, out=out[part])
    return out


def _float32(vectors: NDArray[Any]) -> Floats:
    """Vectors as float32; those of float16 times 2^-112."""
    if vectors.dtype != np.float16:
        return np.asarray(vectors, dtype=np.float32)
    bits = vectors.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= FLOAT16_BITS
    return bits.view(np.float32)


def rank(trie: Trie, candidates: Sequence[Candidates], k: int) -> list[RankedItems]:
    """The `k` best candidates of each query, best first; equal ones in the order of their codes, then rows.

    Rows and codes are read for all queries at once.
    """
    best = [own.best(k) for own in candidates]
    orders = [np.argsort(-own.scores, kind="stable") for own in best]  # positions ascend: ties stay in order
    sorted_positions = [own.positions[order] for own, order in zip(best, orders, strict=True)]
    positions = np.concatenate(sorted_positions) if len(best) > 1 else sorted_positions[0]
    rows, codes = trie.rows(positions), trie.codes(positions)
    ranked, start = [], 0
    for own, order in zip(best, orders, strict=True):
        part = slice(start, start + len(order))
        ranked.append(RankedItems(rows[part], own.scores[order], codes[part], own.beams, own.leaves))
        start += len(order)
    return ranked


def read_ranked(
    trie: Trie, positions: Ints, scores: Floats, leaves: Ints, beams: int, k: int
) -> list[RankedItems]:
    """The `k` best of candidates (batch, n) that are ranked already, with -inf in the padding.

    Rows and codes are read for all queries at once; what is done for a single one is to cut its part out.
    """
    positions, scores = positions[:, :k], scores[:, :k]
    there = scores > -np.inf
    every = positions[there]
    rows, codes, scores = trie.rows(every), trie.codes(every), scores[there]
    ends = np.cumsum(there.sum(1)).tolist()
    return [
        RankedItems(rows[start:end], scores[start:end], codes[start:end], beams, count)
        for start, end, count in zip([0, *ends], ends, leaves.tolist(), strict=False)
    ]


def merge(parts: Sequence[RankedItems], k: int) -> RankedItems:
    """The `k` best items found for one query in several segments, with the same rule for ties."""
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([part.rows for part in parts])
    scores = np.concatenate([part.scores for part in parts])
    codes = np.concatenate([part.codes for part in parts])
    order = np.lexsort((rows, *codes.T[::-1], -scores))[:k]
    beams, leaves = max(part.beams for part in parts), sum(part.leaves for part in parts)
    return RankedItems(rows[order], scores[order], codes[order], beams, leaves)


def _fused(similarity: Floats, scores: Floats, fusion: float) -> Floats:
    return similarity if fusion == 0.0 else similarity + np.float32(fusion) * scores
