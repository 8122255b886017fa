"""Filters written out in genius' grammar (docs/filters.md) from values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genius.errors import BadInput


def field(name: str) -> str:
    """A metadata field, whatever its name; a dot leads into an object."""
    return "meta." + ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def literal(value: Any) -> str:
    """A number, text, or truth value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    raise BadInput(f"cannot filter by {value!r}: use numbers, texts, true and false")


def equalities(values: Mapping[str, Any]) -> str | None:
    """The filter that keeps items whose metadata has these values; a list means one of its values."""
    parts = []
    for name, value in values.items():
        if isinstance(value, list | tuple):
            parts.append(f"{field(name)} in ({', '.join(map(literal, value))})")
        else:
            parts.append(f"{field(name)} = {literal(value)}")
    return " and ".join(parts) or None
