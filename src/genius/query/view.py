"""A snapshot of the index made searchable: two segments, their vectors, and samples of each modality.

Ordinals number the items of a view in the order of their rows: first those of the generation, removed ones
included, then those of the delta. Everything here is a function of the committed state, never of what the
process did before, so replicas of one index agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.query.modalities import ModalityCounts
from genius.search.segment import TrieSegment
from genius.search.trie import Bools, Ints, Trie
from genius.store.records import MODALITIES
from genius.store.snapshot import Snapshot
from genius.types import Modality

SAMPLE = 256  # items of a modality that stand for all of it


class ModalitySample(NamedTuple):
    """Items that stand for all of a modality."""

    codes: NDArray[np.uint16] | None  # (n, levels), where there are no vectors
    vectors: NDArray[np.float16] | None  # (n, dim)


class GenerationView:
    """What all views of one generation share; whatever takes a look at every item is computed once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.generation = snapshot.generation
        self.segment = TrieSegment(
            Trie.from_arrays(snapshot.generation.arrays)
        )  # keeps its tensors on a device
        self.items = len(snapshot.runs)  # removed ones included
        self.modalities = ModalityCounts(snapshot.generation.arrays["modality"], self.items)
        self._level_zero: dict[tuple[int, ...], bool] = {}

    @cached_property
    def trie_positions(self) -> NDArray[np.uint32]:
        """Where in the order of the trie each item is, (items,)."""
        trie = self.segment.trie
        positions = np.empty(trie.items, dtype=np.uint32)
        positions[trie.rows(slice(None))] = np.arange(trie.items, dtype=np.uint32)
        return positions

    @cached_property
    def modality(self) -> NDArray[np.uint8]:
        """Modality of each item, as a place in MODALITIES, (items,)."""
        return self.modalities.of(np.arange(self.items))

    def level_zero_is(self, modality_codes: tuple[int, ...]) -> bool:
        """Whether level 0 of every item is the code of its modality."""
        if modality_codes not in self._level_zero:
            self._level_zero[modality_codes] = _level_zero_is(
                self.segment.trie, np.array(modality_codes)[self.modality]
            )
        return self._level_zero[modality_codes]


