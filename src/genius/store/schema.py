"""The tables of the truth, their version, and the way from older versions."""

from __future__ import annotations

import sqlite3

from genius.failpoints import failpoint

APPLICATION = 0x47454E53  # "GENS": tells our files from other people's
VERSION = 2

ITEMS = """
CREATE TABLE items (
    row INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: a changed item gets a new row
    id TEXT NOT NULL UNIQUE,
    modality TEXT NOT NULL,
    path BLOB,                              -- as the file system spells it, which need not be UTF-8
    text TEXT,
    source BLOB,                            -- the folder or file it was read from, for pruning
    meta TEXT NOT NULL,                     -- JSON object
    size INTEGER NOT NULL,                  -- of the file, with the three times: see stamps.py
    mtime_ns INTEGER NOT NULL,
    ctime_ns INTEGER NOT NULL,
    seen_ns INTEGER NOT NULL,
    hash BLOB NOT NULL,                     -- of image bytes and text
    codes BLOB NOT NULL,                    -- uint16, little-endian, one per level
    vector BLOB,                            -- phi as float16, or NULL
    content_sum INTEGER NOT NULL,           -- CRC-32 of the columns from id to meta and the hash
    codes_sum INTEGER NOT NULL              -- CRC-32 of codes and vector
)"""
META = "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
REMOVED = "CREATE TABLE removed (row INTEGER PRIMARY KEY)"  # rows that the present generation still holds
THUMBNAILS = (
    "CREATE TABLE thumbnails (row INTEGER PRIMARY KEY, jpeg BLOB NOT NULL)"  # of images without a file
)


def create(connection: sqlite3.Connection) -> None:
    """Make the tables of the newest version; the caller holds the transaction."""
    for statement in (ITEMS, META, REMOVED, THUMBNAILS):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring the tables from `version` to VERSION; the caller holds the transaction: all or nothing."""
    if version < 2:
        # Version 1 knew no delta: it built a generation after every change and kept no thumbnails.
        connection.execute(REMOVED)
        failpoint("during-migration")
        connection.execute(THUMBNAILS)
        connection.execute("DELETE FROM meta WHERE key = 'generation'")  # built anew with its tombstones
    connection.execute(f"PRAGMA user_version = {VERSION}")
    failpoint("before-migration-commit")
