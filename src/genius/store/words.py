"""The words of the items: two full-text indexes (SQLite FTS5) in the truth, changed with the items.

`words` has whole words of id and file name, text and metadata, for a ranking by words. `trigrams` has all
runs of three characters of id and text, to find parts of words. Neither keeps the texts themselves, so a row
is removed by passing its texts again. Both can be rebuilt from the items at any time: a damaged one is
dropped. An index without them gets them with its next change.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

LOGGER = logging.getLogger("genius.store")
VERSION = 1  # of the tables and of what goes into them
SETTING = "words"  # says which version is there and complete; 0: none
MAX_FIELDS = 4000  # characters of metadata of an item
LONG_NUMBER = 10_000  # smaller numbers in metadata are prices and sizes, not names of anything
TABLES = {
    "words": "fts5(name, text, fields, content='', tokenize=\"unicode61 remove_diacritics 2\")",
    "trigrams": "fts5(name, text, content='', detail=none, tokenize='trigram')",
}
NOT_OURS = (
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_FULL",
    "SQLITE_IOERR",
    "SQLITE_READONLY",
    "SQLITE_CANTOPEN",
    "SQLITE_PERM",
    "SQLITE_NOMEM",
    "SQLITE_INTERRUPT",
)  # errors of the disk or of others, which say nothing about the tables
_COLUMNS = {"words": "name, text, fields", "trigrams": "name, text"}


class ItemWords(NamedTuple):
    """What is indexed of an item."""

    row: int
    id: str
    path: bytes | None
    text: str | None
    meta: str

    def of(self, table: str) -> tuple[Any, ...]:
        """The values of a row of the table, with its number."""
        text = _encodable(self.text or "")
        if table == "trigrams":
            return self.row, _encodable(self.id), text
        return self.row, _encodable(self._name()), text, _encodable(_field_texts(self.meta))

    def _name(self) -> str:
        file = "" if self.path is None else os.path.basename(os.fsdecode(self.path))  # noqa: PTH119
        return self.id if not file or self.id.endswith(file) else f"{self.id} {file}"


def _encodable(text: str) -> str:
    """The text without halves of characters, as they are in names of files that are not UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _field_texts(meta: str) -> str:
    """The texts in metadata, and long numbers; addresses of the web are left out."""
    try:
        found = list(_texts(json.loads(meta)))
    except (ValueError, RecursionError):
        return ""
    return " ".join(found)[:MAX_FIELDS]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and "://" not in value:
        yield value
    elif isinstance(value, int) and value >= LONG_NUMBER:
        yield str(value)
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


@lru_cache(1)
def supported() -> bool:
    """Whether this SQLite has FTS5 with trigrams, which came with version 3.34."""
    connection = sqlite3.connect(":memory:")
    try:
        create(connection)
    except sqlite3.Error:
        return False
    finally:
        connection.close()
    return True


def create(connection: sqlite3.Connection) -> None:
    """Make empty tables; old ones are dropped."""
    for table, kind in TABLES.items():
        connection.execute(f"DROP TABLE IF EXISTS {table}")
        connection.execute(f"CREATE VIRTUAL TABLE {table} USING {kind}")


def build(connection: sqlite3.Connection) -> None:
    """Make the tables and fill them from all items; the caller holds the transaction."""
    create(connection)
    rows = connection.execute("SELECT row, id, path, text, meta FROM items ORDER BY row")
    while chunk := rows.fetchmany(1024):
        add(connection, [ItemWords(*values) for values in chunk])


def add(connection: sqlite3.Connection, items: Iterable[ItemWords]) -> None:
    """Index items; the caller holds the transaction."""
    every = list(items)
    for table, columns in _COLUMNS.items():
        marks = ", ".join("?" * (columns.count(",") + 2))
        connection.executemany(
            f"INSERT INTO {table} (rowid, {columns}) VALUES ({marks})", [item.of(table) for item in every]
        )


def remove(connection: sqlite3.Connection, items: Iterable[ItemWords]) -> None:
    """Take items out, whose values must be those that were indexed; the caller holds the transaction."""
    every = list(items)
    for table, columns in _COLUMNS.items():
        marks = ", ".join("?" * (columns.count(",") + 2))
        connection.executemany(
            f"INSERT INTO {table} ({table}, rowid, {columns}) VALUES ('delete', {marks})",
            [item.of(table) for item in every],
        )


def kept_whole(connection: sqlite3.Connection, change: Callable[[], None]) -> bool:
    """Carry a change out; False, and the tables as they were, if they are damaged."""
    connection.execute("SAVEPOINT words")
    try:
        change()
        connection.execute("SAVEPOINT written")  # FTS5 writes what it has collected, or fails, now
        connection.execute("RELEASE written")
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", None) or ""
        if name.startswith(NOT_OURS) or not connection.in_transaction:
            raise
        LOGGER.warning("the index of words is damaged, and is made again with the next change: %s", error)
        connection.execute("ROLLBACK TO words")
        connection.execute("RELEASE words")
        return False
    connection.execute("RELEASE words")
    return True


def agrees(connection: sqlite3.Connection) -> bool:
    """Whether the tables have what the items have: they are made again beside, and both are compared."""
    fresh = sqlite3.connect("")  # a temporary file
    try:
        create(fresh)
        rows = connection.execute("SELECT row, id, path, text, meta FROM items ORDER BY row")
        while chunk := rows.fetchmany(1024):
            add(fresh, [ItemWords(*values) for values in chunk])
        return all(_content(connection, table) == _content(fresh, table) for table in TABLES)
    except sqlite3.DatabaseError:
        return False
    finally:
        fresh.close()


def _content(connection: sqlite3.Connection, table: str) -> tuple[Any, ...]:
    """What tells two indexes apart: their terms, how often each is there, and a sum over the rows."""
    found: list[Any] = []
    for kind, query in {
        "row": "SELECT term, doc, cnt FROM temp.seen",
        "instance": 'SELECT count(*), sum(doc), sum(doc * coalesce("offset", 0)) FROM temp.seen',
    }.items():
        connection.execute(f"CREATE VIRTUAL TABLE temp.seen USING fts5vocab(main, {table}, {kind})")
        try:
            digest = 0
            for values in connection.execute(query):
                digest = hash((digest, values))
            found.append(digest)
        finally:
            connection.execute("DROP TABLE temp.seen")
    return tuple(found)
