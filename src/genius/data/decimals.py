"""Decimal commas in the numbers of a CSV: found, and written as points, so that they compare as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from genius.data.report import printable
from genius.errors import BadInput

DECIMALS = (".", ",")
_BLANKS = " \u00a0\u202f'’"
_GROUPS = r"[1-9]\d{0,2}(?:\.\d{3})+"
_NUMBER = re.compile(rf"[+-]?(?:{_GROUPS}|(?:\d+|{_GROUPS}|[1-9]\d{{0,2}}(?:[{_BLANKS}]\d{{3}})+),\d+)")
# 1,234 may be a thousand and more, or little more than one; so may 1.234
_SURE = re.compile(rf"[+-]?(?:\d+,(?:\d\d?|\d{{4,}})|{_GROUPS},\d+|\d[\d{_BLANKS}]*,\d\d?)")
_POINT = re.compile(r"[+-]?(?:\d+\.(?:\d\d?|\d{4,})|[1-9]\d{0,2}(?:,\d{3})+\.\d+)")
_AWAY = str.maketrans(dict.fromkeys(_BLANKS + ".") | {",": "."})


@dataclass(frozen=True, slots=True)
class CommaColumns:
    """The columns of a table whose numbers have a decimal comma."""

    names: frozenset[str]
    example: str = ""  # a number of the table
    mixed: str = ""  # a column that has numbers of both kinds

    def plain(self, fields: Mapping[str, str]) -> dict[str, str]:
        """The cells of a row; numbers of these columns have a point, and nothing between thousands."""
        return {
            name: cell.translate(_AWAY) if name in self.names and _NUMBER.fullmatch(cell.strip()) else cell
            for name, cell in fields.items()
        }


def parse_decimal(written: str) -> str:
    """The decimal sign that a user wrote."""
    if written not in DECIMALS:
        raise BadInput(f"decimals follow a point or a comma, not {printable(written)!r}: use . or ,")
    return written


def comma_columns(rows: Iterable[Mapping[str, str]]) -> CommaColumns:
    """The columns with a decimal comma, by some rows of a table.

    If one column surely has it, all have whose numbers do not surely have a point.
    """
    names: set[str] = set()
    commas: dict[str, str] = {}
    points: set[str] = set()
    for fields in rows:
        for name, cell in fields.items():
            names.add(name)
            if _SURE.fullmatch(cell.strip()):
                commas.setdefault(name, cell)
            elif _POINT.fullmatch(cell.strip()):
                points.add(name)
    example = next((cell for name, cell in commas.items() if name not in points), "")
    mixed = next((name for name in commas if name in points), "")
    return CommaColumns(frozenset(names - points) if example else frozenset(), example, mixed)
