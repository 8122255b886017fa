"""Stored items whose files are missing: moved within their source, or deleted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from genius.ingest.item import digest
from genius.store.index import Index
from genius.store.records import Record

_CHUNK = 1000  # records held at a time


@dataclass(frozen=True, slots=True)
class MissingFile:
    """An item whose file is not at its path, and where the same content is now, if it was found."""

    id: str
    path: str
    now: str | None


@dataclass(slots=True)
class FilesReport:
    """How many items have files, and which of these are missing."""

    files: int = 0
    missing: list[MissingFile] = field(default_factory=list)


def missing_files(index: Index) -> FilesReport:
    """Look at the file of every item; a missing one is searched for in the folder that it was read from, or
    that of its table.
    """
    report = FilesReport()
    lost: list[Record] = []
    for record in _records(index):
        if record.path is not None:
            report.files += 1
            if not os.path.exists(record.path):  # noqa: PTH110 (a path of odd bytes)
                lost.append(record)
    moved = _moved(lost)
    report.missing = [MissingFile(one.id, str(one.path), moved.get(one.id)) for one in lost]
    return report


def _records(index: Index) -> Iterator[Record]:
    rows = index.truth.rows().tolist()
    for start in range(0, len(rows), _CHUNK):
        yield from index.truth.records(rows[start : start + _CHUNK]).values()


def _moved(lost: list[Record]) -> dict[str, str]:
    """Id to the new path of each item whose file has another name now."""
    found: dict[str, str] = {}
    for source in sorted({record.source for record in lost if record.source is not None}):
        wanted = [record for record in lost if record.source == source]
        sizes = {record.stamp.size for record in wanted}
        place = Path(source)
        for file in _files(place.parent if place.is_file() else place):
            try:
                if file.stat().st_size not in sizes:
                    continue
                content = digest(file.read_bytes())
            except OSError:
                continue
            same = [one for one in wanted if one.hash.startswith(content) and one.id not in found]
            if same:
                found[same[0].id] = str(file)
    return found


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(place) / name for name in sorted(names))
