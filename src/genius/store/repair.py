"""Saves what can be read of a damaged truth: a new file takes its place, and lost items are listed.

A damaged tree can give rows twice, in any order, or for ever, and any type in any column. So every scan has
to go upwards and ends after as many rows as the file can hold, and only rows with the right checksums count.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from genius import files
from genius.errors import IndexCorrupt, IndexMismatch
from genius.failpoints import failpoint
from genius.store.connection import ENDINGS, FIXED, INDEX_FILE, connect, create, setting_rows
from genius.store.generations import MANIFEST, generation_folder, numbers
from genius.store.migration import ITEM, item_sums, sound_in_version_2
from genius.store.records import checksum

REPAIRED = "repaired.sqlite"  # a repaired truth that is about to take the place of the damaged one
DAMAGED = "damaged.sqlite"  # where a damaged one is kept, with a number
_PAGE = 4096
_LEAST_ITEM = 48  # bytes that an item takes at least: bounds how many rows a file can hold
_LARGEST_ROW = 2**62
_UNSUMMED = 0  # checksum of what was written before there were any


@dataclass(slots=True)
class RepairReport:
    """What a repair saved, and what it could not: ids where they are known, else row numbers."""

    saved: int = 0
    lost: list[str] = field(default_factory=list)
    cut: list[str] = field(
        default_factory=list
    )  # ids of saved items of whose long texts the rest is not found
    damaged: Path | None = None  # where the damaged file was put


@dataclass(slots=True)
class LostRows:
    """Rows that are not saved: `known` begins with all rows of known id; the saved ones leave it."""

    known: dict[int, str]
    complete: bool  # whether every id is known: then other rows were never there
    nameless: set[int] = field(default_factory=set)

    def row(self, row: int) -> None:
        """Count `row` as lost."""
        if row not in self.known and not self.complete:
            self.nameless.add(row)

    def names(self) -> list[str]:
        """Ids, then the numbers of rows whose id is not known."""
        return sorted(self.known.values()) + [f"row {row}" for row in sorted(self.nameless)]


def repair_truth(folder: Path) -> RepairReport:
    """Put every readable item into a new truth and set the damaged one aside; the caller holds the lock.

    Until the new file is complete and on disk, nothing of the old one is touched.
    """
    salvage = RepairReport()
    work = folder / ("salvage" + files.TEMPORARY)
    with files.storage_errors(work):
        shutil.rmtree(work, ignore_errors=True)
        (folder / REPAIRED).unlink(missing_ok=True)
        work.mkdir()
    try:
        with files.storage_errors(work):
            for ending in ("", "-wal"):
                if (folder / (INDEX_FILE + ending)).exists():
                    shutil.copyfile(folder / (INDEX_FILE + ending), work / (INDEX_FILE + ending))
        source = _open_damaged(work / INDEX_FILE)
        try:
            _Copy(source, (work / INDEX_FILE).stat().st_size, folder, salvage).write()
        finally:
            source.close()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    failpoint("before-repair-swap")
    with files.storage_errors(folder):
        salvage.damaged = _free_name(folder / DAMAGED)
        (folder / INDEX_FILE).replace(salvage.damaged)
    failpoint("during-repair-swap")
    finish_repair(folder)
    return salvage


def finish_repair(folder: Path) -> None:
    """Give a repaired truth its name after the damaged one has gone; the caller holds the writer's lock."""
    with files.storage_errors(folder):
        aside = _free_name(folder / DAMAGED, step=0)
        for ending in ENDINGS:
            # Left in place, the old journal would be replayed onto the new file; it goes with the old one.
            if (folder / (INDEX_FILE + ending)).exists():
                (folder / (INDEX_FILE + ending)).replace(f"{aside}{ending}")
    files.publish(folder / REPAIRED, folder / INDEX_FILE)


def _open_damaged(file: Path) -> sqlite3.Connection:
    """A connection to a private copy of the damaged file, with a new first page if that is broken."""
    _restore_length(file)
    try:
        connection = connect(file).connection
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except IndexMismatch:
        raise
    except (IndexCorrupt, sqlite3.Error):
        _transplant_head(file)
        return connect(file).connection
    return connection


def _restore_length(file: Path) -> None:
    """Extend a truncated file to the size in its header; SQLite refuses to read it otherwise."""
    with file.open("r+b") as stream:
        said = int.from_bytes(stream.read(32)[28:], "big") * _PAGE
        size = file.stat().st_size
        if size < said < 100 * size:
            stream.truncate(said)


