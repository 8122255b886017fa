"""Stored items without a search: those that a filter keeps, in the order they were added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from genius.errors import BadInput
from genius.query.facets import count_facets
from genius.query.filtered import FilteredPool
from genius.query.paging import PageCursor
from genius.query.view import PoolView
from genius.store.records import Record, Rows
from genius.store.truth import Truth
from genius.types import Facets

CHUNK = 4096  # records read at a time


class ItemPage(NamedTuple):
    """Some of the stored items, in the order they were added."""

    items: list[Record]
    total: int  # how many the filter keeps
    facets: Facets  # over all of them
    cursor: str | None  # of the next page; None if no more follow


def browse(
    truth: Truth,
    view: PoolView,
    pool: FilteredPool | None,
    limit: int | None,
    offset: int,
    cursor: str | None,
    facets: Sequence[str],
) -> ItemPage:
    """Up to `limit` of the items of a view, or of a filtered part of it, from the cursor on."""
    for name, value in (("limit", limit), ("offset", offset)):
        if value is not None and (not isinstance(value, int) or value < 0):
            raise BadInput(f"{name} {value!r}: must be a whole number, at least 0")
    rows = view.rows(np.flatnonzero(view.live_items if pool is None else pool.items))
    after = 0 if cursor is None else PageCursor.parse(cursor).through
    start = int(np.searchsorted(rows, after, "right")) + offset
    end = len(rows) if limit is None else start + limit
    here = rows[start:end]
    counted = count_facets(facets, (one for part in _parts(rows) for one in _records(truth, part)))
    following = str(PageCursor(int(here[-1]))) if len(here) and end < len(rows) else None
    return ItemPage(_records(truth, here), len(rows), counted, following)


def _parts(rows: Rows) -> list[Rows]:
    return [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]


def _records(truth: Truth, rows: Rows) -> list[Record]:
    """The items of these rows that are still there, in their order."""
    found = truth.records(rows.tolist())
    return [found[row] for row in rows.tolist() if row in found]
