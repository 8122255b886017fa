"""Many queries from a file: a text on each line, or a JSON object with the parts of a query."""

from __future__ import annotations

import sys
from pathlib import Path

from genius.data.lines import json_object
from genius.data.validate import unit_vector
from genius.errors import BadInput
from genius.types import Query

FIELDS = ("id", "text", "image", "want", "instruction")


def read_query_file(file: Path) -> list[Query]:
    """The queries of a file (`-`: stdin); one without an id is called by the number of its line, from 1."""
    name = "stdin" if str(file) == "-" else str(file)
    try:
        lines = (sys.stdin.read() if name == "stdin" else file.read_text(encoding="utf-8-sig")).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {name}: {getattr(error, 'strerror', error)}") from None
    queries = [
        _query(line.strip(), number, f"{name}:{number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not queries:
        raise BadInput(f"{name} has no queries: write one on each line")
    return queries


def _query(line: str, number: int, place: str) -> Query:
    if not line.startswith("{"):
        return Query(text=line, id=str(number))
    try:
        fields = json_object(line.encode())
    except ValueError as error:
        raise BadInput(f"{place}: {error}") from None
    vector = fields.pop("vector", None)
    unknown = sorted(fields.keys() - set(FIELDS))
    if unknown or not all(isinstance(value, str) for value in fields.values()):
        raise BadInput(
            f"{place}: a query has the fields {', '.join(FIELDS)}, all of them strings, or `vector`, a list "
            "of numbers, instead of text and image"
        )
    if vector is not None:
        try:
            unit_vector(vector)
        except BadInput as error:
            raise BadInput(f"{place}: {error}") from None
    image = Path(fields["image"]) if "image" in fields else None
    query = Query(
        text=fields.get("text"),
        image=image,
        instruction=fields.get("instruction"),
        id=fields.get("id", str(number)),
        vector=vector,
    )
    return query.wanting(fields.get("want"))
