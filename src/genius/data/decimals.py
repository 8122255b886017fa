"""How the numbers of a CSV are written: with a decimal comma or point, and signs between thousands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from genius.data.report import printable
from genius.errors import BadInput

DECIMALS = (".", ",")
_BLANKS = " \u00a0\u202f'’"
_GROUPS = r"[1-9]\d{0,2}(?:\.\d{3})+"
_WITH_COMMA = re.compile(rf"[+-]?(?:{_GROUPS}|(?:\d+|{_GROUPS}|[1-9]\d{{0,2}}(?:[{_BLANKS}]\d{{3}})+),\d+)")
_WITH_POINT = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")  # and commas between thousands
# 1,234 may be a thousand and more, or little more than one; so may 1.234
_SURE_COMMA = re.compile(rf"[+-]?(?:\d+,(?:\d\d?|\d{{4,}})|{_GROUPS},\d+|\d[\d{_BLANKS}]*,\d\d?)")
_SURE_POINT = re.compile(r"[+-]?(?:\d+\.(?:\d\d?|\d{4,})|[1-9]\d{0,2}(?:,\d{3})+\.\d+)")
_TO_POINT = str.maketrans(dict.fromkeys(_BLANKS + ".") | {",": "."})


@dataclass(frozen=True, slots=True)
class NumberColumns:
    """The columns of a table by the decimal sign of their numbers; those of neither kind stay as they are."""

    commas: frozenset[str] = frozenset()
    points: frozenset[str] = frozenset()
    example: str = ""  # a number with a comma
    mixed: str = ""  # a column that has both

    def plain(self, fields: Mapping[str, str]) -> dict[str, str]:
        """The cells of a row; numbers have a decimal point, and nothing between thousands."""
        return {name: self._plain(name, cell) for name, cell in fields.items()}

    def _plain(self, name: str, cell: str) -> str:
        if name in self.commas and _WITH_COMMA.fullmatch(cell.strip()):
            return cell.translate(_TO_POINT)
        if name in self.points and _WITH_POINT.fullmatch(cell.strip()):
            return cell.replace(",", "")
        return cell


def parse_decimal(written: str) -> str:
    """The decimal sign that a user wrote."""
    if written not in DECIMALS:
        raise BadInput(f"decimals follow a point or a comma, not {printable(written)!r}: use . or ,")
    return written


def number_columns(rows: Iterable[Mapping[str, str]]) -> NumberColumns:
    """The columns by their decimal sign, as some rows of a table show it.

    If one column surely has commas, all have whose numbers do not surely have a point.
    """
    names: set[str] = set()
    commas: dict[str, str] = {}
    points: set[str] = set()
    for fields in rows:
        for name, cell in fields.items():
            names.add(name)
            if _SURE_COMMA.fullmatch(cell.strip()):
                commas.setdefault(name, cell)
            elif _SURE_POINT.fullmatch(cell.strip()):
                points.add(name)
    example = next((cell for name, cell in commas.items() if name not in points), "")
    mixed = next((name for name in commas if name in points), "")
    return NumberColumns(
        frozenset(names - points if example else ()), frozenset(points - commas.keys()), example, mixed
    )
