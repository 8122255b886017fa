"""Items from Parquet files: one row each, image bytes, paths or URIs in a column. Needs pyarrow."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genius.data.columns import renamed, require_columns
from genius.data.report import Report, printable
from genius.data.rows import TableOptions, item_of, skip_row
from genius.errors import BadData, BadInput, MissingExtra

if TYPE_CHECKING:
    from genius.data.remote import RemotePath
    from genius.types import Item

ROWS_AT_ONCE = 256  # images may be inside


def read_parquet(file: Path | RemotePath, report: Report, options: TableOptions) -> Iterator[Item]:
    """The items in `file`: columns as the fields of JSONL; an image may also be bytes, or bytes and a path.

    A row without id is called by the file and its number.
    """
    from genius.data.remote import INSTALL

    try:
        from pyarrow.lib import ArrowException
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as error:
        raise MissingExtra(f"reading {printable(file)} needs {error.name}: {INSTALL}") from None
    number = 0
    try:
        with file.open("rb") as stream, ParquetFile(stream) as opened:
            names = {name.lower() for name in opened.schema_arrow.names}
            if options.columns:
                require_columns(options.columns, opened.schema_arrow.names, file)
            elif not names & {"image", "path", "text", "vector"} and not options.partial:
                raise BadData(
                    f"{printable(file)}: no column is called image, path, text or vector: name one so"
                )
            for batch in opened.iter_batches(ROWS_AT_ONCE):
                batch, vectors = _without_vectors(batch)
                for start in range(batch.num_rows):
                    number += 1
                    fields: dict[str, Any] = {}
                    try:
                        (row,) = batch.slice(start, 1).to_pylist()
                        fields, data = _fields(renamed(row, options.columns))
                        fields |= {} if vectors is None else {"vector": vectors[start]}
                        item = item_of(fields, file.parent, data, f"{file.name}/{number}", options)
                    except (ValueError, OverflowError, ArrowException, BadInput) as error:
                        skip_row(report, f"{file}:{number}", error, fields)
                        continue
                    except RecursionError:
                        skip_row(report, f"{file}:{number}", "nested too deeply", fields)
                        continue
                    report.read += 1
                    yield item
    except (OSError, ArrowException) as error:
        raise BadData(f"{printable(file)}: cannot be read ({printable(error)})") from None


def _without_vectors(batch: Any) -> tuple[Any, list[Any] | None]:
    """A batch without its column of vectors, and that column: an array or None for each row."""
    for number, name in enumerate(batch.schema.names):
        if name.lower() == "vector":
            column = batch.column(number)
            return batch.drop_columns([name]), [_cell(cell) for cell in column]
    return batch, None


def _cell(cell: Any) -> Any:
    """A list as an array; what is no list as it is, so that its row is refused."""
    listed = getattr(cell, "values", None)
    return cell.as_py() if listed is None else listed.to_numpy(False)


def _fields(row: dict[str, Any]) -> tuple[dict[str, Any], bytes | None]:
    """The fields of a row, and the bytes of its image if they are in it."""
    own = ("id", "image", "path", "text", "meta")
    fields = {name.lower() if name.lower() in own else name: value for name, value in row.items()}
    fields = {name: value for name, value in fields.items() if value is not None}
    image = fields.get("image")
    if isinstance(image, dict):  # as the datasets library writes it
        fields["image"], image = image.get("path"), image.get("bytes")
    data = image if isinstance(image, bytes) else None
    if isinstance(fields.get("image"), bytes):
        del fields["image"]
    plain = json.loads(json.dumps(_numbers(fields), default=str))
    return {name: value for name, value in plain.items() if value is not None}, data


def _numbers(value: Any) -> Any:
    """The value with nothing in the place of numbers that are none."""
    if isinstance(value, dict):
        return {str(name): _numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_numbers(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
