"""The default search options of an index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from genius.errors import BadInput
from genius.search.options import SearchOptions

_OPTIONS = frozenset(option.name for option in fields(SearchOptions))


def default_options(chosen: Mapping[str, Any], *, vectors: bool) -> dict[str, Any]:
    """Fields of `SearchOptions`: those `chosen` for the model on val; re-ranking by vectors if kept."""
    unknown = set(chosen) - _OPTIONS
    if unknown:
        raise BadInput(f"the model's search defaults have unknown fields: {', '.join(sorted(unknown))}")
    options = {"rerank": "vectors", **chosen}
    if not vectors and options["rerank"] == "vectors":
        options["rerank"] = "codes"
    return options


def describe_options(chosen: Mapping[str, Any], *, vectors: bool, codes: bool = True) -> dict[str, Any]:
    """The same for `stats`: always with method, beam and re-ranking, and on which split they were chosen.

    An index without `codes` has one way to search.
    """
    if not codes:
        return {"method": "exact", "because": "there are no codes yet: all embeddings are compared"}
    options = default_options(chosen, vectors=vectors)
    plain = SearchOptions(**options)
    shown = {"method": plain.method, "beam": plain.beam, "rerank": plain.rerank} | options
    return shown | {"chosen_on": "val" if chosen else "nothing: plain values"}
