"""The way from older tables to the present ones, in one transaction.

Version 1 knew no delta: it built a generation after every change and kept no thumbnails. Version 2 had
checksums that took text and bytes for the same and left out stamps, thumbnails, settings and removals.
Version 3 knew no passages.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from genius.failpoints import failpoint
from genius.store import schema
from genius.store.records import checksum, rows_digest

ITEM = (
    "row, id, modality, path, text, source, meta, size, mtime_ns, ctime_ns, seen_ns, hash, codes, vector, "
    "content_sum, codes_sum"
)
_TYPES: tuple[type | tuple[type, ...], ...] = (
    int,
    str,
    str,
    (bytes, type(None)),
    (str, type(None)),
    (bytes, type(None)),
    str,
    int,
    int,
    int,
    int,
    bytes,
    bytes,
    (bytes, type(None)),
    int,
    int,
)
_CHUNK = 4096
_WRONG = -1  # no checksum has this value: a row that was damaged before stays damaged


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring the tables from `version` to the newest one; the caller holds the transaction: all or nothing."""
    if version < 2:
        connection.execute(schema.REMOVED)
        failpoint("during-migration")
        connection.execute(schema.THUMBNAILS)
        connection.execute("DELETE FROM meta WHERE key = 'generation'")  # rebuilt with its tombstones
    if version < 3:
        _widen_checksums(connection, thumbnails=version == 2)
    if version < 4:
        connection.execute(schema.PASSAGES)
        failpoint("during-migration")
        connection.execute(schema.PASSAGE_COUNTS)
    connection.execute(f"PRAGMA user_version = {schema.VERSION}")
    failpoint("before-migration-commit")


def _widen_checksums(connection: sqlite3.Connection, *, thumbnails: bool) -> None:
    last = _sum_items(connection)
    failpoint("during-migration")
    if thumbnails:
        connection.execute("ALTER TABLE thumbnails ADD COLUMN sum INTEGER NOT NULL DEFAULT 0")
        rows = connection.execute("SELECT row FROM thumbnails").fetchall()
        for (row,) in rows:
            jpeg = connection.execute("SELECT jpeg FROM thumbnails WHERE row = ?", (row,)).fetchone()[0]
            connection.execute("UPDATE thumbnails SET sum = ? WHERE row = ?", (checksum((row, jpeg)), row))
    removed = np.array([row for (row,) in connection.execute("SELECT row FROM removed")], np.int64)
    sequence = connection.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'items'").fetchone()[0]
    last = max(last, sequence if isinstance(sequence, int) else 0, int(removed.max(initial=0)))
    connection.execute("ALTER TABLE meta ADD COLUMN sum INTEGER NOT NULL DEFAULT 0")
    connection.execute("DELETE FROM meta WHERE key = 'uuid'")
    settings: list[tuple[str, str]] = connection.execute("SELECT key, value FROM meta").fetchall()
    settings += [("last_row", json.dumps(last)), ("removed", json.dumps(rows_digest(removed)))]
    connection.executemany(
        "INSERT OR REPLACE INTO meta VALUES (?, ?, ?)",
        [(key, value, checksum((key, value))) for key, value in settings],
    )


def _sum_items(connection: sqlite3.Connection) -> int:
    """Give all items their new checksums, damaged ones a wrong one; the highest row."""
    last = 0
    query = f"SELECT {ITEM} FROM items WHERE row > ? ORDER BY row LIMIT {_CHUNK}"
    while chunk := connection.execute(query, (last,)).fetchall():
        sums = []
        for values in chunk:
            if values[0] <= last:
                raise sqlite3.DatabaseError("the rows of the items are out of order")
            last = values[0]
            sound = sound_in_version_2(values)
            sums.append((*(item_sums(values) if sound else (_WRONG, _WRONG)), last))
        connection.executemany("UPDATE items SET content_sum = ?, codes_sum = ? WHERE row = ?", sums)
    return last


def item_sums(values: Sequence[Any]) -> tuple[int, int]:
    """The checksums that the values ITEM of a row must have."""
    _, _, modality, *_, codes, vector, _, _ = values
    return checksum(values[1:13]), checksum((modality, codes, vector))


def sound_in_version_2(values: Sequence[Any]) -> bool:
    """Whether the values ITEM of a row have the right types and the checksums of versions 1 and 2."""
    if not all(isinstance(value, kind) for value, kind in zip(values, _TYPES, strict=True)):
        return False
    _, id, modality, path, text, source, meta, _, _, _, _, hash, codes, vector, content, coded = values
    fields = (id, modality, path, text, source, meta, hash)
    return (_checksum_2(fields), _checksum_2((codes, vector))) == (content, coded)


def _checksum_2(fields: Iterable[str | bytes | None]) -> int:
    total = 0
    for value in fields:
        if value is None:
            total = zlib.crc32(b"-", total)
            continue
        data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        total = zlib.crc32(data, zlib.crc32(b"%d:" % len(data), total))
    return total
