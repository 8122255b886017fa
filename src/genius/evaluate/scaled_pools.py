"""Pools of any size for the frontier: the positives, then other real items, then noisy copies of real ones.

The hit rate in a pool with copies is a stand-in (real items would be less alike or more); time and bytes are
those of a real pool of that size. Every result says how much of its pool was real.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from genius.encode.base import Parts
from genius.errors import BadInput
from genius.evaluate.embeddings import EncodedPool, Floats, Ints
from genius.evaluate.metrics import Qrels

NOISE = 0.5  # norm of the noise on a unit vector: copies are about 27 degrees off
CHUNK = 16_384
Codes = NDArray[np.uint16]
CodesOf = Callable[[Floats, NDArray[np.uint8]], Codes]  # z and modalities -> codes


class ScaledPools:
    """Pools of growing size around the same positives; a larger pool contains every smaller one."""

    def __init__(
        self, pool: EncodedPool, z: Floats, positives: Ints, codes_of: CodesOf, seed: int = 0
    ) -> None:
        """`z` (n, dim) belongs to the items of `pool`; `positives` are rows that every pool has to have."""
        self._pool, self._z, self._codes_of, self._seed = pool, z, codes_of, seed
        required = np.unique(positives)
        others = np.setdiff1d(np.arange(len(pool)), required)
        np.random.default_rng(seed).shuffle(others)
        self._order = np.concatenate([required, others])
        self.smallest = len(required)

    def at(self, size: int) -> tuple[EncodedPool, int]:
        """A pool of `size` items, and how many of them are real."""
        if size < self.smallest:
            raise BadInput(f"a pool of {size} cannot hold the {self.smallest} positives: ask fewer queries")
        kept = self._order[:size]
        phi, codes, modality = self._pool.phi[kept], self._pool.codes[kept], self._pool.modality[kept]
        ids = [self._pool.ids[row] for row in kept.tolist()]
        extra = size - len(kept)
        if extra:
            more = self._copies(extra)
            phi, codes = np.concatenate([phi, more[0]]), np.concatenate([codes, more[1]])
            modality = np.concatenate([modality, more[2]])
            ids += [f"copy:{number}" for number in range(extra)]
        scaled = EncodedPool(ids, modality, phi, codes, f"{self._pool.digest} {size}", [], _no_parts)
        return scaled, len(kept)

    def qrels(self, qrels: Qrels) -> Qrels:
        """Qrels on the rows of the source pool as those on the rows of every scaled pool."""
        position = np.empty(len(self._pool), dtype=np.int64)
        position[self._order] = np.arange(len(self._pool))
        inside = qrels.item < len(self._pool)
        item = np.where(inside, 0, np.iinfo(np.int32).max + qrels.item)  # absent items stay out of reach
        item[inside] = position[qrels.item[inside]]
        order = np.lexsort((item, qrels.query))
        return Qrels(qrels.queries, qrels.query[order], item[order], qrels.gain[order])

    def _copies(self, count: int) -> tuple[Floats, Codes, NDArray[np.uint8]]:
        """Noisy copies: phi, codes and modality; the same ones whatever the count."""
        phis, codes, modalities = [], [], []
        for number, start in enumerate(range(0, count, CHUNK)):
            rng = np.random.default_rng([self._seed, number])
            rows = rng.integers(0, len(self._pool), CHUNK)
            left = count - start
            phis.append(_noisy(self._pool.phi[rows], rng)[:left])
            modalities.append(self._pool.modality[rows][:left])
            codes.append(self._codes_of(_noisy(self._z[rows], rng), self._pool.modality[rows])[:left])
        return np.concatenate(phis), np.concatenate(codes), np.concatenate(modalities)


def _noisy(vectors: Floats, rng: np.random.Generator) -> Floats:
    noise = rng.standard_normal(vectors.shape, dtype=np.float32) * (NOISE / vectors.shape[1] ** 0.5)
    moved = vectors + noise
    return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True), dtype=np.float32)


def _no_parts(rows: Ints) -> Parts:
    raise BadInput("a scaled pool has fused embeddings only, no image and text parts")
