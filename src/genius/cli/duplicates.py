"""`genius duplicates`: items that are there twice, in groups."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from genius.cli.output import DEFAULT_INDEX, IndexFolder, counted, say


class GroupFormat(StrEnum):
    """How groups are printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


def duplicates(
    exact: Annotated[bool, typer.Option("--exact", help="Only items with identical content.")] = False,
    at_least: Annotated[
        float | None, typer.Option(help="Least similarity of near duplicates (default: 0.96).")
    ] = None,
    folder: IndexFolder = DEFAULT_INDEX,
    form: Annotated[
        GroupFormat, typer.Option("--format", help="How groups are printed.")
    ] = GroupFormat.TABLE,
) -> None:
    """Find exact and near duplicates. Nothing is changed."""
    from genius.data.report import printable
    from genius.engine import Engine
    from genius.errors import BadInput

    if exact and at_least is not None:
        raise BadInput("--exact compares contents, --at-least similarities: leave one of them out")
    with Engine.open(folder) as engine:
        groups = engine.duplicates(at_least) if at_least is not None or exact else engine.duplicates()
    fields = [
        {"ids": list(group.ids), "similarity": group.similarity, "exact": group.exact} for group in groups
    ]
    if form is GroupFormat.JSON:
        print(json.dumps(fields, indent=2))
    for group, plain in zip(groups, fields, strict=True):
        if form is GroupFormat.JSONL:
            print(json.dumps(plain))
        elif form is GroupFormat.TABLE:
            print("same content" if group.exact else f"similarity {group.similarity:.3f}")
            for id, path in zip(group.ids, group.paths, strict=True):
                print(f"  {printable(id)}" + (f"  {printable(path)}" if path is not None else ""))
    copies = sum(len(group.ids) - 1 for group in groups)
    found = f"{counted(len(groups), 'group')}, {counted(copies, 'copy', 'copies')}"
    say(f"{found}; `genius remove ID` takes an item out of the index")
