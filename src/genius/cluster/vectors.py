"""Vectors of a generation in several shards, processes with a range of items each.

Codes and trie are small and in every replica; vectors are large. A replica gathers those of the leaves under
its beams, and reads the file itself where a shard does not answer: slower, but the same answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.engine import Engine
from genius.query.view import PoolView
from genius.serve.log import LOGGER
from genius.store import generations
from genius.store.building import LAYOUT
from genius.store.index import Index
from genius.store.large_array import CacheDamaged, LargeArray

AT_ONCE = 1 << 14  # rows copied at a time
KEPT = 2  # generations: the present one, and the one that some replicas still search
WAIT_S = 2.0
REST_S = 10.0  # a shard that did not answer is not asked for so long: it is starting again

Vectors = NDArray[np.float16]


def bounds(items: int, shards: int) -> NDArray[np.int64]:
    """Where the range of each shard begins, and the end, (shards + 1,)."""
    return np.arange(shards + 1, dtype=np.int64) * items // shards


class VectorShard:
    """One range of the vectors of an index, in memory."""

    def __init__(self, folder: str, shard: int, shards: int) -> None:
        self.index = Index.open(Path(folder))
        self.shard, self.shards = shard, shards
        self._held: dict[int, tuple[int, Vectors]] = {}  # generation -> first place, vectors
        self._hold()

    def rows(self, generation: int, places: NDArray[np.int64]) -> Vectors | None:
        """Vectors of places in the range, (n, dim); None if this is a generation it does not have."""
        if generation not in self._held:
            self._hold()
        if generation not in self._held:
            return None
        first, vectors = self._held[generation]
        return np.asarray(vectors[places - first])

    def check_health(self) -> None:
        """Raise if the index cannot be read any more; Ray Serve then starts another."""
        self.index.pinned()

    def held(self) -> dict[int, int]:
        """How many vectors of which generation are here."""
        return {number: len(vectors) for number, (_, vectors) in self._held.items()}

    def _hold(self) -> None:
        """Copy the range of the present generation, checked block by block."""
        pinned = self.index.pinned()
        if not pinned.number or pinned.number in self._held or self.index.dim is None:
            return
        try:
            generation = generations.load(self.index.folder, pinned.number, pinned.digest, LAYOUT)
        except CacheDamaged:
            return  # whoever searches builds it anew
        try:
            large = generation.large["vectors"]
            first, last = bounds(len(large), self.shards)[self.shard : self.shard + 2]
            vectors = np.empty((last - first, self.index.dim), np.float16)
            for start in range(0, len(vectors), AT_ONCE):
                vectors[start : start + AT_ONCE] = large[first + start : min(first + start + AT_ONCE, last)]
            self._held[pinned.number] = (int(first), vectors)
        except CacheDamaged:
            return
        finally:
            generation.close()
        for old in sorted(self._held)[:-KEPT]:
            del self._held[old]


class ShardedVectors:
    """The vectors of one generation as an array whose rows lie in several shards."""

    def __init__(self, own: LargeArray, generation: int, shards: Sequence[Any]) -> None:
        self.own, self.generation, self.shards = own, generation, shards
        self._bounds = bounds(len(own), len(shards))
        self.shape = own.shape
        self._resting: dict[int, float] = {}  # shard -> until when it is not asked

    def __len__(self) -> int:
        return len(self.own)

    def __getitem__(self, places: slice | NDArray[Any]) -> NDArray[Any]:
        """Rows at these places; raises CacheDamaged as the array itself would."""
        if isinstance(places, slice):
            return self.own[places]
        places = np.asarray(places, dtype=np.int64)
        rows = np.empty((len(places), self.shape[1]), np.float16)
        owner = np.searchsorted(self._bounds, places, "right") - 1
        pending = []
        for shard in np.unique(owner).tolist():
            mask = owner == shard
            if time.monotonic() < self._resting.get(shard, 0.0):
                rows[mask] = self.own[places[mask]]
            else:
                pending.append((shard, mask, self.shards[shard].rows.remote(self.generation, places[mask])))
        for shard, mask, answer in pending:
            found = self._answer(shard, answer)
            rows[mask] = self.own[places[mask]] if found is None else found
        return rows

    def _answer(self, shard: int, answer: Any) -> Vectors | None:
        try:
            found: Vectors | None = answer.result(timeout_s=WAIT_S)
        except Exception as error:  # dead, starting, too slow: the file has the same rows
            LOGGER.warning("vectors read from disk", extra={"fields": {"reason": type(error).__name__}})
            self._resting[shard] = time.monotonic() + REST_S
            return None
        return found


class ShardedEngine(Engine):
    """An engine that re-ranks with vectors that lie in shards."""

    shards: Sequence[Any] = ()

    def _current(self) -> PoolView:
        view = super()._current()
        generation = view.snapshot.generation
        own = generation.large.get("vectors")
        if self.shards and generation.number and isinstance(own, LargeArray):
            generation.large["vectors"] = ShardedVectors(own, generation.number, self.shards)  # type: ignore[assignment]
        return view
