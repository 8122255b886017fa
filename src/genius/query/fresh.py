"""The tries of the items added since the last generation, reused from one state to the next.

Their row numbers are cut into three ranges: up to a multiple of 16,384, up to a multiple of 1,024, and the
rest. A new item changes only the last range, so a change costs the same however many items there are; a
removed item is filtered out of the trie it is in. The ranges follow from the row numbers alone: two
processes that see the same state search the same segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from genius.search.segment import TrieSegment
from genius.search.trie import Ints, Trie
from genius.store.snapshot import Snapshot

COARSE, FINE = 1 << 14, 1 << 10

Range = tuple[int, int]  # offsets from the first row after the generation


@dataclass(frozen=True, slots=True)
class FreshRange:
    """The items of one range of rows as a segment."""

    rows: Ints  # of the items that are not removed
    built: TrieSegment  # with the items that were there when it was built
    segment: TrieSegment  # the same without the ones that were removed since


def fresh_ranges(
    snapshot: Snapshot, settled: int, before: Mapping[Range, FreshRange]
) -> dict[Range, FreshRange]:
    """The ranges of a snapshot, with what can be kept of those `before`; ordinals begin with `settled`."""
    first = snapshot.generation.last_row + 1
    delta = snapshot.delta
    found = {}
    for start, end in _cut(snapshot.through + 1 - first):
        low, high = np.searchsorted(delta.rows, (first + start, first + end))
        rows, old = delta.rows[low:high], before.get((start, end))
        ordinals = settled + rows - first
        if old is None:
            built = TrieSegment(Trie.build(delta.codes[low:high], snapshot.sizes, ordinals))
            found[start, end] = FreshRange(rows, built, built)
        elif len(old.rows) == len(rows):  # row numbers are never used twice, so these are the same items
            found[start, end] = old
        else:
            mask = np.zeros(settled + end, dtype=bool)
            mask[ordinals] = True
            found[start, end] = FreshRange(rows, old.built, old.built.restricted(mask))
    return found


def _cut(count: int) -> Iterator[Range]:
    """The ranges of so many rows."""
    edges = (0, count // COARSE * COARSE, count // FINE * FINE, count)
    return ((start, end) for start, end in pairwise(edges) if start < end)
