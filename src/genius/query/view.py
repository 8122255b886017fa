"""A state of the index as something to search: two segments, their vectors, and who is of which modality.

Places number the items of a view: first those of the generation, then those of the delta.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.search.segment import Segment
from genius.search.trie import Bools, Ints, Trie
from genius.store.records import MODALITIES
from genius.store.snapshot import Snapshot
from genius.types import Modality

SAMPLE = 256  # items of a modality that stand for all of it


class ModalitySample(NamedTuple):
    """Items that stand for all of a modality."""

    codes: NDArray[np.uint16]  # (n, levels)
    vectors: NDArray[np.float16] | None  # (n, dim)


class PoolView:
    """A snapshot made searchable. It never changes; a new snapshot needs a new view."""

    def __init__(self, snapshot: Snapshot, sizes: Sequence[int], before: PoolView | None = None) -> None:
        self.snapshot = snapshot
        self.settled = len(snapshot.runs)  # items in the generation, removed ones included
        self._base: Segment
        self._samples: dict[Modality, ModalitySample] = {}
        self._base_tells: bool | None = None
        if before is not None and before.snapshot.generation is snapshot.generation:
            self._base, self._base_tells = before._base, before._base_tells  # keeps what it has on a device
            self._samples = {m: some for m, some in before._samples.items() if len(some.codes) == SAMPLE}
        else:
            self._base = Segment(Trie.from_arrays(snapshot.generation.arrays))
        fresh = Trie.build(
            snapshot.delta.codes, sizes, np.arange(self.settled, self.settled + len(snapshot.delta))
        )
        base = self._base.restricted(snapshot.alive()) if len(snapshot.gone) else self._base
        self.segments = [base, Segment(fresh)]

    def __len__(self) -> int:
        settled = self.segments[0].allowed
        return (self.settled if settled is None else settled.items) + len(self.snapshot.delta)

    @property
    def has_vectors(self) -> bool:
        """Whether the index keeps vectors."""
        return self.snapshot.delta.vectors is not None

    @cached_property
    def present(self) -> list[Modality]:
        """The modalities that have at least one item."""
        return [modality for modality in MODALITIES if (self.mask(modality) & self._alive).any()]

    def rows(self, places: Ints) -> Ints:
        """Row numbers in the truth."""
        rows = np.empty(len(places), dtype=np.int64)
        old = places < self.settled
        rows[old] = self.snapshot.runs.rows(places[old])
        rows[~old] = self.snapshot.delta.rows[places[~old] - self.settled]
        return rows

    def vectors(self, places: Ints) -> NDArray[np.float16]:
        """Vectors phi, (n, dim); raises CacheDamaged if the cache is not what was written."""
        assert self.snapshot.delta.vectors is not None
        large = self.snapshot.generation.large["vectors"]
        vectors = np.empty((len(places), large.shape[1]), dtype=np.float16)
        old = places < self.settled
        vectors[old] = large[places[old]]
        vectors[~old] = self.snapshot.delta.vectors[places[~old] - self.settled]
        return vectors

    def _codes(self, places: Ints) -> NDArray[np.uint16]:
        """Codes, (n, levels); reads through the whole trie."""
        trie = self._base.trie
        position = np.empty(trie.items, dtype=np.int64)
        position[trie.rows(slice(None))] = np.arange(trie.items)
        codes = np.empty((len(places), len(trie.sizes)), dtype=np.uint16)
        old = places < self.settled
        codes[old] = trie.codes(position[places[old]])
        codes[~old] = self.snapshot.delta.codes[places[~old] - self.settled]
        return codes

    @cached_property
    def modality(self) -> NDArray[np.uint8]:
        """Modality of each place, as a place in MODALITIES; removed ones too, (n,)."""
        return np.concatenate([self.snapshot.modality(), self.snapshot.delta.modality])

    @cached_property
    def _alive(self) -> Bools:
        return np.concatenate([self.snapshot.alive(), np.ones(len(self.snapshot.delta), dtype=bool)])

    def mask(self, modality: Modality) -> Bools:
        """Which places have this modality."""
        return np.asarray(self.modality == MODALITIES.index(modality))

    def sample(self, modality: Modality) -> ModalitySample:
        """Some items that stand for all of this modality: evenly spread, the same every time."""
        if modality not in self._samples:
            places = np.flatnonzero(self.mask(modality) & self._alive)
            spread = np.linspace(0, len(places) - 1, min(SAMPLE, len(places))).astype(np.int64)
            some = places[spread]
            vectors = self.vectors(some) if self.has_vectors else None
            self._samples[modality] = ModalitySample(self._codes(some), vectors)
        return self._samples[modality]

    def level_zero_tells(self, modality_codes: Mapping[Modality, int]) -> bool:
        """Whether the code of level 0 is the modality for each item, so that it can do the filtering."""
        if len(modality_codes) < len(MODALITIES):
            return False
        expected = np.array([modality_codes[modality] for modality in MODALITIES])[self.modality]
        if self._base_tells is None:
            self._base_tells = _level_zero_is(self._base.trie, expected)
        return self._base_tells and _level_zero_is(self.segments[1].trie, expected)


def _level_zero_is(trie: Trie, expected: NDArray[Any]) -> bool:
    """Whether each item of the trie has the code of level 0 that is expected at its place."""
    if not trie.items:
        return True
    first, sentinel = int(trie.levels[1]), int(trie.levels[2]) - 1
    counts = np.diff(trie.node_start[first : sentinel + 1])
    codes = np.repeat(trie.node_code[first:sentinel], counts)
    return bool((codes == expected[trie.rows(slice(None))]).all())