def _transplant_head(file: Path) -> None:
    """Give `file` the first page of an empty index: its tables begin on the same pages in every index."""
    model = file.with_name("empty.sqlite")
    create(model, {})
    whole = bytearray(model.read_bytes())
    pages = max(len(whole), file.stat().st_size) // _PAGE
    head = whole[:_PAGE]
    head[28:32] = pages.to_bytes(4, "big")
    with file.open("r+b") as stream:
        stream.write(head)
        stream.truncate(max(len(whole), file.stat().st_size))


class _Copy:
    """What is readable of a damaged file, on its way into a new one."""

    def __init__(self, source: sqlite3.Connection, size: int, folder: Path, salvage: RepairReport) -> None:
        self.source, self.folder, self.salvage = source, folder, salvage
        self.limit = size // _LEAST_ITEM + 1000  # rows that the file can hold
        self.settings = _settings(self._scan("SELECT key, value, {sum} FROM meta", "meta"), folder)
        self.lost = self._known_ids()
        sequence = self._scan("SELECT seq FROM sqlite_sequence WHERE name = 'items'")
        last = [*(row for (row,) in sequence), *self.lost.known, self.settings.get("last_row")]
        self.last_row = max((row for row in last if isinstance(row, int) and row < _LARGEST_ROW), default=0)

    def write(self) -> None:
        """Make the new file from the readable rows."""
        change = int(self.settings.get("change", time.time())) + 1  # beyond what an open index has seen
        settings = {**self.settings, "change": change, "removed": (0, 0)}
        create(self.folder / REPAIRED, settings, self._fill)
        self.salvage.lost.extend(self.lost.names())

    def _fill(self, target: sqlite3.Connection) -> None:
        marks = ",".join("?" * 16)
        for values in self._sound_items():
            target.execute(f"INSERT INTO items ({ITEM}) VALUES ({marks})", values)
            self.lost.known.pop(values[0], None)
            self.salvage.saved += 1
            self.last_row = max(self.last_row, values[0])
        kept = (
            "INSERT OR IGNORE INTO thumbnails SELECT ?, ?, ? WHERE EXISTS (SELECT 1 FROM items WHERE row = ?)"
        )
        for row, jpeg, sum in self._scan("SELECT row, jpeg, {sum} FROM thumbnails", "thumbnails"):
            if isinstance(jpeg, bytes) and sum in (_UNSUMMED, checksum((row, jpeg))):
                target.execute(kept, (row, jpeg, checksum((row, jpeg)), row))
        self._fill_passages(target)
        last = setting_rows({"last_row": self.last_row})
        target.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", last)

    def _fill_passages(self, target: sqlite3.Connection) -> None:
        """The passages of saved items; one whose passages cannot be read is found by the first, and named."""
        kept = "INSERT OR IGNORE INTO passages VALUES (?, ?, ?, ?, ?, ?)"
        ids = dict(target.execute("SELECT row, id FROM items"))
        listed = self._scan("SELECT row FROM passages INDEXED BY passage_counts ORDER BY row")
        waiting = {row for (row,) in listed if row in ids}
        query = "SELECT row, count, spans, codes, vectors, sum FROM passages"
        for values in self._scan(query):
            if values[0] in ids:
                waiting.add(values[0])
                self._keep_passages(target, kept, values, waiting)
        for row in sorted(waiting):  # behind a page that cannot be read, or damaged
            for values in self._scan(f"{query} WHERE row = {row}"):
                self._keep_passages(target, kept, values, waiting)
        self.salvage.cut.extend(sorted(ids[row] for row in waiting))

    def _keep_passages(
        self, target: sqlite3.Connection, kept: str, values: tuple[Any, ...], waiting: set[int]
    ) -> None:
        """Take the passages of one item over, if they are sound; then it is not `waiting` any more."""
        width = 2 * self.settings["dim"] if self.settings["vectors"] else 0
        row, count, spans, codes, vectors, sum = values
        if checksum(values[:-1]) != sum or not 0 < row < row + count < _LARGEST_ROW:
            return
        sizes = len(spans), len(codes), len(vectors or b"")
        if sizes == (8 * (count + 1), 2 * count * len(self.settings["sizes"]), width * count):
            target.execute(kept, values)
            self.last_row = max(self.last_row, row + count)
            waiting.discard(row)

    def _sound_items(self) -> Iterator[tuple[Any, ...]]:
        """Every item that can be read and passes its checksums; each row and id once."""
        rows: set[int] = set()
        ids: set[str] = set()
        for values in self._items():
            if values[0] in rows:
                continue
            if self._is_sound(values) and values[1] not in ids:
                rows.add(values[0])
                ids.add(values[1])
                yield (*values[:-2], *item_sums(values))
            else:
                self.lost.row(values[0])

    def _items(self) -> Iterator[tuple[Any, ...]]:
        """All rows that can be read: scans that restart after every unreadable row, then single rows."""
        after = 0
        for _ in range(self.limit):
            for values in self._scan(
                f"SELECT {ITEM} FROM items WHERE row > {after} ORDER BY row", upwards=after
            ):
                after = values[0]
                yield values
            if self.ended or after >= self.last_row:
                break
            after += 1
            self.lost.row(after)
        for row in list(self.lost.known):
            yield from self._scan(f"SELECT {ITEM} FROM items WHERE row = {row}", upwards=row - 1)

    def _is_sound(self, values: tuple[Any, ...]) -> bool:
        """Whether an item has its checksums, and codes and a vector of the right size."""
        if values[-2:] != item_sums(values) and not sound_in_version_2(values):
            return False
        codes, vector, sizes = values[12], values[13], self.settings["sizes"]
        width = 2 * self.settings["dim"] if self.settings["vectors"] else None
        return bool(
            0 < values[0] < _LARGEST_ROW
            and len(codes) == 2 * len(sizes)
            and (np.frombuffer(codes, "<u2") < sizes).all()
            and (width is None or (vector is not None and len(vector) == width))
        )

    def _known_ids(self) -> LostRows:
        """Row and id of the items as the index of ids has them, read from both ends up to a damaged page."""
        query = "SELECT row, id FROM items INDEXED BY sqlite_autoindex_items_1 ORDER BY id"
        pairs = [*self._scan(query)]
        complete = self.ended
        if not complete:
            pairs += self._scan(f"{query} DESC")
        known = {row: id for row, id in pairs if 0 < row < _LARGEST_ROW and isinstance(id, str)}
        return LostRows(known, complete)

    def _scan(self, query: str, table: str = "", upwards: int | None = None) -> Iterator[tuple[Any, ...]]:
        """Rows until one cannot be read, or their first value does not go up from `upwards`.

        `self.ended` says whether that was all. In older files `table` has no checksums.
        """
        self.ended = False
        try:
            named = [name for _, name, *_ in self.source.execute(f"PRAGMA table_info({table or 'items'})")]
            rows = self.source.execute(query.format(sum="sum" if "sum" in named else _UNSUMMED))
            for values in islice(rows, self.limit):
                if upwards is not None:
                    if values[0] <= upwards:
                        return
                    upwards = values[0]
                yield values
            self.ended = True
        except (sqlite3.Error, MemoryError):
            return


