"""Saving what can be read of a damaged truth: a new file takes its place, and the rest is listed."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genius import files
from genius.errors import IndexCorrupt, IndexMismatch
from genius.failpoints import failpoint
from genius.store.connection import INDEX_FILE, connect, create, sqlite_errors
from genius.store.generations import MANIFEST, generation_folder, numbers
from genius.store.records import checksum

REPAIRED = "repaired.sqlite"  # a mended truth that is about to take the place of the damaged one
_PAGE = 4096
_FIELDS = (
    "row, id, modality, path, text, source, meta, size, mtime_ns, ctime_ns, seen_ns, hash, codes, vector, "
    "content_sum, codes_sum"
)


@dataclass(slots=True)
class Salvage:
    """What a repair saved, and what it could not: ids where they are known, else row numbers."""

    saved: int = 0
    lost: list[str] = field(default_factory=list)
    damaged: Path | None = None  # where the damaged file was put


@dataclass(slots=True)
class Lost:
    """Rows that are not saved: `known` begins with all rows of known id; the saved ones leave it."""

    known: dict[int, str]
    nameless: set[int] = field(default_factory=set)

    def row(self, row: int) -> None:
        """Count `row` as lost."""
        if row not in self.known:
            self.nameless.add(row)

    def names(self) -> list[str]:
        """Ids, then the numbers of rows whose id is not known."""
        return sorted(self.known.values()) + [f"row {row}" for row in sorted(self.nameless)]


def repair_truth(folder: Path) -> Salvage:
    """Put every readable item into a new truth and set the damaged one aside; holds no lock itself."""
    salvage = Salvage()
    work = folder / ("salvage" + files.TEMPORARY)
    with files.storage_errors(work):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        for ending in ("", "-wal"):
            if (folder / (INDEX_FILE + ending)).exists():
                shutil.copyfile(folder / (INDEX_FILE + ending), work / (INDEX_FILE + ending))
    try:
        source = _open_damaged(work / INDEX_FILE)
        try:
            _copy(source, folder, salvage)
        finally:
            source.close()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    failpoint("before-repair-swap")
    with files.storage_errors(folder):
        salvage.damaged = _free_name(folder / "damaged.sqlite")
        (folder / INDEX_FILE).replace(salvage.damaged)
    failpoint("during-repair-swap")
    finish_repair(folder)
    return salvage


def finish_repair(folder: Path) -> None:
    """Give a mended truth its name after the damaged one has gone; the caller holds the writer's lock."""
    with files.storage_errors(folder):
        for ending in ("-wal", "-shm"):
            # Left in place, the old journal would be replayed onto the new file.
            (folder / (INDEX_FILE + ending)).unlink(missing_ok=True)
    files.publish(folder / REPAIRED, folder / INDEX_FILE)


def _open_damaged(file: Path) -> sqlite3.Connection:
    """A connection to a private copy of the damaged file, with a new first page if that is broken."""
    _restore_length(file)
    try:
        connection = connect(file)
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except IndexMismatch:
        raise
    except (IndexCorrupt, sqlite3.Error):
        _transplant_head(file)
        return connect(file)
    return connection


def _restore_length(file: Path) -> None:
    """Lengthen a file that was cut to what its head says, or SQLite would read nothing of it at all."""
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
    head[18:20] = b"\x02\x02"  # the journal is a WAL
    head[28:32] = pages.to_bytes(4, "big")
    with file.open("r+b") as stream:
        stream.write(head)
        stream.truncate(max(len(whole), file.stat().st_size))


