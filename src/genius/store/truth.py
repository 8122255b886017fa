"""The truth of an index: one SQLite file (WAL, synchronous FULL) of items, codes, vectors and settings."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from genius.failpoints import failpoint
from genius.locks import OrderedLock
from genius.store import schema
from genius.store.connection import connect, corrupt, sqlite_errors
from genius.store.records import MODALITIES, Amendment, Known, Record, RecordBatch, Rows, Stamp, checksum
from genius.types import Modality

CHUNK = 4096  # rows read at a time
_PLACE = {modality.value: place for place, modality in enumerate(MODALITIES)}
_INSERT = (
    "INSERT INTO items (id, modality, path, text, source, meta, size, mtime_ns, ctime_ns, seen_ns, hash, "
    "codes, vector, content_sum, codes_sum) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
)
_CONTENT = (
    "row, id, modality, path, text, source, meta, size, mtime_ns, ctime_ns, seen_ns, hash, codes, content_sum"
)


class Truth:
    """The open SQLite file; threads may share it and take turns."""

    def __init__(self, file: Path, connection: sqlite3.Connection) -> None:
        self.file = file
        self.connection = connection
        self._turn = OrderedLock("truth")

    @classmethod
    def open(cls, file: Path) -> Truth:
        """Open the truth for reading and writing, or just reading where the folder cannot be written."""
        return cls(file, connect(file))

    def close(self) -> None:
        """Close the file; what was committed stays."""
        with suppress(sqlite3.Error):
            self.connection.close()

    @property
    def version(self) -> int:
        """Version of the tables."""
        return int(self._one("PRAGMA user_version"))

    def migrate(self) -> None:
        """Bring older tables to the newest version in one transaction."""
        with self.writing():
            schema.migrate(self.connection, self.version)

    # --- settings -----------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Every setting."""
        with self._use():
            try:
                return {
                    key: json.loads(value) for key, value in self.connection.execute("SELECT * FROM meta")
                }
            except ValueError:
                raise corrupt(self.file, "its settings cannot be read") from None

    def put(self, **settings: Any) -> None:
        """Write settings; the caller holds the transaction."""
        rows = [(key, json.dumps(value)) for key, value in settings.items()]
        self.connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    def change(self) -> int:
        """A number that grows with every transaction."""
        return int(self._one("SELECT value FROM meta WHERE key = 'change'"))

    # --- writing ------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction: committed and on disk when it ends well, gone when it does not."""
        with self._use():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'change'")
                failpoint("before-commit")
                self.connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.connection.execute("ROLLBACK")
                raise
        failpoint("after-commit")

    def upsert(self, records: Sequence[Record]) -> None:
        """Add or replace items by id, the last of equal ids winning; the caller holds the transaction."""
        last = {record.id: record for record in records}
        self.delete(list(last))
        for record in last.values():
            cursor = self.connection.execute(_INSERT, record.columns())
            if record.thumbnail is not None:
                self.connection.execute(
                    "INSERT INTO thumbnails VALUES (?, ?)", (cursor.lastrowid, record.thumbnail)
                )

    def delete(self, ids: Sequence[str]) -> int:
        """Take items out, leaving tombstones; how many there were. The caller holds the transaction."""
        count = 0
        for id in dict.fromkeys(ids):
            found = self.connection.execute("DELETE FROM items WHERE id = ? RETURNING row", (id,)).fetchall()
            self.connection.executemany("INSERT INTO removed VALUES (?)", found)
            self.connection.executemany("DELETE FROM thumbnails WHERE row = ?", found)
            count += len(found)
        return count

    def amend(self, change: Amendment) -> None:
        """Change what a search does not look at, in place; the caller holds the transaction."""
        for record in self.records([change.row]).values():
            new = replace(
                record, path=change.path, source=change.source, meta=change.meta, stamp=change.stamp
            )
            values = new.columns()
            self.connection.execute(
                "UPDATE items SET path = ?, text = ?, source = ?, meta = ?, size = ?, mtime_ns = ?, "
                "ctime_ns = ?, seen_ns = ?, content_sum = ? WHERE row = ?",
                (*values[2:10], values[-2], change.row),
            )

    def forget_removed(self, through: int) -> None:
        """Drop tombstones of rows that no generation holds any more; the caller holds the transaction."""
        self.connection.execute("DELETE FROM removed WHERE row <= ?", (through,))

    # --- reading ------------------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All reads inside see one and the same state."""
        with self._use():
            if self.connection.in_transaction:  # of this same thread: it has the turn
                yield
                return
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                with suppress(sqlite3.Error):
                    self.connection.execute("COMMIT")

    def known(self, ids: Sequence[str]) -> dict[str, Known]:
        """Of the stored ones among `ids`, what tells whether they have changed."""
        found = {}
        query = (
            "SELECT row, path, source, meta, hash, size, mtime_ns, ctime_ns, seen_ns FROM items WHERE id = ?"
        )
        with self._use():
            for id in ids:
                for row, path, source, meta, hash, *stamp in self.connection.execute(query, (id,)):
                    found[id] = Known(row, _path(path), _path(source), meta, hash, Stamp(*stamp))
        return found

    def records(self, rows: Iterable[int]) -> dict[int, Record]:
        """The items of these rows, without vectors; rows that are gone are left out."""
        found = {}
        with self._use():
            for row in rows:
                for values in self.connection.execute(
                    f"SELECT {_CONTENT} FROM items WHERE row = ?", (int(row),)
                ):
                    found[int(row)] = self._record(values)
        return found

    def record(self, id: str) -> tuple[int, Record] | None:
        """Row and content of the item called `id`."""
        with self._use():
            values = self.connection.execute(f"SELECT {_CONTENT} FROM items WHERE id = ?", (id,)).fetchone()
        return None if values is None else (int(values[0]), self._record(values))

    def thumbnail(self, row: int) -> bytes | None:
        """The stored thumbnail of a row, if it has one."""
        with self._use():
            found = self.connection.execute("SELECT jpeg FROM thumbnails WHERE row = ?", (row,)).fetchone()
        return None if found is None else bytes(found[0])

    def ids_from(self, source: str) -> list[str]:
        """Ids of the items that were read from `source`, in row order."""
        query = "SELECT id FROM items WHERE source = ? ORDER BY row"
        with self._use():
            return [id for (id,) in self.connection.execute(query, (os.fsencode(source),))]

    def batches(
        self, levels: int, dim: int | None, after: int = 0, through: int | None = None
    ) -> Iterator[RecordBatch]:
        """Items with row numbers in (after, through] as arrays, a chunk at a time, checksums verified.

        `dim` is the width of the vectors, or None to leave them out.
        """
        last = self.last_row() if through is None else through
        columns = "row, modality, codes, codes_sum, vector"
        query = f"SELECT {columns} FROM items WHERE row > ? AND row <= ? ORDER BY row LIMIT {CHUNK}"
        while True:
            with self._use():
                chunk = self.connection.execute(query, (after, last)).fetchall()
            if not chunk:
                return
            yield self._batch(chunk, levels, dim)
            after = chunk[-1][0]

    def removed(self, through: int) -> Rows:
        """Rows up to `through` that are gone, ascending."""
        with self._use():
            found = self.connection.execute("SELECT row FROM removed WHERE row <= ? ORDER BY row", (through,))
            return np.array([row for (row,) in found], dtype=np.int64)

    def since(self, row: int) -> tuple[int, int]:
        """How many items have come after `row`, and how many up to it have gone."""
        added = self._one("SELECT count(*) FROM items WHERE row > ?", row)
        return int(added), int(self._one("SELECT count(*) FROM removed WHERE row <= ?", row))

    def rows(self) -> Rows:
        """Row numbers of all items, ascending."""
        with self._use():
            return np.array(
                [row for (row,) in self.connection.execute("SELECT row FROM items ORDER BY row")], np.int64
            )

    def integrity(self) -> list[str]:
        """What SQLite itself finds wrong with the file."""
        with self._use():
            found = [str(line) for (line,) in self.connection.execute("PRAGMA integrity_check(20)")]
        return [] if found == ["ok"] else found

    def last_row(self) -> int:
        """The highest row number ever given (0 when none was)."""
        return int(self._one("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'items'"))

    def counts(self) -> dict[Modality, int]:
        """How many items there are of each modality."""
        with self._use():
            found = dict(self.connection.execute("SELECT modality, count(*) FROM items GROUP BY modality"))
        return {modality: int(found.get(modality.value, 0)) for modality in MODALITIES}

    @contextmanager
    def _use(self) -> Iterator[None]:
        with self._turn, sqlite_errors(self.file):
            yield

    def _one(self, query: str, *values: Any) -> Any:
        with self._use():
            row = self.connection.execute(query, values).fetchone()
        if row is None:
            raise corrupt(self.file, "a setting is missing")
        return row[0]

    def _record(self, values: tuple[Any, ...]) -> Record:
        row, id, modality, path, text, source, meta, *stamp, hash, codes, expected = values
        if checksum((id, modality, path, text, source, meta, hash)) != expected:
            raise corrupt(self.file, f"row {row} fails its checksum")
        numbers = np.frombuffer(codes, dtype="<u2").astype(np.uint16)
        return Record(
            id, Modality(modality), numbers, None, _path(path), text, _path(source), meta, hash, Stamp(*stamp)
        )

    def _batch(self, chunk: list[tuple[Any, ...]], levels: int, dim: int | None) -> RecordBatch:
        for row, modality, codes, expected, vector in chunk:
            widths = (len(codes) == 2 * levels) and (
                dim is None or (vector is not None and len(vector) == 2 * dim)
            )
            if not widths or modality not in _PLACE or checksum((codes, vector)) != expected:
                raise corrupt(self.file, f"row {row} fails its checksum")
        vectors = None
        if dim is not None:
            joined = b"".join(row[4] for row in chunk)
            vectors = (
                np.frombuffer(joined, dtype="<f2").reshape(len(chunk), dim).astype(np.float16, copy=False)
            )
        codes = np.frombuffer(b"".join(row[2] for row in chunk), dtype="<u2").reshape(len(chunk), levels)
        return RecordBatch(
            np.array([row[0] for row in chunk], dtype=np.int64),
            np.array([_PLACE[row[1]] for row in chunk], dtype=np.uint8),
            codes.astype(np.uint16, copy=False),
            vectors,
        )


def _path(raw: bytes | None) -> str | None:
    return None if raw is None else os.fsdecode(raw)
