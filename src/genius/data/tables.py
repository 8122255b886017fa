"""Items from JSONL and CSV files, and from whatever a path or a URI holds.

Fields: `id` (else the image path as written), `image` or `path`, `text`, `vector` (an embedding that was made
elsewhere); `meta` and all others go to the item's meta. Image paths are relative to the file. A bad line is
skipped, counted and named `file:line`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genius.data.folder import TEXT_SUFFIX, item_id, read_files, read_folder
from genius.data.images import SUFFIXES
from genius.data.lines import json_object, numbered_lines
from genius.data.parquet import read_parquet
from genius.data.remote import RemotePath, is_uri, location
from genius.data.report import Report, is_printable, printable
from genius.data.tars import read_tar
from genius.data.texts import UserText, clean_text
from genius.data.validate import unit_vector, valid_meta
from genius.data.vectors import SUFFIXES as VECTOR_SUFFIXES
from genius.data.vectors import read_vectors
from genius.errors import BadData, BadInput
from genius.types import Item

JSON_SUFFIXES = (".jsonl", ".ndjson")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
_FIELDS = frozenset(("id", "image", "path", "text", "meta", "vector"))


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How the rows of a table become items."""

    partial: bool = False  # rows change stored items, so they need neither image nor text


PLAIN = TableOptions()


def read_items(
    path: str | Path | RemotePath,
    exclude: Sequence[str] = (),
    report: Report | None = None,
    options: TableOptions = PLAIN,
) -> Iterator[Item]:
    """The items in a folder, a JSONL, CSV, TSV or Parquet file, a tar shard, or a single image or text file.

    `path` may be a URI: see `genius.data.remote`.
    """
    place = location(path) if isinstance(path, str) else path
    suffix = place.suffix.lower()
    report = Report() if report is None else report
    if isinstance(place, RemotePath):
        if place.is_dir():
            return _read_remote_folder(place, exclude, report)
    elif place.is_dir():
        return read_folder(place, exclude, report)
    elif not _is_file(place):
        raise BadInput(f"no folder or file at {printable(place)}")
    if suffix in JSON_SUFFIXES:
        return read_jsonl(place, report, options)
    if suffix in DELIMITERS:
        return read_csv(place, report, options)
    if suffix == ".parquet":
        return read_parquet(place, report, options)
    if suffix == ".tar":
        return read_tar(place, report)
    if suffix in VECTOR_SUFFIXES:
        return read_vectors(place, report)
    if suffix in SUFFIXES or suffix == TEXT_SUFFIX:
        return read_files(place.parent, place.parent, [place.name], report)
    known = ", ".join(
        (*JSON_SUFFIXES, *DELIMITERS, ".parquet", ".tar", *VECTOR_SUFFIXES, TEXT_SUFFIX, *sorted(SUFFIXES))
    )
    raise BadInput(f"cannot tell what {printable(place)} holds: give a folder or a file ending in {known}")


def is_table(place: Path | RemotePath) -> bool:
    """Whether a file, by its name, has rows or members with ids of their own."""
    suffix = place.suffix.lower()
    return suffix in JSON_SUFFIXES or suffix in DELIMITERS or suffix in (".parquet", ".tar", *VECTOR_SUFFIXES)


def _read_remote_folder(root: RemotePath, exclude: Sequence[str], report: Report) -> Iterator[Item]:
    for folder, files in root.files(exclude):
        yield from read_files(root, folder, files, report)


def read_jsonl(file: Path | RemotePath, report: Report, options: TableOptions = PLAIN) -> Iterator[Item]:
    """The items in `file`, one JSON object a line."""
    for number, line in numbered_lines(file):
        fields: Mapping[str, Any] = {}
        try:
            fields = json_object(line)
            item = item_of(fields, file.parent, options=options)
        except (ValueError, BadInput) as error:
            skip_row(report, f"{file}:{number}", error, fields)
            continue
        report.read += 1
        yield item