class PoolView:
    """A snapshot made searchable. It never changes; a new snapshot needs a new view."""

    def __init__(self, snapshot: Snapshot, sizes: Sequence[int], before: PoolView | None = None) -> None:
        self.snapshot = snapshot
        self.base: GenerationView
        if before is not None and before.base.generation is snapshot.generation:
            self.base = before.base
        else:
            self.base = GenerationView(snapshot)
        self.settled = self.base.items
        self._samples: dict[Modality, ModalitySample] = {}
        self._level_zero: dict[tuple[int, ...], bool] = {}
        fresh = Trie.build(
            snapshot.delta.codes, sizes, np.arange(self.settled, self.settled + len(snapshot.delta))
        )
        base = self.base.segment
        self.segments = [
            base.restricted(snapshot.alive()) if len(snapshot.gone) else base,
            TrieSegment(fresh),
        ]

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
        return [modality for modality in MODALITIES if self._count(modality)]

    def rows(self, ordinals: Ints) -> Ints:
        """Row numbers in the truth."""
        rows = np.empty(len(ordinals), dtype=np.int64)
        old = ordinals < self.settled
        rows[old] = self.snapshot.runs.rows(ordinals[old])
        rows[~old] = self.snapshot.delta.rows[ordinals[~old] - self.settled]
        return rows

    def vectors(self, ordinals: Ints) -> NDArray[np.float16]:
        """Vectors phi, (n, dim); raises CacheDamaged if the cache is not what was written."""
        assert self.snapshot.delta.vectors is not None
        large = self.snapshot.generation.large["vectors"]
        vectors = np.empty((len(ordinals), large.shape[1]), dtype=np.float16)
        old = ordinals < self.settled
        vectors[old] = large[ordinals[old]]
        vectors[~old] = self.snapshot.delta.vectors[ordinals[~old] - self.settled]
        return vectors

    def mask(self, modality: Modality) -> Bools:
        """Which items have this modality, removed ones included, (n,)."""
        every = np.concatenate([self.base.modality, self.snapshot.delta.modality])
        return np.asarray(every == MODALITIES.index(modality))

    def sample(self, modality: Modality) -> ModalitySample:
        """Items that stand for all of this modality: evenly spread over its rows."""
        if modality not in self._samples:
            count = self._count(modality)
            ranks = np.linspace(0, count - 1, min(SAMPLE, count)).astype(np.int64)
            some = self._nth(modality, ranks)
            if self.has_vectors:
                self._samples[modality] = ModalitySample(None, self.vectors(some))
            else:
                self._samples[modality] = ModalitySample(self._codes(some), None)
        return self._samples[modality]

    def level_zero_is(self, modality_codes: Mapping[Modality, int]) -> bool:
        """Whether the code of level 0 is the modality of every item, so that it can do the filtering."""
        if len(modality_codes) < len(MODALITIES):
            return False
        codes = tuple(modality_codes[modality] for modality in MODALITIES)
        if codes not in self._level_zero:
            expected = np.array(codes)[self.snapshot.delta.modality]
            fresh = _level_zero_is(self.segments[1].trie, expected, self.settled)
            self._level_zero[codes] = fresh and self.base.level_zero_is(codes)
        return self._level_zero[codes]

    @cached_property
    def _removed(self) -> list[Ints]:
        """For each modality, the ranks in the generation of its removed items, ascending."""
        gone = np.sort(self.snapshot.runs.places(self.snapshot.gone))
        kinds = self.base.modalities.of(gone)
        return [self.base.modalities.ranks(kind, gone[kinds == kind]) for kind in range(len(MODALITIES))]

    @cached_property
    def _fresh(self) -> list[Ints]:
        """For each modality, the ordinals of its items in the delta."""
        delta = self.snapshot.delta.modality
        return [self.settled + np.flatnonzero(delta == kind) for kind in range(len(MODALITIES))]

    def _count(self, modality: Modality) -> int:
        kind = MODALITIES.index(modality)
        return self.base.modalities.total(kind) - len(self._removed[kind]) + len(self._fresh[kind])

    def _nth(self, modality: Modality, ranks: Ints) -> Ints:
        """Ordinals of the items at these ranks among all of a modality that are not removed."""
        kind = MODALITIES.index(modality)
        removed, fresh = self._removed[kind], self._fresh[kind]
        settled = self.base.modalities.total(kind) - len(removed)
        old = ranks[ranks < settled]
        passed = np.searchsorted(removed - np.arange(len(removed)), old, "right")  # removed ones before each
        return np.concatenate(
            [self.base.modalities.nth(kind, old + passed), fresh[ranks[len(old) :] - settled]]
        )

    def _codes(self, ordinals: Ints) -> NDArray[np.uint16]:
        """Codes, (n, levels)."""
        trie = self.base.segment.trie
        codes = np.empty((len(ordinals), len(trie.sizes)), dtype=np.uint16)
        old = ordinals < self.settled
        codes[old] = trie.codes(self.base.trie_positions[ordinals[old]].astype(np.int64))
        codes[~old] = self.snapshot.delta.codes[ordinals[~old] - self.settled]
        return codes


def _level_zero_is(trie: Trie, expected: NDArray[Any], first: int = 0) -> bool:
    """Whether each item of the trie (ordinals from `first` on) has the code of level 0 that is expected."""
    if not trie.items:
        return True
    start, sentinel = int(trie.levels[1]), int(trie.levels[2]) - 1
    counts = np.diff(trie.node_start[start : sentinel + 1])
    codes = np.repeat(trie.node_code[start:sentinel], counts)
    return bool((codes == expected[trie.rows(slice(None)) - first]).all())
