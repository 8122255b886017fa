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

from genius.errors import IndexLocked, IndexMismatch, StorageError
from genius.failpoints import failpoint
from genius.locks import OrderedLock
from genius.store import schema
from genius.store.connection import FIXED, connect, corrupt, setting_rows, sqlite_errors
from genius.store.migration import migrate
from genius.store.records import (
    MODALITIES,
    Amendment,
    Known,
    Record,
    RecordBatch,
    Rows,
    Stamp,
    checksum,
    rows_digest,
)
from genius.types import Modality

CHUNK = 4096  # rows read at a time
_PLACE = {modality.value: place for place, modality in enumerate(MODALITIES)}
_INSERT = (
    "INSERT INTO items (row, id, modality, path, text, source, meta, size, mtime_ns, ctime_ns, seen_ns, "
    "hash, codes, vector, content_sum, codes_sum) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
)
_CONTENT = (
    "row, id, modality, path, text, source, meta, size, mtime_ns, ctime_ns, seen_ns, hash, codes, content_sum"
)


_REQUIRED = {*FIXED, "notes", "change", "last_row", "removed"}  # settings


class Truth:
    """The open SQLite file; threads may share it and take turns.

    A repair, or a writer where this process may only read, can put another state under the name of the
    file: every use begins with a look at the name, and opens the file again if it has to.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._open = connect(file)
        self._turn = OrderedLock("truth")
        self._depth = 0  # of uses inside each other
        self._fixed: dict[str, Any] | None = None  # settings that another file of this name must have, too

    @classmethod
    def open(cls, file: Path) -> Truth:
        """Open the truth for reading and writing, or just reading where the folder cannot be written."""
        return cls(file)

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection in use; changes when the file is opened again."""
        return self._open.connection

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the open file."""
        return self._open.identity

    def close(self) -> None:
        """Close the file; what was committed stays."""
        with suppress(sqlite3.Error):
            self._open.connection.close()

    @property
    def version(self) -> int:
        """Version of the tables."""
        with self._use():
            return int(self.connection.execute("PRAGMA user_version").fetchone()[0])

    def migrate(self) -> None:
        """Bring older tables to the newest version in one transaction."""
        with self.writing():
            migrate(self.connection, self.version)

    # --- settings -----------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Every setting; raises IndexCorrupt if one is damaged or missing."""
        with self._use():
            rows = self.connection.execute("SELECT key, value, sum FROM meta").fetchall()
        found = {key: self._setting(key, value, expected) for key, value, expected in rows}
        if missing := _REQUIRED - found.keys():
            raise corrupt(self.file, f"its settings lack {', '.join(sorted(missing))}")
        if self._fixed is None:
            self._fixed = {key: found[key] for key in FIXED}
        return found

    def put(self, **settings: Any) -> None:
        """Write settings; the caller holds the transaction."""
        self.connection.executemany(
            "INSERT OR REPLACE INTO meta (key, value, sum) VALUES (?, ?, ?)", setting_rows(settings)
        )

    def change(self) -> int:
        """A number that grows with every transaction."""
        return int(self._get("change"))

    def _get(self, key: str) -> Any:
        """One setting."""
        with self._use():
            row = self.connection.execute("SELECT value, sum FROM meta WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise corrupt(self.file, f"its settings lack {key}")
        return self._setting(key, *row)

    def _setting(self, key: Any, value: Any, expected: Any) -> Any:
        if checksum((key, value)) != expected:
            raise corrupt(self.file, "a setting fails its checksum")
        return json.loads(value)

    # --- writing ------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction: committed and on disk when it ends well, gone when it does not."""
        with self._use():
            if not self.file.exists():
                raise StorageError(f"{self.file} is gone: nothing is written; open the index again")
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.put(change=self.change() + 1)
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
        first = self.last_row() + 1
        for row, record in enumerate(last.values(), start=first):
            self.connection.execute(_INSERT, (row, *record.columns()))
            self._keep_thumbnail(row, record.thumbnail)
        self.put(last_row=first + len(last) - 1)

    def delete(self, ids: Sequence[str]) -> int:
        """Take items out, leaving tombstones; how many there were. The caller holds the transaction."""
        gone: list[tuple[int]] = []
        for id in dict.fromkeys(ids):
            gone += self.connection.execute("DELETE FROM items WHERE id = ? RETURNING row", (id,)).fetchall()
        if gone:
            self.connection.executemany("INSERT INTO removed VALUES (?)", gone)
            self.connection.executemany("DELETE FROM thumbnails WHERE row = ?", gone)
            count, digest = self._get("removed")
            more, change = rows_digest(np.array(gone, np.int64).ravel())
            self.put(removed=(count + more, (digest + change) % 2**64))
        return len(gone)

    def _keep_thumbnail(self, row: int, jpeg: bytes | None) -> None:
        if jpeg is not None:
            self.connection.execute(
                "INSERT OR REPLACE INTO thumbnails VALUES (?, ?, ?)", (row, jpeg, checksum((row, jpeg)))
            )

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
        self.put(removed=rows_digest(self._removed_rows()))

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
        with self._use():
            for id in ids:
                if (stored := self.record(id)) is not None:
                    row, record = stored
                    found[id] = Known(row, record.path, record.source, record.meta, record.hash, record.stamp)
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
        if values is None:
            return None
        record = self._record(values)
        if record.id != id:
            raise corrupt(self.file, "its index of ids leads to another item")
        return int(values[0]), record

    def thumbnail(self, row: int) -> bytes | None:
        """The stored thumbnail of a row, if it has one."""
        with self._use():
            query = "SELECT row, jpeg, sum FROM thumbnails WHERE row = ?"
            found = self.connection.execute(query, (row,)).fetchone()
        return None if found is None else self._thumbnail(found)

    def check_thumbnails(self) -> None:
        """Read all thumbnails; raises IndexCorrupt if one is damaged or belongs to no item."""
        with self._use():
            for found in self.connection.execute("SELECT row, jpeg, sum FROM thumbnails"):
                self._thumbnail(found)
            orphans = "SELECT count(*) FROM thumbnails WHERE row NOT IN (SELECT row FROM items)"
            if self.connection.execute(orphans).fetchone()[0]:
                raise corrupt(self.file, "a thumbnail belongs to no item")

    def _thumbnail(self, values: tuple[Any, ...]) -> bytes:
        row, jpeg, expected = values
        if checksum((row, jpeg)) != expected:
            raise corrupt(self.file, f"the thumbnail of row {row} fails its checksum")
        return bytes(jpeg)

    def ids_from(self, source: str) -> list[str]:
        """Ids of the items that were read from `source`, in row order."""
        query = f"SELECT {_CONTENT} FROM items WHERE source = ? ORDER BY row"
        with self._use():
            found = self.connection.execute(query, (os.fsencode(source),))
            return [self._record(values).id for values in found]

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
            for values in chunk:
                if not after < values[0] <= last:  # else a damaged tree could be walked for ever
                    raise corrupt(self.file, "its rows are out of order")
                after = values[0]
            yield self._batch(chunk, levels, dim)

    def removed(self, through: int) -> Rows:
        """Rows up to `through` that are gone, ascending; raises IndexCorrupt if one is lost or changed."""
        with self.reading():
            rows = self._removed_rows()
            if rows_digest(rows) != self.removed_digest():
                raise corrupt(self.file, "its list of removed rows fails its checksum")
        return np.sort(rows[rows <= through])

    def removed_digest(self) -> tuple[int, int]:
        """How many rows are gone, and a number that changes with them."""
        count, digest = self._get("removed")
        return count, digest

    def _removed_rows(self) -> Rows:
        with self._use():
            found = self.connection.execute("SELECT row FROM removed").fetchall()
        return np.array(found, dtype=np.int64).ravel()

    def since(self, row: int) -> tuple[int, int]:
        """How many items have come after `row`, and how many have gone since the last compaction."""
        with self.reading():
            added = self.connection.execute("SELECT count(*) FROM items WHERE row > ?", (row,)).fetchone()[0]
            return int(added), int(self._get("removed")[0])

    def rows(self) -> Rows:
        """Row numbers of all items, ascending."""
        with self._use():
            return np.array(
                [row for (row,) in self.connection.execute("SELECT row FROM items ORDER BY row")], np.int64
            )

    def integrity(self) -> list[str]:
        """What SQLite itself finds wrong with the file, and whether the tables are the ones we made."""
        with self._use():
            found = [str(line) for (line,) in self.connection.execute("PRAGMA integrity_check(20)")]
            if found == ["ok"]:
                found = []
            if schema.columns(self.connection) != schema.expected_columns():
                found.append("its tables are not those of an index")
        return found

    def last_row(self) -> int:
        """The highest row number ever given (0 when none was)."""
        return int(self._get("last_row"))

    def counts(self) -> dict[Modality, int]:
        """How many items there are of each modality."""
        with self._use():
            found = dict(self.connection.execute("SELECT modality, count(*) FROM items GROUP BY modality"))
        return {modality: int(found.get(modality.value, 0)) for modality in MODALITIES}

    @contextmanager
    def _use(self) -> Iterator[None]:
        """A turn at the file that has the name now; all access is inside of it."""
        with self._turn, sqlite_errors(self.file):
            if not self._depth and not self._open.is_current():
                self._reopen()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth and self._open.changed_meanwhile():
                    raise IndexLocked(
                        f"{self.file.parent} was changed by another process while it was read: run again"
                    )

    def _reopen(self) -> None:
        fresh = connect(self.file)
        try:
            self._require_same_index(fresh.connection)
        except BaseException:
            fresh.connection.close()
            raise
        before, self._open = self._open, fresh
        with suppress(sqlite3.Error):
            before.connection.close()

    def _require_same_index(self, connection: sqlite3.Connection) -> None:
        if self._fixed is None:
            return
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        found = dict(connection.execute("SELECT key, value FROM meta").fetchall())
        same = all(found.get(key) == json.dumps(value) for key, value in self._fixed.items())
        if version != schema.VERSION or not same:
            raise IndexMismatch(f"another index has taken the place of {self.file}: open it again")

    def _record(self, values: tuple[Any, ...]) -> Record:
        row, id, modality, path, text, source, meta, *stamp, hash, codes, expected = values
        if checksum(values[1:-1]) != expected:
            raise corrupt(self.file, f"row {row} fails its checksum")
        numbers = np.frombuffer(codes, dtype="<u2").astype(np.uint16)
        return Record(
            id, Modality(modality), numbers, None, _path(path), text, _path(source), meta, hash, Stamp(*stamp)
        )

    def _batch(self, chunk: list[tuple[Any, ...]], levels: int, dim: int | None) -> RecordBatch:
        for row, modality, codes, expected, vector in chunk:
            sound = checksum((modality, codes, vector)) == expected and modality in _PLACE
            if not sound or len(codes) != 2 * levels:
                raise corrupt(self.file, f"row {row} fails its checksum")
            if dim is not None and (vector is None or len(vector) != 2 * dim):
                raise corrupt(self.file, f"row {row} has no vector of width {dim}")
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
