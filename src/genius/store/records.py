"""What the truth keeps of an item, as values."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.types import Modality

Codes = NDArray[np.uint16]
Vectors = NDArray[np.float16]
Rows = NDArray[np.int64]

MODALITIES: tuple[Modality, ...] = tuple(Modality)  # arrays keep a modality as its place in here
SETTLED_NS = 2_000_000_000  # a file touched less than this before it was read may change again unseen


@dataclass(frozen=True, slots=True)
class Stamp:
    """Size and times of a file when it was read: tells an unchanged file without reading it again."""

    size: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    seen_ns: int = 0  # our clock when the file was read

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """The stamp of a file that is about to be read."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, time.time_ns())

    def vouches_for(self, now: Stamp) -> bool:
        """Whether a file with the stamp `now` is surely the one read at this stamp.

        Size and both times must agree, and both times must lie well before the moment of reading: a time in
        the future, or one that came back, proves nothing, and then only the hash of the content decides.
        """
        same = (self.size, self.mtime_ns, self.ctime_ns) == (now.size, now.mtime_ns, now.ctime_ns)
        return same and max(self.mtime_ns, self.ctime_ns) < self.seen_ns - SETTLED_NS


@dataclass(frozen=True, slots=True)
class Passages:
    """The passages of a text that is longer than the encoder reads.

    Codes and vector of the item are those of the first one; here are those of the others.
    """

    spans: NDArray[np.int32]  # (n, 2) start and end in the text, the first passage included
    codes: Codes  # (n - 1, M)
    vectors: Vectors | None = None  # (n - 1, d)

    def columns(self) -> tuple[Any, ...]:
        """The values of the table `passages`, without the row."""
        spans = np.ascontiguousarray(self.spans, dtype="<i4").tobytes()
        codes = np.ascontiguousarray(self.codes, dtype="<u2").tobytes()
        vectors = None if self.vectors is None else np.ascontiguousarray(self.vectors, dtype="<f2").tobytes()
        return len(self.codes), spans, codes, vectors


@dataclass(frozen=True, slots=True)
class PassageRows:
    """Which items have more than one passage; the others have the row numbers after the item's own."""

    items: Rows  # (n,) ascending
    counts: Rows  # (n,) passages after the first

    @classmethod
    def none(cls) -> PassageRows:
        """No item."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.items)

    def followed_by(self, others: PassageRows) -> PassageRows:
        """With others, whose rows come later."""
        if not len(others):
            return self
        pairs = ((self.items, others.items), (self.counts, others.counts))
        return PassageRows(*(np.concatenate(pair) for pair in pairs))

    def items_of(self, rows: Rows) -> Rows:
        """The rows of the items that these rows, of items or of passages, belong to."""
        if not len(self.items):
            return rows
        place = np.searchsorted(self.items, rows, "right") - 1
        item = self.items[place]
        return np.asarray(np.where((place >= 0) & (rows <= item + self.counts[place]), item, rows))

    def rows(self) -> tuple[Rows, Rows]:
        """The rows of all passages but the first ones, ascending, and those of their items."""
        items = np.repeat(self.items, self.counts)
        starts = np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
        return items + 1 + np.arange(len(items)) - starts, items

    def without_passages(self, rows: Rows) -> Rows:
        """Those rows that are of items."""
        return np.asarray(rows[self.items_of(rows) == rows])


@dataclass(frozen=True, slots=True)
class Record:
    """An item as it is stored."""

    id: str
    modality: Modality
    codes: Codes  # (M,)
    vector: Vectors | None = None  # (d,)
    path: str | None = None
    text: str | None = None
    source: str | None = None  # the folder or file it was read from
    meta: str = "{}"  # JSON object
    hash: bytes = b""
    stamp: Stamp = field(default_factory=Stamp)
    thumbnail: bytes | None = None  # JPEG; kept only for images without a file
    passages: Passages | None = None  # of a text that is longer than the encoder reads

    def require_shapes(self, levels: int, dim: int | None) -> None:
        """Assert that codes and vectors are those of an index with so many levels and dimensions."""
        width = None if self.vector is None else self.vector.shape
        assert self.codes.shape == (levels,), self.codes.shape
        assert width == (None if dim is None else (dim,)), width
        if self.passages is not None:
            vectors, others = self.passages.vectors, len(self.passages.spans) - 1
            assert self.passages.codes.shape == (others, levels) and others > 0
            shape = None if vectors is None else vectors.shape
            assert shape == (None if dim is None else (others, dim)), shape

    def columns(self) -> tuple[Any, ...]:
        """The values of the table `items`, without the row."""
        path = None if self.path is None else os.fsencode(self.path)
        source = None if self.source is None else os.fsencode(self.source)
        codes = np.ascontiguousarray(self.codes, dtype="<u2").tobytes()
        vector = None if self.vector is None else np.ascontiguousarray(self.vector, dtype="<f2").tobytes()
        modality, stamp = self.modality.value, self.stamp
        times = (stamp.size, stamp.mtime_ns, stamp.ctime_ns, stamp.seen_ns)
        content = (self.id, modality, path, self.text, source, self.meta, *times, self.hash, codes)
        return (*content, vector, checksum(content), checksum((modality, codes, vector)))


@dataclass(frozen=True, slots=True)
class Known:
    """What is needed of a stored item to see whether it has changed."""

    row: int
    path: str | None
    source: str | None
    meta: str
    hash: bytes
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Amendment:
    """A change of a stored item that leaves its codes as they are: where it lies and what is said of it."""

    row: int
    path: str | None
    source: str | None
    meta: str
    stamp: Stamp
    only_stamp: bool = False  # nothing but the times of the file


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Rows of the truth as arrays, in the order of their row numbers."""

    rows: Rows  # (n,)
    modality: NDArray[np.uint8]  # (n,), places in MODALITIES
    codes: Codes  # (n, M)
    vectors: Vectors | None  # (n, d)

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def join(cls, parts: Iterable[RecordBatch]) -> RecordBatch:
        """One batch of several, which are in row order."""
        every = list(parts)
        vectors = [part.vectors for part in every if part.vectors is not None]
        return cls(
            np.concatenate([part.rows for part in every]),
            np.concatenate([part.modality for part in every]),
            np.concatenate([part.codes for part in every]),
            np.concatenate(vectors) if len(vectors) == len(every) else None,
        )

    def take(self, keep: NDArray[Any]) -> RecordBatch:
        """The part of it that `keep` (a mask or places) names."""
        vectors = None if self.vectors is None else self.vectors[keep]
        return RecordBatch(self.rows[keep], self.modality[keep], self.codes[keep], vectors)


