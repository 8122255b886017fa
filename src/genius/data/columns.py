"""Tables as other programs write them: which column is what, what separates cells, how letters are coded."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genius.data.report import printable
from genius.errors import BadInput

if TYPE_CHECKING:
    from genius.data.remote import RemotePath

TARGETS = ("id", "image", "text", "meta", "vector")
Columns = Mapping[str, Sequence[str]]  # what an item has -> the columns it is made of
UTF8 = "utf-8-sig"
WINDOWS = "cp1252"
GUESSED = ",;\t|"
JOINT = ". "  # between the columns of a text
_PIECE = 1 << 20


def parse_columns(written: str) -> dict[str, list[str]]:
    """The columns in `id=sku,text=title, description,image=photo`; a name without `=` continues the last."""
    columns: dict[str, list[str]] = {}
    target = ""
    for part in written.split(","):
        name, equals, rest = part.partition("=")
        if equals and name.strip().lower() in TARGETS:
            target, part = name.strip().lower(), rest
            if target in columns:
                raise BadInput(f"columns name {target} twice: write {target}=ONE,OTHER")
            columns[target] = []
        if not target or not part.strip():
            raise BadInput(
                f"columns are written id=COLUMN,text=COLUMN,COLUMN,image=COLUMN, not {printable(written)!r}; "
                f"there are {', '.join(TARGETS)}"
            )
        columns[target].append(part.strip())
    return columns


def require_columns(columns: Columns, there: Sequence[str], file: object) -> None:
    """Raise BadInput with the columns that there are, if one that is named is not among them."""
    names = {name.casefold() for name in there}
    for name in (name for several in columns.values() for name in several):
        if name.casefold() not in names:
            raise BadInput(
                f"{printable(file)} has no column {name!r}: it has {', '.join(map(printable, there))}"
            )


def renamed(fields: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """The fields under the names that items have; columns that are not named stay metadata.

    A text of several columns has them one after the other. With `meta` named, only those columns are kept.
    """
    if not columns:
        return dict(fields)
    place = {name.casefold(): name for name in fields}

    def values(names: Sequence[str]) -> dict[str, Any]:
        found = {name: fields[place[name.casefold()]] for name in names if name.casefold() in place}
        return {name: value for name, value in found.items() if value is not None and value != ""}

    used = {name.casefold() for several in columns.values() for name in several}
    out = {} if "meta" in columns else {k: v for k, v in fields.items() if k.casefold() not in used}
    for target, names in columns.items():
        found = values(names)
        if target == "meta":
            out |= found
        elif target == "text" and found:
            out[target] = JOINT.join(str(value).strip() for value in found.values())
        else:
            out[target] = next(iter(found.values()), None)
    return {name: value for name, value in out.items() if value is not None}


def guess_encoding(file: Path | RemotePath) -> str:
    """UTF-8, unless the file has a mark of UTF-16 or most of its lines that are not plain are no UTF-8.

    UTF-8 is also the answer for a file with some broken bytes among sound letters.
    """
    with file.open("rb") as stream:
        if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
    sound = broken = 0
    with file.open("rb") as stream:
        for line in iter(lambda: stream.readline(_PIECE), b""):
            if line.isascii():
                continue
            try:
                line.decode()
                sound += 1
            except UnicodeDecodeError:
                broken += 1
    return UTF8 if sound >= broken else WINDOWS


def guess_delimiter(line: str, usual: str) -> str:
    """What separates the cells of a table with this first line: `usual`, if none gives more columns."""
    widths = {one: len(next(csv.reader([line], delimiter=one), [])) for one in {usual, *GUESSED}}
    best = max(GUESSED, key=lambda one: widths[one])
    return best if widths[best] > widths[usual] else usual


def parse_delimiter(written: str) -> str:
    """The delimiter that a user wrote: one character, or `tab`."""
    found = {"tab": "\t", "\\t": "\t"}.get(written.lower(), written)
    if len(found) != 1 or found in '"\r\n':
        raise BadInput(f"a delimiter is one character, or tab, not {printable(written)!r}")
    return found