def read_csv(file: Path | RemotePath, report: Report, options: TableOptions = PLAIN) -> Iterator[Item]:
    """The items in `file`, whose first line names the columns; an empty cell is an absent value."""
    try:
        # undecodable bytes become surrogates: right in paths, reported and replaced in texts
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            reader = csv.reader(stream, delimiter=DELIMITERS.get(file.suffix.lower(), ","))
            columns = _columns(reader, file, options)
            for number, cells in _rows(reader, file, report):
                fields: Mapping[str, Any] = dict(zip(columns, cells, strict=False))
                try:
                    fields = _fields(columns, cells)
                    item = item_of(fields, file.parent, options=options)
                except (ValueError, BadInput) as error:
                    skip_row(report, f"{file}:{number}", error, fields)
                    continue
                report.read += 1
                yield item
    except OSError as error:
        raise BadData(f"{printable(file)}: cannot be read ({error.strerror})") from None


def _columns(reader: Any, file: Path | RemotePath, options: TableOptions) -> list[str]:
    try:
        names = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise BadData(f"{printable(file)}:1: {error}") from None
    columns = [name.lower() if name.lower() in _FIELDS else name for name in names]
    if not {"image", "path", "text", "vector"} & set(columns) and not options.partial:
        raise BadData(
            f"{printable(file)}:1: no column is called image, path, text or vector: name one so in line 1"
        )
    return columns


def _rows(reader: Any, file: Path | RemotePath, report: Report) -> Iterator[tuple[int, list[str]]]:
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            skip_row(report, f"{file}:{reader.line_num}", error, {})
            continue
        if any(cells):
            yield reader.line_num, cells


def _fields(columns: Sequence[str], cells: Sequence[str]) -> dict[str, Any]:
    if len(cells) > len(columns):
        raise ValueError(f"{len(cells)} cells, but {len(columns)} columns")
    fields: dict[str, Any] = {name: cell for name, cell in zip(columns, cells, strict=False) if cell}
    if "meta" in fields:
        fields["meta"] = json_object(fields["meta"].encode(errors="surrogateescape"))
    return fields


def item_of(
    fields: Mapping[str, Any],
    folder: Path | RemotePath,
    data: bytes | None = None,
    name: str | None = None,
    options: TableOptions = PLAIN,
) -> Item:
    """The item that `fields` describe; raises ValueError or BadInput with the reason if there is none.

    Image paths start from `folder`; `data` are the bytes of an image that lies within, and `name` is the id
    where the fields have none.
    """
    image, text = _string(fields, "image") or _string(fields, "path"), _string(fields, "text")
    cleaned = clean_text(text) if text else UserText("")
    vector = fields.get("vector")
    if isinstance(vector, str):  # a cell of a CSV
        vector = json.loads(vector)
    if vector is not None:
        unit_vector(vector)
    elif not image and data is None and not cleaned.text and not options.partial:
        raise ValueError("neither image nor text" if text is None else "empty text and no image")
    source: str | Path | bytes | None = data
    if data is None and image:
        path = location(image) if is_uri(image) else folder / image
        if vector is None and not cleaned.text and not _is_file(path):  # a text is kept without its image
            raise ValueError(f"no image at {path}")
        source = path if isinstance(path, Path) else str(path)
    meta = fields.get("meta") or {}
    if not isinstance(meta, dict):
        raise ValueError("meta: a JSON object is expected")  # noqa: TRY004
    meta = {**{name: value for name, value in fields.items() if name not in _FIELDS}, **meta}
    valid_meta(meta)
    if cleaned.flags:
        meta["text_flags"] = list(cleaned.flags)
    return Item(_id(fields, image, name), source, cleaned.text or None, meta, vector)


def skip_row(
    report: Report, where: str, reason: object, fields: Mapping[str, Any], name: str | None = None
) -> None:
    """Report a row that is skipped, with its id, if it has a valid one."""
    image = fields.get("image") or fields.get("path")
    try:
        id = _id(fields, image if isinstance(image, str) else None, name)
    except ValueError:
        report.unknown += 1
        id = None
    report.skip(where, reason, id)


def _id(fields: Mapping[str, Any], image: str | None, name: str | None) -> str:
    value = fields.get("id")
    if value is None and (image or name):
        return item_id(image or name or "")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError("no id: give a string or a number")
    if not is_printable(value):
        raise ValueError("the id has control characters or broken Unicode")
    return value


def _string(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name}: a string is expected, not {type(value).__name__}")
    return value


def _is_file(path: Path | RemotePath) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, a folder closed to us
        return False
