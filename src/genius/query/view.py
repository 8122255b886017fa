"""A snapshot of the index made searchable: its segments, their vectors, and samples of each modality.

Ordinals number the items of a view in the order of their rows: first those of the generation, then one for
each row since. Removed items keep theirs, so that no other item's changes. Where long texts are in passages,
each passage after the first has an ordinal of its own, after that of its item. Everything here is a function
of the committed state, never of what the process did before, so replicas of one index agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.confidence import SAMPLE
from genius.query.fresh import FreshRange, Range, fresh_ranges
from genius.query.modalities import ModalityCounts
from genius.search.segment import TrieSegment
from genius.search.trie import Bools, Ints, Trie
from genius.store.records import MODALITIES
from genius.store.snapshot import Snapshot
from genius.types import Modality


class ModalitySample(NamedTuple):
    """Items that stand for all of a modality."""

    codes: NDArray[np.uint16] | None  # (n, levels), where there are no vectors
    vectors: NDArray[np.float32] | None  # (n, dim)


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

    def __init__(self, snapshot: Snapshot, before: PoolView | None = None) -> None:
        self.snapshot = snapshot
        self.base: GenerationView
        self.segments: list[TrieSegment]
        self._ranges: dict[Range, FreshRange]
        if before is not None and before.base.generation is snapshot.generation:
            self.base = before.base
        else:
            self.base = GenerationView(snapshot)
        self.settled = self.base.items
        self._first = snapshot.generation.last_row + 1  # row with the ordinal `settled`
        older = before is not None and before.snapshot.change <= snapshot.change
        kept = before if before is not None and older and before.base is self.base else None
        self._ranges = fresh_ranges(snapshot, self.settled, kept._ranges if kept else {})
        self._samples: dict[Modality, ModalitySample] = {}
        self._level_zero: dict[tuple[int, ...], bool] = {}
        self._gone = snapshot.runs.places(snapshot.gone)  # ordinals
        if kept is not None and np.array_equal(kept._gone, self._gone):
            settled = kept.segments[0]
        elif len(self._gone):
            settled = self.base.segment.without(self.base.trie_positions[self._gone])
        else:
            settled = self.base.segment
        self.segments = [settled, *(fresh.segment for fresh in self._ranges.values())]

    def __len__(self) -> int:
        settled = self.segments[0].allowed
        entries = (self.settled if settled is None else settled.items) + len(self.snapshot.delta)
        return entries - int(self._passage_counts.sum())

    @property
    def has_passages(self) -> bool:
        """Whether there may be items with several passages."""
        return len(self.snapshot.passages) > 0

    @cached_property
    def passages(self) -> tuple[Ints, Ints]:
        """Ordinals of the passages after the first of their items, ascending, and those of their items."""
        passages, items = self.snapshot.passages.rows()
        return self.ordinals(passages), self.ordinals(items)

    @cached_property
    def _passage_counts(self) -> Ints:
        """How many passages after the first there are of each modality."""
        if not self.has_passages:
            return np.zeros(len(MODALITIES), dtype=np.int64)
        ordinals, _ = self.passages
        return np.bincount(self.modalities_of(ordinals[self.live[ordinals]]), minlength=len(MODALITIES))

    def items_of(self, ordinals: Ints) -> Ints:
        """Rows in the truth of the items that these ordinals, of items or of passages, belong to."""
        return self.snapshot.passages.items_of(self.rows(ordinals))

    def with_passages(self, items: Ints) -> Ints:
        """Ordinals of items and of all their passages."""
        if not self.has_passages:
            return items
        passages, owners = self.passages
        return np.concatenate([items, passages[np.isin(owners, items)]])

    @property
    def has_vectors(self) -> bool:
        """Whether the index keeps vectors."""
        return self.snapshot.vectors is not None

    @cached_property
    def present(self) -> list[Modality]:
        """The modalities that have at least one item."""
        return [modality for modality in MODALITIES if self.count(modality)]

    def rows(self, ordinals: Ints) -> Ints:
        """Row numbers in the truth."""
        old = ordinals < self.settled
        if old.all():
            return self.snapshot.runs.rows(ordinals)
        rows = ordinals - self.settled + self._first
        rows[old] = self.snapshot.runs.rows(ordinals[old])
        return rows

    def ordinals(self, rows: Ints) -> Ints:
        """Ordinals of these rows; rows that the view does not have are left out."""
        settled = rows < self._first
        if settled.all():
            return self.snapshot.runs.places(rows)
        fresh = rows[~settled] - self._first
        fresh = fresh[fresh <= self.snapshot.through - self._first]
        return np.concatenate([self.snapshot.runs.places(rows[settled]), self.settled + fresh])

    @cached_property
    def live(self) -> Bools:
        """Which ordinals belong to an item that is not removed, (n,)."""
        live = np.zeros(self.settled + self.snapshot.through + 1 - self._first, dtype=bool)
        live[: self.settled] = True
        live[self._gone] = False
        live[self.settled + self.snapshot.delta.rows - self._first] = True
        return live

    @cached_property
    def live_items(self) -> Bools:
        """The same without passages."""
        if not self.has_passages:
            return self.live
        live = self.live.copy()
        live[self.passages[0]] = False
        return live

    def vectors(self, ordinals: Ints) -> NDArray[np.float16]:
        """Vectors phi, (n, dim); raises CacheDamaged if the cache is not what was written."""
        assert self.snapshot.vectors is not None
        large = self.snapshot.generation.large["vectors"]
        old = ordinals < self.settled
        if old.all():
            return np.asarray(large[ordinals], dtype=np.float16)
        vectors = np.empty((len(ordinals), large.shape[1]), dtype=np.float16)
        vectors[old] = large[ordinals[old]]
        vectors[~old] = self.snapshot.vectors[self._in_delta(ordinals[~old])]
        return vectors

    def mask(self, modality: Modality) -> Bools:
        """Which items have this modality, removed ones included, (n,)."""
        kind, delta = MODALITIES.index(modality), self.snapshot.delta
        mask = np.zeros(self.settled + self.snapshot.through + 1 - self._first, dtype=bool)
        mask[: self.settled] = self.base.modality == kind
        mask[self.settled + delta.rows - self._first] = delta.modality == kind
        return mask

    def modalities_of(self, ordinals: Ints) -> NDArray[np.uint8]:
        """Modalities of these items, as places in MODALITIES."""
        old = ordinals < self.settled
        if old.all():
            return self.base.modalities.of(ordinals)
        kinds = np.empty(len(ordinals), dtype=np.uint8)
        kinds[old] = self.base.modalities.of(ordinals[old])
        kinds[~old] = self.snapshot.delta.modality[self._in_delta(ordinals[~old])]
        return kinds

    def sample(self, modality: Modality) -> ModalitySample:
        """Items that stand for all of this modality: evenly spread over its rows."""
        if modality not in self._samples:
            count = self._entries(modality)
            ranks = np.linspace(0, count - 1, min(SAMPLE, count)).astype(np.int64)
            some = self._nth(modality, ranks)
            if self.has_vectors:
                self._samples[modality] = ModalitySample(None, self.vectors(some).astype(np.float32))
            else:
                self._samples[modality] = ModalitySample(self.codes(some), None)
        return self._samples[modality]

    def level_zero_is(self, modality_codes: Mapping[Modality, int]) -> bool:
        """Whether the code of level 0 is the modality of every item, so that it can do the filtering."""
        if len(modality_codes) < len(MODALITIES):
            return False
        codes = tuple(modality_codes[modality] for modality in MODALITIES)
        if codes not in self._level_zero:
            delta = self.snapshot.delta
            fresh = (delta.codes[:, 0] == np.array(codes)[delta.modality]).all()
            self._level_zero[codes] = bool(fresh) and self.base.level_zero_is(codes)
        return self._level_zero[codes]

    @cached_property
    def _removed(self) -> list[Ints]:
        """For each modality, the ranks in the generation of its removed items, ascending."""
        gone = np.sort(self._gone)
        kinds = self.base.modalities.of(gone)
        return [self.base.modalities.ranks(kind, gone[kinds == kind]) for kind in range(len(MODALITIES))]

    @cached_property
    def _fresh(self) -> list[Ints]:
        """For each modality, the ordinals of its items in the delta."""
        delta = self.snapshot.delta
        ordinals = self.settled + delta.rows - self._first
        return [ordinals[delta.modality == kind] for kind in range(len(MODALITIES))]

    def _in_delta(self, ordinals: Ints) -> Ints:
        """Where in the delta the items with these ordinals are."""
        return np.searchsorted(self.snapshot.delta.rows, ordinals - self.settled + self._first)

    def count(self, modality: Modality) -> int:
        """How many items have this modality."""
        return self._counts[modality]

    @cached_property
    def _counts(self) -> dict[Modality, int]:
        passages = dict(zip(MODALITIES, self._passage_counts.tolist(), strict=True))
        return {modality: self._entries(modality) - passages[modality] for modality in MODALITIES}

    def _entries(self, modality: Modality) -> int:
        """How many items and passages have this modality."""
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

    def codes(self, ordinals: Ints) -> NDArray[np.uint16]:
        """Codes, (n, levels)."""
        trie = self.base.segment.trie
        codes = np.empty((len(ordinals), len(trie.sizes)), dtype=np.uint16)
        old = ordinals < self.settled
        codes[old] = trie.codes(self.base.trie_positions[ordinals[old]].astype(np.int64))
        codes[~old] = self.snapshot.delta.codes[self._in_delta(ordinals[~old])]
        return codes


def _level_zero_is(trie: Trie, expected: NDArray[Any]) -> bool:
    """Whether each item of the trie has the code of level 0 that is expected at its ordinal."""
    if not trie.items:
        return True
    start, sentinel = int(trie.levels[1]), int(trie.levels[2]) - 1
    counts = np.diff(trie.node_start[start : sentinel + 1])
    codes = np.repeat(trie.node_code[start:sentinel], counts)
    return bool((codes == expected[trie.rows(slice(None))]).all())
