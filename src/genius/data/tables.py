"""Items from JSONL and CSV files, and from whatever a path or a URI holds.

Fields: `id` (else the image path as written), `image` or `path`, `text`, `vector` (an embedding that was made
elsewhere); `meta` and all others go to the item's meta. Image paths are relative to the file. A bad line is
skipped, counted and named `file:line`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from genius.data.columns import (
    UTF8,
    guess_delimiter,
    guess_encoding,
    parse_delimiter,
    renamed,
    require_columns,
)
from genius.data.decimals import NumberColumns, number_columns, parse_decimal
from genius.data.folder import TEXT_SUFFIX, read_files, read_folder
from genius.data.images import SUFFIXES
from genius.data.lines import MAX_LINE, json_object, numbered_lines
from genius.data.parquet import read_parquet
from genius.data.remote import RemotePath, location
from genius.data.report import Report, printable
from genius.data.rows import FIELDS, PLAIN, TableOptions, is_file, item_of, skip_row
from genius.data.tars import read_tar
from genius.data.texts import REPLACED
from genius.data.vectors import SUFFIXES as VECTOR_SUFFIXES
from genius.data.vectors import read_vectors
from genius.errors import BadData, BadInput
from genius.types import Item

JSON_SUFFIXES = (".jsonl", ".ndjson")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")
SAMPLE = 1000  # rows that tell how numbers are written
MAX_JSON = 256 * 2**20  # bytes of a file that is read as a whole


def read_items(
    path: str | Path | RemotePath,
    exclude: Sequence[str] = (),
    report: Report | None = None,
    options: TableOptions = PLAIN,
) -> Iterator[Item]:
    """The items in a folder, a JSONL, JSON, CSV, TSV or Parquet file, a tar shard, or a single image or text.

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
    elif not is_file(place):
        raise BadInput(f"no folder or file at {printable(place)}")
    if suffix in JSON_SUFFIXES:
        return read_jsonl(place, report, options)
    if suffix == ".json":
        return read_json(place, report, options)
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
    if suffix in SPREADSHEETS:
        raise BadInput(
            f"{printable(place)} is a spreadsheet: save it as CSV (UTF-8) in the program that made it, then "
            "index the .csv; --columns says which column is what"
        )
    known = ", ".join(
        (
            *JSON_SUFFIXES,
            ".json",
            *DELIMITERS,
            ".parquet",
            ".tar",
            *VECTOR_SUFFIXES,
            TEXT_SUFFIX,
            *sorted(SUFFIXES),
        )
    )
    raise BadInput(f"cannot tell what {printable(place)} holds: give a folder or a file ending in {known}")


def is_table(place: Path | RemotePath) -> bool:
    """Whether a file, by its name, has rows or members with ids of their own."""
    suffix = place.suffix.lower()
    return suffix in (*JSON_SUFFIXES, ".json", *DELIMITERS, ".parquet", ".tar", *VECTOR_SUFFIXES)


def _read_remote_folder(root: RemotePath, exclude: Sequence[str], report: Report) -> Iterator[Item]:
    for folder, files in root.files(exclude):
        yield from read_files(root, folder, files, report)


def read_jsonl(file: Path | RemotePath, report: Report, options: TableOptions = PLAIN) -> Iterator[Item]:
    """The items in `file`, one JSON object a line."""
    for number, line in numbered_lines(file):
        fields: Mapping[str, Any] = {}
        try:
            fields = renamed(json_object(_recoded(line, options)), options.columns)
            item = item_of(fields, file.parent, options=options)
        except (ValueError, BadInput) as error:
            skip_row(report, f"{file}:{number}", error, fields)
            continue
        yield _counted(item, report, f"{file}:{number}")


def _recoded(line: bytes | None, options: TableOptions) -> bytes | None:
    return line if line is None or options.encoding is None else line.decode(options.encoding).encode()


def _counted(item: Item, report: Report, where: str) -> Item:
    report.read += 1
    if REPLACED in item.meta.get("text_flags", ()):
        report.note(where, "characters could not be read and were replaced")
    return item