def _settings(rows: Iterable[tuple[Any, ...]], folder: Path) -> dict[str, Any]:
    """The settings of the damaged truth, or those its newest generation remembers."""
    found: dict[str, Any] = {}
    for number in numbers(folder):
        with suppress(OSError, ValueError, KeyError, TypeError):
            found |= json.loads((generation_folder(folder, number) / MANIFEST).read_bytes())["settings"]
    for key, value, sum in rows:
        if isinstance(key, str) and sum in (_UNSUMMED, checksum((key, value))):
            with suppress(ValueError, TypeError, RecursionError):
                found[key] = json.loads(value)
    if missing := [key for key in FIXED if key not in found]:
        raise IndexCorrupt(
            f"{folder}: the settings ({', '.join(missing)}) cannot be read, so nothing can be saved; "
            "make a new index with `genius index`"
        )
    for key in ("generation", "uuid", "words"):  # they are made again from what was saved
        found.pop(key, None)
    return {"notes": {}, **found}


def _free_name(path: Path, step: int = 1) -> Path:
    """The name with a number `step` above the highest in use."""
    names = [file.stem.rpartition("-")[2] for file in path.parent.glob(f"{path.stem}-*{path.suffix}")]
    last = max((int(number) for number in names if number.isdecimal()), default=0)
    return path.with_name(f"{path.stem}-{last + step}{path.suffix}")
