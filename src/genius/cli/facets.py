"""What `search` and `list` share: the options for filters and facets, and how facets are printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genius.cli.output import say

if TYPE_CHECKING:
    from genius.engine import Engine
    from genius.types import FacetCount

WhereOption = Annotated[
    str | None,
    typer.Option("--where", metavar="FILTER", help='Only items that pass: "price < 50 and not sold".'),
]
FacetOption = Annotated[
    list[str] | None, typer.Option("--facet", metavar="FIELD", help="Count the values of a field.")
]


def say_nothing_passes(engine: Engine, where: str | None) -> None:
    """Say that no item passes the filter, and which of its fields no item has."""
    unknown = engine.unknown_fields(where) if where else []
    why = f": none has the field {' or '.join(unknown)}" if unknown and len(engine) else ""
    say(f"no item passes the filter{why}")


def facet_lines(facets: Mapping[str, Sequence[FacetCount]]) -> Iterator[str]:
    """A line for each field with its values, the most frequent first."""
    from genius.data.report import printable

    for field, counts in facets.items():
        values = ", ".join(f"{_shown(one.value)} ({one.count:,})" for one in counts)
        yield printable(f"{field}: {values or 'no item has it'}")


def facet_values(facets: Mapping[str, Sequence[FacetCount]]) -> dict[str, list[dict[str, Any]]]:
    """The same as plain values."""
    return {field: [one._asdict() for one in counts] for field, counts in facets.items()}


def _shown(value: object) -> str:
    if value == "":  # as the folder of files at the top
        return "''"
    return str(value).lower() if isinstance(value, bool) else str(value)
