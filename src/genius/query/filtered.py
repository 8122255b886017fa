"""The part of a view that a filter keeps: exact search where it is small, a filter in the trie otherwise.

The filter comes before the search: as many items come back as were asked for, however few it keeps. What a
filter keeps is remembered until the index changes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.filter.grammar import (
    AllOf,
    AnyOf,
    Expression,
    FieldName,
    FieldTest,
    Has,
    Not,
    field_tests,
    parse_filter,
)
from genius.filter.rows import RowFinder, State
from genius.filter.values import check_of
from genius.query.view import PoolView
from genius.search.segment import TrieSegment
from genius.search.trie import Bools, Ints
from genius.store.index import Index
from genius.store.records import MODALITIES
from genius.types import Modality

KEPT_BYTES = 1 << 28  # of filtered views
MIXED: State = ((-1, -1), -1)  # of a pool whose parts are of two states: it counts as changed
DATE = FieldName(None, ("date",))
MODIFIED = FieldName("modified")


@dataclass
class FilteredPool:
    """The items of a view that a filter keeps."""

    expression: Expression
    view: PoolView
    mask: Bools  # by ordinal; removed items are left out
    state: State | None  # of the metadata; None where the filter does not depend on any
    kept: Bools  # of the generation, removed items included
    _settled: TrieSegment | None = None  # the first segment, where it is known from the state before

    @cached_property
    def segments(self) -> list[TrieSegment]:
        """The segments of the view, restricted to these items."""
        settled, *fresh = self.view.segments
        first = self._settled or settled.restricted(self.mask)
        return [first, *(segment.restricted(self.mask) for segment in fresh)]

    def settled_for(self, view: PoolView) -> TrieSegment | None:
        """The first segment, if it is made and also that of a later view."""
        same = "segments" in vars(self) and self.view.segments[0] is view.segments[0]
        return self.segments[0] if same else None

    @cached_property
    def _arrays(self) -> dict[tuple[str, Modality | None], NDArray[Any]]:
        return {}

    def ordinals(self, modality: Modality | None) -> Ints:
        """The items of a modality, or all of them, ascending."""
        return self._array("ordinals", modality, lambda: np.flatnonzero(self._mask(modality)))

    def vectors(self, modality: Modality | None) -> NDArray[np.float32]:
        """Their vectors, (n, dim); they stay in memory, so this is for a few items."""
        make = self.view.vectors
        return self._array("vectors", modality, lambda: make(self.ordinals(modality)).astype(np.float32))

    def codes(self, modality: Modality | None) -> NDArray[np.uint16]:
        """Their codes, (n, levels); likewise."""
        return self._array("codes", modality, lambda: self.view.codes(self.ordinals(modality)))

    def _array(self, what: str, modality: Modality | None, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        if (what, modality) not in self._arrays:
            self._arrays[what, modality] = make()
        return self._arrays[what, modality]

    @cached_property
    def items(self) -> Bools:
        """Which of them are items, not passages of one, by ordinal."""
        return self.mask & self.view.live_items if self.view.has_passages else self.mask

    def count(self, modality: Modality | None) -> int:
        """How many items of a modality there are, or of all."""
        if not self.view.has_passages:
            return len(self.ordinals(modality))
        return int(np.count_nonzero(self.items & self._mask(modality)))

    def _mask(self, modality: Modality | None) -> Bools:
        return self.mask if modality is None else self.mask & self.view.mask(modality)

    @property
    def nbytes(self) -> int:
        """Bytes that it holds, about: masks, counts in the trie, and arrays of a few items."""
        return 7 * len(self.mask) + sum(own.nbytes for own in list(self._arrays.values()))


class Filters:
    """The filters of an index by their text, with what each keeps of a view. Threads may share it."""

    def __init__(self, index: Index) -> None:
        self._finder = RowFinder(index)
        self._pools: OrderedDict[str, FilteredPool] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self, where: str, items: int) -> None:
        """Make indexes for the fields of a filter over so many items; raises BadInput if it has mistakes."""
        with self._lock:
            known = self._pools.get(where)
        for test in field_tests(parse_filter(where) if known is None else known.expression):
            self._finder.prepare(test, items)

    def pool(self, where: str, view: PoolView) -> FilteredPool:
        """What a filter keeps of a view."""
        with self._lock:
            known = self._pools.get(where)
        if known is not None and known.view is view and not self.changed(known):
            return known
        before = known if known is not None and known.view.base is view.base else None
        if before is not None and self.changed(before):
            before = None
        start = 0 if before is None else view.settled  # what the filter keeps of the generation is known
        states: set[State] = set() if before is None or before.state is None else {before.state}
        expression = parse_filter(where) if known is None else known.expression
        mask = self._mask(expression, view, start, states)
        if before is not None:
            mask = np.concatenate([before.kept, mask])
        if view.has_passages:
            passages, items = view.passages
            mask[passages] = mask[items]
        settled = None if before is None else before.settled_for(view)
        state = MIXED if len(states) > 1 else next(iter(states), None)
        pool = FilteredPool(expression, view, mask & view.live, state, mask[: view.settled], settled)
        with self._lock:
            self._pools[where] = pool
            self._pools.move_to_end(where)
            while len(self._pools) > 1 and sum(one.nbytes for one in self._pools.values()) > KEPT_BYTES:
                self._pools.popitem(last=False)
        return pool

    def changed(self, pool: FilteredPool) -> bool:
        """Whether metadata was amended since."""
        return pool.state is not None and pool.state != self._finder.state()

    def _mask(self, expression: Expression, view: PoolView, start: int, states: set[State]) -> Bools:
        """Which items pass, by ordinal from `start` on; it may be wrong for removed ones."""
        if isinstance(expression, Not):
            return ~self._mask(expression.inner, view, start, states)
        if isinstance(expression, AllOf):
            return np.asarray(
                np.all([self._mask(part, view, start, states) for part in expression.parts], axis=0)
            )
        if isinstance(expression, AnyOf):
            return np.asarray(
                np.any([self._mask(part, view, start, states) for part in expression.parts], axis=0)
            )
        if expression.field.built_in == "modality":
            return _of_modality(expression, view)[start:]
        if expression.field.built_in == "date":  # of the metadata, or else of the file
            by_file = self._mask(replace(expression, field=MODIFIED), view, start, states)
            has_own = self._mask(Has(DATE), view, start, states)
            return self._mask(replace(expression, field=DATE), view, start, states) | (by_file & ~has_own)
        rows, state = self._finder.rows(expression, view.snapshot)
        states.add(state)
        if start:
            rows = rows[np.searchsorted(rows, view.snapshot.generation.last_row, "right") :]
        mask = np.zeros(len(view.live) - start, dtype=bool)
        mask[view.ordinals(rows) - start] = True
        return mask


def _of_modality(test: FieldTest, view: PoolView) -> Bools:
    check, mask = check_of(test), np.zeros(len(view.live), dtype=bool)
    for modality in MODALITIES:
        if check(modality.value):
            mask |= view.mask(modality)
    return mask
