"""A row of a table, whatever the table, as an item."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genius.data.columns import Columns
from genius.data.folder import item_id
from genius.data.remote import RemotePath, is_uri, location
from genius.data.report import Report, is_printable
from genius.data.texts import UserText, clean_text
from genius.data.urls import NOT_FETCHED, is_url
from genius.data.validate import unit_vector, valid_meta
from genius.types import Item

FIELDS = frozenset(("id", "image", "path", "text", "meta", "vector"))  # what is not metadata


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How the rows of a table become items."""

    columns: Columns = field(default_factory=dict)  # which columns make up an item; else by their names
    delimiter: str | None = None  # between the cells of a CSV; None: by the file's ending and first line
    encoding: str | None = None  # of its letters; None: UTF-8, or what the file looks like
    allow_urls: bool = False  # fetch images of the web: see `genius.data.urls`
    decimal: str | None = None  # sign before the decimals of a CSV, "." or ","; None: as they look
    partial: bool = False  # rows change stored items, so they need neither image nor text


PLAIN = TableOptions()


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
        try:
            vector = json.loads(vector)
        except ValueError:
            raise ValueError("the vector must be a list of numbers, as [0.1, 0.2]") from None
    if vector is not None:
        unit_vector(vector)
    elif not image and data is None and not cleaned.text and not options.partial:
        raise ValueError("neither image nor text" if text is None else "empty text and no image")
    source: str | Path | bytes | None = data
    if data is None and image:
        path = location(image) if is_uri(image) else image if is_url(image) else folder / image
        if isinstance(path, str) and not (options.allow_urls or cleaned.text):
            raise ValueError(f"{image}: {NOT_FETCHED}")
        there = isinstance(path, str) or is_file(path)
        if vector is None and not cleaned.text and not there:  # a text is kept without its image
            raise ValueError(f"no image at {path}")
        source = path if isinstance(path, Path) else str(path)
    meta = fields.get("meta") or {}
    if not isinstance(meta, dict):
        raise ValueError("meta: a JSON object is expected")  # noqa: TRY004
    meta = {**{name: value for name, value in fields.items() if name not in FIELDS}, **meta}
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


def is_file(path: Path | RemotePath) -> bool:
    """Whether a file is there, and is one."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, a folder closed to us
        return False