def _copy(source: sqlite3.Connection, folder: Path, salvage: Salvage) -> None:
    settings = _settings(source, folder)
    partial = folder / (REPAIRED + files.TEMPORARY)
    partial.unlink(missing_ok=True)
    create(partial, settings)
    lost = Lost(_ids(source))
    marks = ",".join("?" * 16)
    with sqlite_errors(partial):
        target = sqlite3.connect(partial, isolation_level=None)
        try:
            target.execute("PRAGMA synchronous = FULL")
            target.execute("BEGIN IMMEDIATE")
            for values in _rows(source, lost):
                target.execute(f"INSERT INTO items ({_FIELDS}) VALUES ({marks})", values)
                lost.known.pop(values[0], None)
                salvage.saved += 1
            for row, jpeg in _readable(source, "SELECT row, jpeg FROM thumbnails"):
                target.execute(
                    "INSERT INTO thumbnails SELECT ?, ? WHERE EXISTS (SELECT 1 FROM items WHERE row = ?)",
                    (row, jpeg, row),
                )
            target.execute("COMMIT")
        finally:
            target.close()
    salvage.lost.extend(lost.names())
    files.publish(partial, folder / REPAIRED)


def _rows(source: sqlite3.Connection, lost: Lost) -> Iterator[tuple[Any, ...]]:
    """Every item that can be read and passes its checksums; each id once."""
    ids: set[str] = set()
    for values in _readable_items(source, lost):
        if _sound(values) and values[1] not in ids:
            ids.add(values[1])
            yield values
        else:
            lost.row(values[0])


def _readable_items(source: sqlite3.Connection, lost: Lost) -> Iterator[tuple[Any, ...]]:
    """A scan in row order; where a page cannot be read, one row after the other until the next that can."""
    last = max(lost.known, default=0)
    for (sequence,) in _readable(source, "SELECT seq FROM sqlite_sequence WHERE name = 'items'"):
        last = max(last, sequence)
    after = 0
    while after < last:
        try:
            for values in source.execute(f"SELECT {_FIELDS} FROM items WHERE row > ? ORDER BY row", (after,)):
                after = values[0]
                yield values
            return  # noqa: TRY300
        except sqlite3.Error:
            pass
        found = None
        while found is None and after < last:
            after += 1
            try:
                found = source.execute(f"SELECT {_FIELDS} FROM items WHERE row = ?", (after,)).fetchone()
            except sqlite3.Error:
                lost.row(after)
        if found is not None:
            yield found


def _sound(values: tuple[Any, ...]) -> bool:
    _, id, modality, path, text, source, meta, _, _, _, _, hash, codes, vector, content, coded = values
    try:
        return bool(
            checksum((id, modality, path, text, source, meta, hash)) == content
            and checksum((codes, vector)) == coded
        )
    except (TypeError, AttributeError):  # a damaged record can have any type in any column
        return False


def _ids(source: sqlite3.Connection) -> dict[int, str]:
    """Row and id of the items as the index of ids has them, read from both ends up to a damaged page."""
    query = "SELECT row, id FROM items INDEXED BY sqlite_autoindex_items_1 ORDER BY id"
    pairs = [*_readable(source, query), *_readable(source, f"{query} DESC")]
    return {row: id for row, id in pairs if isinstance(row, int) and isinstance(id, str)}


def _readable(source: sqlite3.Connection, query: str) -> Iterator[tuple[Any, ...]]:
    try:
        yield from source.execute(query)
    except sqlite3.Error:
        return


def _settings(source: sqlite3.Connection, folder: Path) -> dict[str, Any]:
    """The settings of the damaged truth, or those its newest generation remembers."""
    found: dict[str, Any] = {}
    for number in numbers(folder):
        try:
            found |= json.loads((generation_folder(folder, number) / MANIFEST).read_bytes())["settings"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
    for key, value in _readable(source, "SELECT key, value FROM meta"):
        try:
            found[key] = json.loads(value)
        except (ValueError, TypeError):
            continue
    missing = [key for key in ("model", "fingerprint", "sizes", "dim", "vectors") if key not in found]
    if missing:
        raise IndexCorrupt(
            f"{folder}: the settings ({', '.join(missing)}) cannot be read, so nothing can be saved; "
            "make the index anew with `genius index`"
        )
    found.pop("generation", None)  # built anew from what was saved
    return found


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(1, 1000))
    return next(name for name in names if not name.exists())
