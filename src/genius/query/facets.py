"""Facets: how often each value of a field occurs among some items."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from genius.errors import BadInput
from genius.filter.grammar import parse_field
from genius.filter.values import ItemFields
from genius.store.records import Record
from genius.types import FacetCount, Facets

FACETED = 200  # answers of a search whose fields are counted
MAX_FACETS = 16  # fields in one request
MAX_VALUES = 100  # of a field, the most frequent ones


def count_facets(fields: Sequence[str], records: Iterable[Record]) -> Facets:
    """For each field its most frequent values; an item counts for every element of a list, once."""
    if isinstance(fields, str) or len(fields) > MAX_FACETS:
        raise BadInput(f"facets are a list of at most {MAX_FACETS} fields")
    names = {field: parse_field(field) for field in fields}
    counts: dict[str, Counter[tuple[bool, Any]]] = {field: Counter() for field in names}
    for record in records if names else ():
        item = item_fields(record)
        for field, name in names.items():
            counts[field].update(_values(item.get(name)))
    return {field: _most_frequent(own) for field, own in counts.items()}


def item_fields(record: Record) -> ItemFields:
    """What filters and facets can ask of a stored item."""
    meta = json.loads(record.meta)
    return ItemFields(
        record.id,
        record.modality.value,
        record.text,
        record.path,
        record.source,
        record.stamp.mtime_ns,
        meta if isinstance(meta, dict) else {},
    )


def _values(value: Any) -> set[tuple[bool, Any]]:
    """The plain values that are counted, each with whether it is a truth value: True equals 1."""
    every = value if isinstance(value, list) else [value]
    return {(isinstance(one, bool), one) for one in every if isinstance(one, str | int | float)}


def _most_frequent(counts: Counter[tuple[bool, Any]]) -> list[FacetCount]:
    found = [FacetCount(value, count) for (_, value), count in counts.items()]
    return sorted(found, key=lambda one: (-one.count, str(one.value)))[:MAX_VALUES]
