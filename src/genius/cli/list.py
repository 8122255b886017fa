"""`genius list`: stored items without a search, those that pass a filter. Does not load the model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genius.cli.facets import FacetOption, WhereOption, facet_lines, facet_values, say_nothing_passes
from genius.cli.output import DEFAULT_INDEX, IndexFolder, say

if TYPE_CHECKING:
    from genius.store.records import Record


class ListFormat(StrEnum):
    """How items are printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    IDS = "ids"
    PATHS = "paths"


def list_items(
    where: WhereOption = None,
    limit: Annotated[int, typer.Option(min=0, help="How many items.")] = 100,
    everything: Annotated[bool, typer.Option("--all", help="All items, without a limit.")] = False,
    offset: Annotated[int, typer.Option(min=0, help="Skip this many items.")] = 0,
    facet: FacetOption = None,
    folder: IndexFolder = DEFAULT_INDEX,
    form: Annotated[ListFormat, typer.Option("--format", help="How items are printed.")] = ListFormat.TABLE,
) -> None:
    """List stored items. They come in the order they were added; with --where, those that match."""
    from genius.engine import Engine

    with Engine.open(folder) as engine:
        page = engine.browse(where, None if everything else limit, offset, facets=facet or [])
        if where and not page.total:
            say_nothing_passes(engine, where)
    for line in _lines(page.items, form, page.facets if facet else None, page.total):
        print(line)
    say(f"{len(page.items):,} of {page.total:,}")


def _lines(
    items: Sequence[Record], form: ListFormat, facets: Mapping[str, Any] | None, total: int
) -> Iterator[str]:
    from genius.data.report import printable

    if form is ListFormat.JSON:
        shown: Any = [_fields(item) for item in items]
        if facets is not None:
            shown = {"items": shown, "total": total, "facets": facet_values(facets)}
        yield json.dumps(shown, indent=2)
    elif form is ListFormat.JSONL:
        yield from (json.dumps(_fields(item)) for item in items)
    elif form is ListFormat.IDS:
        yield from (printable(item.id) for item in items)
    elif form is ListFormat.PATHS:
        yield from (printable(item.path) for item in items if item.path is not None)
    else:
        width = max((len(printable(item.id)) for item in items), default=0)
        room = max(12, shutil.get_terminal_size((120, 24)).columns - width - 10)
        for item in items:
            text = printable(" ".join((item.text or "").split()))
            cut = text if len(text) <= room else text[: room - 1] + "…"
            yield f"{item.modality.value:<8}  {printable(item.id):<{width}}  {cut}".rstrip()
        yield from facet_lines(facets or {})


def _fields(item: Record) -> dict[str, Any]:
    """An item as plain values; absent parts are left out, names are made printable."""
    from genius.data.report import printable

    fields: dict[str, Any] = {"id": item.id, "modality": item.modality.value, "codes": item.codes.tolist()}
    if item.text is not None:
        fields["text"] = item.text
    if item.path is not None:
        fields["path"] = printable(item.path)
    return fields | {"meta": json.loads(item.meta)}
