"""Pools of any size for the frontier: the answers, then other real items, then jittered copies of real ones.

Recall in a pool with copies is a stand-in (real strangers would be less alike or more); time and bytes are
those of a real pool of that size. Every result says how much of its pool was real.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from genius.encode.base import Parts
from genius.errors import BadInput
from genius.evaluate.encoding import Floats, Ints, Pool

JITTER = 0.5  # length of the noise on a unit vector: copies are about 27 degrees off
CHUNK = 16_384
Codes = NDArray[np.uint16]
CodesOf = Callable[[Floats, NDArray[np.uint8]], Codes]  # z and modalities -> codes


@dataclass(frozen=True, slots=True)
class Grown:
    """A pool of a wanted size and the rows of it that hold real items."""

    pool: Pool
    real: int


class Growth:
    """Makes pools of growing size around the same answers."""

    def __init__(self, pool: Pool, z: Floats, answers: Ints, codes_of: CodesOf, seed: int = 0) -> None:
        """`z` (n, dim) belongs to the items of `pool`; `answers` are rows that every pool has to have."""
        self._pool, self._z, self._codes_of, self._seed = pool, z, codes_of, seed
        must = np.unique(answers)
        others = np.setdiff1d(np.arange(len(pool)), must)
        np.random.default_rng(seed).shuffle(others)
        self._order = np.concatenate([must, others])
        self.least, self.real = len(must), len(pool)

    def at(self, size: int) -> Grown:
        """A pool of `size` items; row i holds item `order()[i]` of the source while that is real."""
        if size < self.least:
            raise BadInput(f"a pool of {size} cannot hold the {self.least} answers: ask fewer queries")
        kept = self._order[: min(size, self.real)]
        phi, codes = self._pool.phi[kept], self._pool.codes[kept]
        modality, ids = self._pool.modality[kept], [self._pool.ids[row] for row in kept.tolist()]
        extra = size - len(kept)
        if extra:
            more_phi, more_codes, more_modality = self._copies(extra)
            phi, codes = np.concatenate([phi, more_phi]), np.concatenate([codes, more_codes])
            modality = np.concatenate([modality, more_modality])
            ids += [f"copy:{number}" for number in range(extra)]
        grown = Pool(ids, modality, phi, codes, f"{self._pool.digest} {size}", [], _no_parts)
        return Grown(grown, len(kept))

    def place_of(self, rows: Ints) -> Ints:
        """Where source rows stand in every grown pool that holds them."""
        place = np.empty(self.real, dtype=np.int64)
        place[self._order] = np.arange(self.real)
        return place[rows]

    def _copies(self, count: int) -> tuple[Floats, Codes, NDArray[np.uint8]]:
        """Jittered copies, drawn alike for every size, so that a larger pool contains a smaller one."""
        parts = []
        for number, start in enumerate(range(0, count, CHUNK)):
            rng = np.random.default_rng([self._seed, number])
            rows = rng.integers(0, self.real, CHUNK)
            phi = _jittered(self._pool.phi[rows], rng)
            modality = self._pool.modality[rows]
            codes = self._codes_of(_jittered(self._z[rows], rng), modality)
            left = count - start
            parts.append((phi[:left], codes[:left], modality[:left]))
        phis, all_codes, modalities = zip(*parts, strict=True)
        return np.concatenate(phis), np.concatenate(all_codes), np.concatenate(modalities)


def _jittered(vectors: Floats, rng: np.random.Generator) -> Floats:
    noise = rng.standard_normal(vectors.shape, dtype=np.float32) * (JITTER / vectors.shape[1] ** 0.5)
    moved = vectors + noise
    return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True), dtype=np.float32)


def _no_parts(rows: Ints) -> Parts:
    raise BadInput("a grown pool has vectors only, no image and text parts")
