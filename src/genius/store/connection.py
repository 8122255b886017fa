"""The SQLite file of an index: created atomically, opened with the right guarantees, errors translated."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from genius import files
from genius.errors import IndexCorrupt, IndexLocked, IndexMismatch, IndexNotFound, StorageError
from genius.store import schema
from genius.store.records import checksum

INDEX_FILE = "index.sqlite"
FIXED = ("model", "fingerprint", "sizes", "dim", "vectors")  # settings that only `fit` changes
ENDINGS = ("-wal", "-shm")  # of the files that SQLite keeps beside an open one
FROZEN = "mode=ro&immutable=1"  # reads the file alone; right only as long as nobody changes it


def create(
    file: Path, settings: Mapping[str, Any], fill: Callable[[sqlite3.Connection], None] | None = None
) -> None:
    """Create a truth with these settings and the content from `fill`; it appears completely or not at all.

    It is built with a rollback journal and switched to WAL at the end, so that all of its content is in the
    main file when that is renamed.
    """
    with files.storage_errors(file):
        for leftover in file.parent.glob(f"{file.name}.*{files.TEMPORARY}*"):
            leftover.unlink(missing_ok=True)
    partial = files.temporary_name(file)
    try:
        with sqlite_errors(file):
            connection = sqlite3.connect(partial, isolation_level=None)
            try:
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN IMMEDIATE")
                schema.create(connection)
                known = {"change": 0, "last_row": 0, "removed": (0, 0), **settings}
                connection.executemany("INSERT INTO meta VALUES (?, ?, ?)", setting_rows(known))
                if fill is not None:
                    fill(connection)
                connection.execute("COMMIT")
                # kept in the file, so opening writes nothing
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            finally:
                connection.close()
        _require_no_journal(partial, mode)
        files.publish(partial, file)
    except BaseException:
        for ending in ("", "-journal", *ENDINGS):
            with suppress(OSError):
                Path(f"{partial}{ending}").unlink(missing_ok=True)
        raise


def _require_no_journal(file: Path, mode: str) -> None:
    """Raise StorageError unless all of a closed file is in the file itself: SQLite does not say so."""
    if mode != "wal" or any(Path(f"{file}{ending}").exists() for ending in ENDINGS):
        raise StorageError(f"cannot write {file}: its journal was not closed; nothing was published")


def setting_rows(settings: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Settings as rows of the table `meta`."""
    values = [(key, json.dumps(value)) for key, value in settings.items()]
    return [(key, value, checksum((key, value))) for key, value in values]


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A connection, and which file it has open."""

    file: Path
    connection: sqlite3.Connection
    identity: tuple[int, int]  # device and inode
    frozen: tuple[int, ...] | None = None  # state of a file that was opened as immutable

    def is_current(self) -> bool:
        """Whether the name still stands for this file (or for none), and a frozen one is as it was."""
        if self.frozen is not None:
            return _state(self.file) in (None, self.frozen)
        try:
            found = os.stat(self.file)  # noqa: PTH116 (before every use)
        except OSError:
            return True
        return (found.st_dev, found.st_ino) == self.identity

    def changed_meanwhile(self) -> bool:
        """Whether a frozen file is not as it was any more."""
        return self.frozen is not None and _state(self.file) != self.frozen


def connect(file: Path) -> OpenFile:
    """The file opened in autocommit mode; only for reading where the folder cannot be written."""
    for _ in range(100):  # a repair may put another file under the name meanwhile
        before = _state(file)
        if before is None:
            raise IndexNotFound(
                f"no index in {file.parent}: make one with `genius index PATH --to {file.parent}`, "
                "or name another with --in"
            )
        mode = _mode(file)
        connection = _connect(file, mode)
        after = _state(file)
        if after is not None and before[:2] == after[:2] and (mode != FROZEN or before == after):
            return OpenFile(file, connection, (before[0], before[1]), before if mode == FROZEN else None)
        connection.close()
    raise IndexLocked(f"{file.parent} is being changed by another process: run again")


def _mode(file: Path) -> str:
    """How SQLite has to open the file: it can only follow other writers with a -wal and a -shm beside it."""
    if os.access(file.parent, os.W_OK):
        return "mode=rw"
    return "mode=ro" if Path(f"{file}-wal").exists() else FROZEN


def _state(file: Path) -> tuple[int, ...] | None:
    """What tells one state of a file without write permission from another; None if there is no file."""
    try:
        found = file.stat()
    except OSError:
        return None
    journal = Path(f"{file}-wal").exists()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, int(journal)


def _connect(file: Path, mode: str) -> sqlite3.Connection:
    with sqlite_errors(file):
        connection = sqlite3.connect(
            f"file:{quote(os.fsencode(file.absolute()))}?{mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=10.0,
        )
        try:
            # Damaged text must reach the checksums instead of failing to decode.
            connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
            _check_kind(file, connection)
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
    return connection


def corrupt(file: Path, what: str) -> IndexCorrupt:
    """The error for a damaged truth, with the command that repairs it."""
    return IndexCorrupt(
        f"{file} is damaged ({what}): `genius check --repair --in {file.parent}` saves what can be read "
        "and lists the rest"
    )


@contextmanager
def sqlite_errors(file: Path) -> Iterator[None]:
    """Translate SQLite's errors: damage, a disk that cannot be written, or another process's lock."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", None) or ""
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or name == "SQLITE_IOERR_SHORT_READ":
            raise corrupt(file, str(error)) from error
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise IndexLocked(f"{file.parent} is being changed by another process: run again") from error
        if name.startswith(
            ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")
        ):
            raise StorageError(
                f"cannot open or write {file}: {error}; what was acknowledged is safe, so make room or mend "
                "the permissions and run again"
            ) from error
        if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
            raise  # of this program, not of the file
        raise corrupt(file, str(error)) from error  # no such table, a broken constraint, a value too big, …
    except MemoryError as error:
        raise corrupt(file, "a value is too large for the memory") from error


def _check_kind(file: Path, connection: sqlite3.Connection) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != schema.APPLICATION or version < 1:
        raise corrupt(file, "its head is not that of an index")
    if version > schema.VERSION:
        raise IndexMismatch(
            f"{file.parent} was written by a newer genius (tables {version}, this one knows "
            f"{schema.VERSION}): upgrade with `pip install --upgrade genius-search`"
        )
