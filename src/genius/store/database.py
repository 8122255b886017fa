"""The open SQLite file of an index: one thread at a time, transactions, settings, and a look at its name."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from genius.errors import BadInput, IndexLocked, IndexMismatch, StorageError
from genius.failpoints import failpoint
from genius.locks import OrderedLock
from genius.store import schema
from genius.store.connection import FIXED, connect, corrupt, setting_rows, sqlite_errors
from genius.store.migration import migrate
from genius.store.records import checksum

_REQUIRED = {*FIXED, "notes", "change", "last_row", "removed"}  # settings


class Database:
    """The open SQLite file; threads may share it and take turns.

    A repair, or a writer where this process may only read, can put another state under the name of the
    file: every use begins with a look at the name, and opens the file again if it has to.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._open = connect(file)
        self._turn = OrderedLock("truth")
        self._depth = 0  # of uses inside each other
        self._closed = False
        self._fixed: dict[str, Any] | None = None  # settings that another file of this name must have, too

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
        self._closed = True
        with suppress(sqlite3.Error):
            self._open.connection.close()

    @property
    def version(self) -> int:
        """Version of the tables."""
        with self.use():
            return int(self.connection.execute("PRAGMA user_version").fetchone()[0])

    def migrate(self) -> None:
        """Bring older tables to the newest version in one transaction."""
        with self.writing():
            migrate(self.connection, self.version)

    # --- settings -----------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Every setting; raises IndexCorrupt if one is damaged or missing."""
        with self.use():
            rows = self.connection.execute("SELECT key, value, sum FROM meta").fetchall()
        found = {key: self._setting(key, value, expected) for key, value, expected in rows}
        if missing := _REQUIRED - found.keys():
            raise corrupt(self.file, f"its settings lack {', '.join(sorted(missing))}")
        self._fixed = {key: found[key] for key in FIXED} | {"fit": found.get("fit")}
        return found

    def put(self, **settings: Any) -> None:
        """Write settings; the caller holds the transaction."""
        self.connection.executemany(
            "INSERT OR REPLACE INTO meta (key, value, sum) VALUES (?, ?, ?)", setting_rows(settings)
        )

    def change(self) -> int:
        """A number that grows with every transaction."""
        return int(self.get("change"))

    def get(self, key: str, default: Any = None) -> Any:
        """One setting; raises IndexCorrupt if it is missing and there is no default."""
        with self.use():
            row = self.connection.execute("SELECT value, sum FROM meta WHERE key = ?", (key,)).fetchone()
        if row is None and default is None:
            raise corrupt(self.file, f"its settings lack {key}")
        return default if row is None else self._setting(key, *row)

    def some(self, *keys: str) -> list[Any]:
        """Several settings as of one state; None for one that is missing."""
        query = f"SELECT key, value, sum FROM meta WHERE key IN ({', '.join('?' * len(keys))})"
        with self.use():
            rows = self.connection.execute(query, keys).fetchall()
        found = {key: self._setting(key, value, expected) for key, value, expected in rows}
        return [found.get(key) for key in keys]

    def _setting(self, key: Any, value: Any, expected: Any) -> Any:
        if checksum((key, value)) != expected:
            raise corrupt(self.file, "a setting fails its checksum")
        return json.loads(value)

    # --- transactions --------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction: committed and on disk when it ends well, gone when it does not."""
        with self.use():
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

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All reads inside see one and the same state."""
        with self.use():
            if self.connection.in_transaction:  # of this same thread: it has the turn
                yield
                return
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                with suppress(sqlite3.Error):
                    self.connection.execute("COMMIT")

    @contextmanager
    def use(self) -> Iterator[None]:
        """Exclusive use of the file that has the name now; every access happens inside."""
        if self._closed:
            raise BadInput(f"the index in {self.file.parent} was closed: open it again")
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
        found = {key: json.loads(value) for key, value in connection.execute("SELECT key, value FROM meta")}
        before, now = self._fixed["fit"], found.get("fit")
        if now:  # codes may have been fitted anew: it is the same index if it has the same embeddings
            known = before["encoder"] if before else self._fixed["fingerprint"]
            same = known == now["encoder" if before else "made_by"] and found["dim"] == self._fixed["dim"]
        else:
            same = all(found.get(key) == value for key, value in self._fixed.items())
        if version != schema.VERSION or not same:
            raise IndexMismatch(f"another index has taken the place of {self.file}: open it again")