def read_json(file: Path | RemotePath, report: Report, options: TableOptions = PLAIN) -> Iterator[Item]:
    """The items in `file`: a JSON array of objects, or an object with one such array in it."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_JSON + 1)
        if len(data) > MAX_JSON:
            raise BadData(
                f"{printable(file)}: more than {MAX_JSON >> 20} MB; write it as JSONL, a row a line"
            )
        found = json.loads(data.decode(options.encoding or "utf-8-sig"))
    except OSError as error:
        raise BadData(f"{printable(file)}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise BadData(f"{printable(file)}: not JSON ({printable(error)})") from None
    if isinstance(found, dict):
        arrays = [value for value in found.values() if isinstance(value, list)]
        found = arrays[0] if len(arrays) == 1 else [found]
    if not isinstance(found, list):
        raise BadData(f"{printable(file)}: an array of objects is expected")
    for number, row in enumerate(found, start=1):
        fields: Mapping[str, Any] = {}
        try:
            fields = renamed(json_object(json.dumps(row).encode()), options.columns)
            item = item_of(fields, file.parent, options=options)
        except (ValueError, BadInput) as error:
            skip_row(report, f"{file}:{number}", error, fields)
            continue
        yield _counted(item, report, f"{file}:{number}")


def read_csv(file: Path | RemotePath, report: Report, options: TableOptions = PLAIN) -> Iterator[Item]:
    """The items in `file`, whose first line names the columns; an empty cell is an absent value."""
    try:
        encoding = options.encoding or guess_encoding(file)
        if options.encoding is None and encoding != UTF8:
            report.say(f"{file} is not UTF-8: read as {encoding}; --encoding names another one")
        # undecodable bytes become surrogates: right in paths, reported and replaced in texts
        errors = "replace" if encoding == "utf-16" else "surrogateescape"
        with file.open(encoding=encoding, errors=errors, newline="") as stream:
            delimiter = _delimiter(file, encoding, options, report)
            reader = csv.reader(stream, delimiter=delimiter)
            columns = _columns(reader, file, options)
            with file.open(encoding=encoding, errors=errors, newline="") as beginning:
                numbers = _numbers(csv.reader(beginning, delimiter=delimiter), columns, file, options, report)
            for number, cells in _rows(reader, file, report):
                fields: Mapping[str, Any] = dict(zip(columns, cells, strict=False))
                try:
                    fields = renamed(_fields(columns, cells, numbers), options.columns)
                    item = item_of(fields, file.parent, options=options)
                except (ValueError, BadInput) as error:
                    skip_row(report, f"{file}:{number}", error, fields)
                    continue
                yield _counted(item, report, f"{file}:{number}")
    except LookupError:
        raise BadInput(
            f"unknown encoding {options.encoding!r}: use a name such as cp1252 or utf-16"
        ) from None
    except UnicodeDecodeError as error:
        raise BadData(
            f"{printable(file)}: cannot be read as {error.encoding}; name another --encoding"
        ) from None
    except OSError as error:
        raise BadData(f"{printable(file)}: cannot be read ({error.strerror})") from None


def _delimiter(file: Path | RemotePath, encoding: str, options: TableOptions, report: Report) -> str:
    usual = DELIMITERS.get(file.suffix.lower(), ",")
    if options.delimiter is not None:
        return parse_delimiter(options.delimiter)
    with file.open(encoding=encoding, errors="replace", newline="") as stream:
        found = guess_delimiter(stream.readline(MAX_LINE), usual)
    if found != usual:
        name = "tab" if found == "\t" else found
        report.say(f"{file}: its cells are separated by {name!r}; --delimiter names another one")
    return found


def _numbers(
    reader: Any, columns: Sequence[str], file: Path | RemotePath, options: TableOptions, report: Report
) -> NumberColumns:
    """The metadata columns by their decimal signs; a guess other than the point is said."""
    used = {name.casefold() for several in options.columns.values() for name in several} or FIELDS
    meta = {name.casefold() for name in options.columns.get("meta", ())}
    own = [name for name in columns if name.casefold() not in used or name.casefold() in meta]
    if options.decimal is not None:
        comma = parse_decimal(options.decimal) == ","
        return NumberColumns(frozenset(own if comma else ()), frozenset(() if comma else own))
    rows = (cells for _, cells in islice(_rows(reader, file, Report()), 1, SAMPLE))
    found = number_columns(
        {name: cell for name, cell in zip(columns, cells, strict=False) if name in own} for cells in rows
    )
    if found.example:
        report.say(f"{file}: {found.example} is read with a decimal comma; --decimal . says otherwise")
    if found.mixed:
        report.say(
            f"{file}: some numbers of the column {found.mixed} have a decimal comma, others a point, and the "
            "former stay texts; --decimal , reads all as with a comma"
        )
    return found


def _columns(reader: Any, file: Path | RemotePath, options: TableOptions) -> list[str]:
    try:
        names = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise BadData(f"{printable(file)}:1: {error}") from None
    if options.columns:
        require_columns(options.columns, names, file)
        return names
    columns = [name.lower() if name.lower() in FIELDS else name for name in names]
    if not {"image", "path", "text", "vector"} & set(columns) and not options.partial:
        raise BadData(
            f"{printable(file)}:1: no column is called image, path, text or vector: name one so in line 1, "
            "or say with --columns which is which"
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


def _fields(columns: Sequence[str], cells: Sequence[str], numbers: NumberColumns) -> dict[str, Any]:
    if len(cells) > len(columns):
        raise ValueError(f"{len(cells)} cells, but {len(columns)} columns")
    there = {name: cell for name, cell in zip(columns, cells, strict=False) if cell}
    fields: dict[str, Any] = numbers.plain(there)
    if "meta" in fields:
        fields["meta"] = json_object(fields["meta"].encode(errors="surrogateescape"))
    return fields
