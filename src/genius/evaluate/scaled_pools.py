"""Pools of any size for the frontier: the positives, then other real items, then made ones between real ones.

A made item is a real one moved at random along the differences to its nearest neighbours of the same
modality. How far (`spread`) is calibrated: a quarter of the real items is filled up to all of them with made
ones, and the hit rate of exact search must fall as it does when the real items come back. Every result says
how much of its pool was real. Beyond some times the real size nobody knows; the calibration is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from genius.encode.base import Parts
from genius.errors import BadInput
from genius.evaluate.baselines.exact import nearest
from genius.evaluate.embeddings import EncodedPool, EncodedQueries, Floats, Ints
from genius.evaluate.metrics import Qrels, grade

NEIGHBOURS = 8
SPREADS = (0.5, 0.75, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 2.0)  # that a calibration tries
SPREAD = 1.2  # without one
STEPS = 4  # sizes between the filled items and all of them
CHUNK = 16_384
Codes = NDArray[np.uint16]
CodesOf = Callable[[Floats, NDArray[np.uint8]], Codes]  # z and modalities -> codes


class ScaledPools:
    """Pools of growing size around the same positives; a larger pool contains every smaller one."""

    def __init__(
        self,
        pool: EncodedPool,
        z: Floats,
        positives: Ints,
        codes_of: CodesOf,
        *,
        spread: float = SPREAD,
        real: int | None = None,
        seed: int = 0,
    ) -> None:
        """`z` (n, dim) belongs to the items of `pool`; `positives` are rows that every pool has to have.

        With `real`, no more real items than that are used, and made ones lie between those.
        """
        self._pool, self._codes_of, self._spread, self._seed = pool, codes_of, spread, seed
        self._z = pool.phi if z is pool.phi or np.array_equal(z, pool.phi) else z
        required = np.unique(positives)
        others = np.setdiff1d(np.arange(len(pool)), required)
        np.random.default_rng(seed).shuffle(others)
        self._order = np.concatenate([required, others])[: max(real or len(pool), len(required))]
        self._neighbours: Ints | None = None  # of the items in that order, (items, NEIGHBOURS)
        self.smallest = len(required)

    def at(self, size: int) -> tuple[EncodedPool, int]:
        """A pool of `size` items, and how many of them are real."""
        if size < self.smallest:
            raise BadInput(f"a pool of {size} cannot hold the {self.smallest} positives: ask fewer queries")
        kept = self._order[:size]
        phi, codes, modality = (  # one array each: two of a pool of millions do not fit
            np.empty((size, *source.shape[1:]), dtype=source.dtype)
            for source in (self._pool.phi, self._pool.codes, self._pool.modality)
        )
        phi[: len(kept)], codes[: len(kept)] = self._pool.phi[kept], self._pool.codes[kept]
        modality[: len(kept)] = self._pool.modality[kept]
        self._make(phi[len(kept) :], codes[len(kept) :], modality[len(kept) :])
        ids = [self._pool.ids[row] for row in kept.tolist()]
        ids += [f"made:{number}" for number in range(size - len(kept))]
        scaled = EncodedPool(ids, modality, phi, codes, f"{self._pool.digest} {size}", [], _no_parts)
        return scaled, len(kept)

    def qrels(self, qrels: Qrels) -> Qrels:
        """Qrels on the rows of the source pool as those on the rows of every scaled pool."""
        position = np.full(len(self._pool), np.iinfo(np.int32).max, dtype=np.int64)
        position[self._order] = np.arange(len(self._order))
        inside = qrels.item < len(self._pool)
        item = np.where(inside, 0, np.iinfo(np.int32).max + qrels.item)  # absent items stay out of reach
        item[inside] = position[qrels.item[inside]]
        order = np.lexsort((item, qrels.query))
        return Qrels(qrels.queries, qrels.query[order], item[order], qrels.gain[order])

    def _make(self, phi: Floats, codes: Codes, modality: NDArray[np.uint8]) -> None:
        """Fill the arrays with made items: the same ones whatever their count."""
        if self._neighbours is None and len(phi):
            self._neighbours = _neighbours(self._pool.phi[self._order], self._pool.modality[self._order])
        for number, start in enumerate(range(0, len(phi), CHUNK)):
            assert self._neighbours is not None
            rng = np.random.default_rng([self._seed, number])
            places = rng.integers(0, len(self._order), CHUNK)
            weights = rng.standard_normal((CHUNK, NEIGHBOURS), dtype=np.float32)
            weights *= np.float32(self._spread / NEIGHBOURS**0.5)
            rows, around = self._order[places], self._order[self._neighbours[places]]
            part = slice(start, min(start + CHUNK, len(phi)))
            left = part.stop - start
            phi[part] = _moved(self._pool.phi, rows, around, weights)[:left]
            modality[part] = self._pool.modality[rows][:left]
            same = self._z is self._pool.phi  # a model that adds image and text: nothing to move again
            moved = phi[part] if same else _moved(self._z, rows, around, weights)[:left]
            codes[part] = self._codes_of(moved, modality[part])


def first_items(pool: EncodedPool, size: int) -> EncodedPool:
    """The first items of a scaled pool: the pool of that size, in the same memory."""
    digest = f"{pool.digest.rpartition(' ')[0]} {size}"
    arrays = {name: getattr(pool, name)[:size] for name in ("modality", "phi", "codes")}
    return replace(pool, ids=pool.ids[:size], digest=digest, **arrays)


@dataclass(frozen=True, slots=True)
class PoolCalibration:
    """How exact search falls in pools of real and of made items."""

    spread: float  # the best of those tried
    base: int  # real items in the filled pools
    sizes: Sequence[int]
    real: Sequence[float]  # hit@5 at each size, real items
    filled: dict[float, list[float]]  # spread -> the same with made items beyond `base`


def calibrate(
    pool: EncodedPool, queries: EncodedQueries, qrels: Qrels, seed: int = 0
) -> PoolCalibration | None:
    """The spread with which filling a quarter of the pool's items up is most like the real pool.

    None where all items are relevant to some query, so that none can be taken away.
    """
    positives = qrels.item[qrels.item < len(pool)]
    base = max(len(pool) // 4, len(np.unique(positives)))
    sizes = sorted({int(size) for size in np.geomspace(base, len(pool), STEPS + 1)[1:]})
    if base >= len(pool):
        return None

    bare = replace(pool, codes=_no_codes(pool.phi, pool.modality))

    def hits(spread: float = SPREAD, real: int | None = None) -> list[float]:
        pools = ScaledPools(bare, pool.phi, positives, _no_codes, spread=spread, real=real, seed=seed)
        judged = pools.qrels(qrels)
        found = []
        for size in sizes:
            items = torch.from_numpy(pools.at(size)[0].phi)
            found.append(float(grade(nearest(queries.phi, items, 5).rows, judged).hit(5).mean()))
        return found

    real = hits()
    filled = {spread: hits(spread, base) for spread in SPREADS}
    best = min(filled, key=lambda spread: float(np.abs(np.subtract(filled[spread], real)).mean()))
    return PoolCalibration(best, base, sizes, real, filled)


def _neighbours(phi: Floats, modality: NDArray[np.uint8]) -> Ints:
    """Rows of the NEIGHBOURS nearest items of the same modality; a lone item is its own neighbour."""
    out = np.repeat(np.arange(len(phi))[:, None], NEIGHBOURS, axis=1)
    for kind in np.unique(modality):
        rows = np.flatnonzero(modality == kind)
        found = nearest(phi[rows], torch.from_numpy(phi[rows]), NEIGHBOURS + 1).rows[:, 1:]
        count = min(found.shape[1], len(rows) - 1)
        out[rows, :count] = rows[found[:, :count]]
    return out


def _moved(vectors: Floats, rows: Ints, around: Ints, weights: Floats) -> Floats:
    """vectors[rows] moved along the differences to their neighbours, at unit length."""
    moved = vectors[rows] * (1 - weights.sum(axis=1, keepdims=True))
    for number in range(around.shape[1]):
        moved += weights[:, number, None] * vectors[around[:, number]]
    length = np.linalg.norm(moved, axis=1, keepdims=True)
    return np.asarray(moved / np.maximum(length, 1e-12), dtype=np.float32)


def _no_codes(z: Floats, modality: NDArray[np.uint8]) -> Codes:
    return np.zeros((len(z), 1), dtype=np.uint16)


def _no_parts(rows: Ints) -> Parts:
    raise BadInput("a scaled pool has fused embeddings only, no image and text parts")
