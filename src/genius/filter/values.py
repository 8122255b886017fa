"""What a test means for the value of one item.

- A field that is missing, or null, passes no test; so `not` of any test of it holds. `!=`, `not in` and
  `not like` ask that the field is there.
- Numbers compare as numbers, texts by their code points, true and false only with = and !=.
- A text that reads as a number (as in a CSV file) compares with a number as that number, whichever of the two
  is in the filter; the texts of TRUTHS, in any case, equal true and false. Otherwise values of two types are
  not equal and have no order.
- A list passes a test if one of its elements does. An object passes none but `has`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from genius.filter.grammar import (
    MAX_NUMBER,
    Compare,
    FieldName,
    FieldTest,
    Has,
    Like,
    OneOf,
    Operator,
    number,
)
from genius.filter.patterns import pattern_parts

Check = Callable[[Any], bool]
TRUTHS = {True: ("true", "yes"), False: ("false", "no")}  # as they are written in JSON, and in tables


class ItemFields(NamedTuple):
    """What filters can ask of an item."""

    id: str
    modality: str
    text: str | None
    path: str | None
    source: str | None  # the folder or file it was read from
    mtime_ns: int  # of its file; 0 without one
    meta: Mapping[str, Any]

    def get(self, field: FieldName) -> Any:
        """The value of a field, None if it is missing."""
        if field.built_in == "folder":
            return folder(self.path, self.source)
        if field.built_in == "modified":
            return file_date(self.mtime_ns)
        if field.built_in == "date":
            return self.meta["date"] if self.meta.get("date") is not None else file_date(self.mtime_ns)
        if field.built_in is not None:
            return getattr(self, field.built_in)
        value: Any = self.meta
        for key in field.path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def folder(path: str | None, source: str | None) -> str | None:
    """The folder of an item's file below what was indexed, with `/`; an empty text for the top itself.

    Of a file that was not indexed with a folder or a table, it is the name of its folder alone: where a
    collection lies is nobody's business on a server.
    """
    if path is None:
        return None
    own = PurePosixPath(path).parent
    if source is not None:
        top = PurePosixPath(source)
        if top.suffix and not own.is_relative_to(top):  # a table, whose images are named from its folder
            top = top.parent
        if own.is_relative_to(top):
            return "" if own == top else str(own.relative_to(top))
    return own.name


def file_date(mtime_ns: int) -> str | None:
    """When a file was changed, in UTC, as 2024-05-31T18:00:00; None without a file."""
    if not mtime_ns:
        return None
    try:
        return datetime.fromtimestamp(mtime_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return None


def check_of(test: FieldTest) -> Check:
    """The function that says whether a value passes the test; None is a missing field."""
    single = _single(test)

    def check(value: Any) -> bool:
        if isinstance(value, list):
            return isinstance(test, Has) or any(single(element) for element in value)
        return single(value)

    return check


def _single(test: FieldTest) -> Check:
    """The same for a value that is not a list."""
    if isinstance(test, Has):
        return lambda value: value is not None
    if isinstance(test, Like):
        return _like(test.pattern)
    if isinstance(test, OneOf):
        checks = _keys(test)
        return lambda value: not checks.isdisjoint(_key_of_value(value))
    return lambda value: _compares(value, test)


def _like(pattern: str) -> Check:
    """The check of a `like` pattern: each part between two % is looked for after the one before."""
    characters = pattern_parts(pattern)
    parts = [_literal(part) for part in characters]
    first, *middle, last = parts if len(parts) > 1 else [*parts, parts[0]]

    def check(value: Any) -> bool:
        if not isinstance(value, str):
            return False
        if len(parts) == 1:
            return first.fullmatch(value) is not None
        found = first.match(value)
        for part in middle:
            if found is None:
                return False
            found = part.search(value, found.end())
        at = len(value) - ends
        return found is not None and at >= found.end() and last.fullmatch(value, at) is not None

    ends = len(characters[-1])
    return check


def _literal(part: list[str | None]) -> re.Pattern[str]:
    """A piece of a pattern without %, as a regular expression; every part of it is one character long."""
    return re.compile(
        "".join("." if char is None else re.escape(char) for char in part), re.DOTALL | re.IGNORECASE
    )


def _keys(test: OneOf) -> frozenset[tuple[str, Any]]:
    """The values of `in` by type, each under everything that equals it."""
    keys: set[tuple[str, Any]] = set()
    for is_truth, value in test.values:
        if is_truth:
            keys.add(("truth", value))
        elif isinstance(value, str):
            keys.add(("text", value))
            if (read := number(value)) is not None:
                keys.add(("number alone", read))  # equals numbers, not other texts that read so
        else:
            keys |= {("number", value)}
    return frozenset(keys)


def _key_of_value(value: Any) -> list[tuple[str, Any]]:
    """What a value has to be compared as to equal one of the keys."""
    if isinstance(value, bool):
        return [("truth", value)]
    if isinstance(value, int | float):
        exact = as_stored(value)
        return [("number", exact), ("number alone", exact)]
    if not isinstance(value, str):
        return []
    keys: list[tuple[str, Any]] = [("text", value)]
    if (read := number(value)) is not None:
        keys.append(("number", read))
    if (truth := _truth(value)) is not None:
        keys.append(("truth", truth))
    return keys


def _compares(value: Any, test: Compare) -> bool:
    wanted = test.value
    if isinstance(wanted, bool):
        return value is wanted or (isinstance(value, str) and _truth(value) is wanted)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return False
    if isinstance(value, str) and isinstance(wanted, str):
        return _holds(value, test.operator, wanted)
    left = number(value) if isinstance(value, str) else as_stored(value)
    right = number(wanted) if isinstance(wanted, str) else wanted
    return left is not None and right is not None and _holds(left, test.operator, right)


def _holds(left: Any, operator: Operator, right: Any) -> bool:
    if operator == "=":
        return bool(left == right)
    if operator == "<":
        return bool(left < right)
    if operator == "<=":
        return bool(left <= right)
    if operator == ">":
        return bool(left > right)
    return bool(left >= right)


def as_stored(value: int | float) -> int | float:
    """The number as SQLite reads it out of JSON: whole ones beyond 64 bits are floats."""
    if isinstance(value, float) or abs(value) <= MAX_NUMBER:
        return value
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _truth(text: str) -> bool | None:
    return next((truth for truth, names in TRUTHS.items() if text.lower() in names), None)
