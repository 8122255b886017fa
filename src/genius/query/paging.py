"""Pages of one ranking, and the cursor that leads from one to the next while the index changes.

A cursor names the last row of the index when the first page was asked for, and the rows that were shown. The
next page is cut from a new search: without what was shown, and without what has come since. So no item
appears twice, items that are added or changed meanwhile do not shift the others, and removed ones are
skipped.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from genius.errors import BadInput
from genius.query.embedding import EmbeddedSubquery
from genius.query.filtered import FilteredPool
from genius.query.loaded import LoadedModel
from genius.query.ranking import Ranking, ScoredRow, rank
from genius.query.view import PoolView
from genius.query.words import WordMatches
from genius.search.options import SearchOptions


@dataclass(frozen=True, slots=True)
class PageCursor:
    """Where the next page begins."""

    through: int  # rows that came later are not shown
    shown: tuple[int, ...] = ()  # rows

    def __str__(self) -> str:
        data = np.array([self.through, *self.shown], dtype="<u4").tobytes()
        return base64.urlsafe_b64encode(zlib.crc32(data).to_bytes(4) + data).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> PageCursor:
        """The cursor that was written as `text`; raises BadInput."""
        try:
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except (binascii.Error, ValueError):
            raw = b""
        if len(raw) < 8 or len(raw) % 4 or zlib.crc32(raw[4:]) != int.from_bytes(raw[:4]):
            raise BadInput("the cursor is damaged: send it as it came, or begin again without one")
        through, *shown = np.frombuffer(raw[4:], dtype="<u4").tolist()
        return cls(through, tuple(shown))


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which part of a ranking is asked for."""

    k: int
    offset: int = 0
    cursor: PageCursor | None = None
    without: int | None = None  # the row of the item that asks

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("offset", 0)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < least:
                raise BadInput(f"{name} {value!r}: must be a whole number, at least {least}")
        if self.cursor is not None and self.offset:
            raise BadInput("a cursor and an offset: leave one of them out")

    @property
    def depth(self) -> int:
        """How many items of the ranking are enough, unless others have come since the first page."""
        shown = 0 if self.cursor is None else len(self.cursor.shown)
        return self.k + self.offset + shown + (self.without is not None)

    def left(self, items: Sequence[ScoredRow]) -> list[ScoredRow]:
        """What a ranking has that was not shown yet and is old enough."""
        through = np.inf if self.cursor is None else self.cursor.through
        gone = {self.without, *(() if self.cursor is None else self.cursor.shown)}
        return [item for item in items if item.row not in gone and item.row <= through]

    @property
    def end(self) -> int:
        """Where the page ends in what is left."""
        return self.offset + self.k

    def next(self, left: Sequence[ScoredRow], through: int) -> str | None:
        """The cursor after this page; None if the page is not full."""
        if len(left) < self.end:
            return None
        before = self.cursor or PageCursor(through)
        return str(PageCursor(before.through, (*before.shown, *(item.row for item in left[: self.end]))))

    @property
    def first_rank(self) -> int:
        """The rank of the first item of the page."""
        return 1 + self.offset + (0 if self.cursor is None else len(self.cursor.shown))


def rank_page(
    page: PageRequest,
    view: PoolView,
    loaded: LoadedModel,
    queries: Sequence[Sequence[EmbeddedSubquery]],
    options: SearchOptions,
    pool: FilteredPool | None,
    words: Sequence[WordMatches | None] | None = None,
) -> list[Ranking]:
    """Rankings of `options.k` items for each query; deeper ones if many have come since the first page."""
    searcher = loaded.searcher_for(options)
    while True:
        ranked = rank(view, searcher, loaded.model, queries, options, pool, words)
        if page.cursor is None:
            return ranked
        short = [one for one in ranked if len(page.left(one.items)) < page.end]
        if not any(len(one.items) == options.k for one in short):
            return ranked
        options = replace(options, k=2 * options.k)
