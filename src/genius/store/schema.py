"""The tables of the truth and their version."""

from __future__ import annotations

import sqlite3

APPLICATION = 0x47454E53  # "GENS": tells our files from other people's
VERSION = 4

ITEMS = """
CREATE TABLE items (
    row INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: a changed item gets a new row
    id TEXT NOT NULL UNIQUE,
    modality TEXT NOT NULL,
    path BLOB,                              -- as the file system spells it, which need not be UTF-8
    text TEXT,
    source BLOB,                            -- the folder or file it was read from, for pruning
    meta TEXT NOT NULL,                     -- JSON object
    size INTEGER NOT NULL,                  -- of the file, with the three times: see records.Stamp
    mtime_ns INTEGER NOT NULL,
    ctime_ns INTEGER NOT NULL,
    seen_ns INTEGER NOT NULL,
    hash BLOB NOT NULL,                     -- of image bytes and text
    codes BLOB NOT NULL,                    -- uint16, little-endian, one per level
    vector BLOB,                            -- phi as float16, or NULL
    content_sum INTEGER NOT NULL,           -- of the columns from id to codes: see records.checksum
    codes_sum INTEGER NOT NULL              -- of modality, codes and vector
)"""
META = """
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL,                    -- JSON
    sum INTEGER NOT NULL DEFAULT 0          -- of key and value
)"""
REMOVED = "CREATE TABLE removed (row INTEGER PRIMARY KEY)"  # rows that the present generation still holds
THUMBNAILS = """
CREATE TABLE thumbnails (                   -- of images without a file
    row INTEGER PRIMARY KEY,
    jpeg BLOB NOT NULL,
    sum INTEGER NOT NULL DEFAULT 0          -- of row and jpeg
)"""
PASSAGES = """
CREATE TABLE passages (                     -- of texts that are longer than the encoder reads
    row INTEGER PRIMARY KEY,                -- of the item, which has codes and vector of the first passage
    count INTEGER NOT NULL,                 -- of the others: they have the row numbers after the item's
    spans BLOB NOT NULL,                    -- of all: int32, little-endian, start and end in the text
    codes BLOB NOT NULL,                    -- of the others, as in items
    vectors BLOB,
    sum INTEGER NOT NULL                    -- of the columns before
)"""
PASSAGE_COUNTS = "CREATE INDEX passage_counts ON passages (row, count)"  # read without the vectors
TABLES = {
    "items": ITEMS,
    "meta": META,
    "removed": REMOVED,
    "thumbnails": THUMBNAILS,
    "passages": PASSAGES,
}


def columns(connection: sqlite3.Connection) -> dict[str, list[tuple[object, ...]]]:
    """Name, type and constraints of every column, by table; without the spelling of the statements."""
    return {table: connection.execute(f"PRAGMA table_info({table})").fetchall() for table in TABLES}


def expected_columns() -> dict[str, list[tuple[object, ...]]]:
    """What `columns` says of tables that were just made."""
    connection = sqlite3.connect(":memory:")
    try:
        create(connection)
        return columns(connection)
    finally:
        connection.close()


def create(connection: sqlite3.Connection) -> None:
    """Make the tables of the newest version; the caller holds the transaction."""
    for statement in TABLES.values():
        connection.execute(statement)
    connection.execute(PASSAGE_COUNTS)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