def pack_modality(modality: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Four modalities to a byte, (ceil(n / 4),)."""
    four = np.pad(modality, (0, -len(modality) % 4)).reshape(-1, 4)
    return np.asarray((four << np.array([0, 2, 4, 6], dtype=np.uint8)).sum(axis=1, dtype=np.uint8))


def unpack_modality(packed: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """The `count` modalities that were packed."""
    four = (packed[:, None] >> np.array([0, 2, 4, 6], dtype=np.uint8)) & np.uint8(3)
    return four.ravel()[:count]


@dataclass(frozen=True, slots=True)
class RowRuns:
    """Ascending row numbers as runs without gaps: next to no memory when little was removed in between."""

    place: Rows  # (runs + 1,) first place of each run; the last is the count
    row: Rows  # (runs,) row number at that place

    @classmethod
    def of(cls, rows: Rows) -> RowRuns:
        """The runs of `rows`, ascending."""
        starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
        return cls(np.append(starts, len(rows)).astype(np.int64), rows[starts])

    def __len__(self) -> int:
        return int(self.place[-1])

    def rows(self, places: Rows) -> Rows:
        """Row numbers at these places."""
        run = np.searchsorted(self.place, places, "right") - 1
        return np.asarray(self.row[run] + places - self.place[run])

    def places(self, rows: Rows) -> Rows:
        """Places of these row numbers; numbers that are not there are left out."""
        if not len(self.row):
            return np.zeros(0, np.int64)
        run = np.maximum(np.searchsorted(self.row, rows, "right") - 1, 0)
        places = self.place[run] + rows - self.row[run]
        return np.asarray(places[(rows >= self.row[0]) & (places < self.place[run + 1])])


def checksum(fields: Iterable[object]) -> int:
    """CRC-32 of fields; their types, their boundaries and the absent ones count."""
    parts: list[bytes] = []
    for value in fields:
        if value is None:
            parts.append(b"i4:None")
        elif isinstance(value, str):
            data = value.encode("utf-8", "surrogateescape")
            parts.append(b"s%d:%b" % (len(data), data))
        elif isinstance(value, bytes):
            parts.append(b"b%d:%b" % (len(value), value))
        else:  # an integer; from a damaged page perhaps a float
            data = repr(value).encode()
            parts.append(b"i%d:%b" % (len(data), data))
    return zlib.crc32(b"".join(parts))


def rows_digest(rows: Rows) -> tuple[int, int]:
    """How many row numbers there are, and a sum of them that a lost or changed one alters.

    Digests of disjoint sets add up, both numbers modulo 2 ** 64.
    """
    spread = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # wraps around
    return len(rows), int(spread.sum(dtype=np.uint64))
