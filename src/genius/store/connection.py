"""The SQLite file of an index: made whole, opened with the right guarantees, its errors turned into ours."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from genius import files
from genius.errors import IndexCorrupt, IndexLocked, IndexMismatch, IndexNotFound, StorageError
from genius.store import schema

INDEX_FILE = "index.sqlite"


def create(file: Path, settings: Mapping[str, Any]) -> None:
    """Make an empty truth with these settings; the file appears whole or not at all."""
    partial = file.with_name(file.name + files.TEMPORARY)
    with files.storage_errors(file):
        partial.unlink(missing_ok=True)
    with sqlite_errors(file):
        connection = sqlite3.connect(partial, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            schema.create(connection)
            rows = [(key, json.dumps(value)) for key, value in {"change": 0, **settings}.items()]
            connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = WAL")  # kept in the file, so opening writes nothing
        finally:
            connection.close()
    files.publish(partial, file)


def connect(file: Path) -> sqlite3.Connection:
    """A connection in autocommit mode; it only reads where the folder cannot be written."""
    if not file.exists():
        raise IndexNotFound(
            f"no index in {file.parent}: make one with `genius index PATH --to {file.parent}`, "
            "or name another with --in"
        )
    options = "mode=rw"
    if not os.access(file.parent, os.W_OK):
        # Without its -wal the file is complete, and reading it needs no -shm that could not be made.
        options = "mode=ro" if Path(f"{file}-wal").exists() else "mode=ro&immutable=1"
    with sqlite_errors(file):
        connection = sqlite3.connect(
            f"file:{quote(os.fsencode(file.absolute()))}?{options}",
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
    """The error for a damaged truth, with the command that mends it."""
    return IndexCorrupt(
        f"{file} is damaged ({what}): `genius check --repair --in {file.parent}` saves what can be read "
        "and lists the rest"
    )


@contextmanager
def sqlite_errors(file: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours: damage, a refusing disk, or somebody else's lock."""
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
                f"cannot write {file}: {error}; what was acknowledged is safe, so make room or mend the "
                "permissions and run again"
            ) from error
        if "no such table" in str(error) or "no such column" in str(error):
            raise corrupt(file, str(error)) from error
        raise


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
