"""The default search options of an index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from genius.errors import BadInput
from genius.search.options import SearchOptions
from genius.search.plan import RERANKED_PER_BEAM

MANY_ITEMS, WIDER = 100_000, 4  # among more items so many times the beam (benchmarks/beams.py)
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


def widened(options: SearchOptions, items: int) -> SearchOptions:
    """The options with the default beam for so many items.

    In a larger collection the nearest items are spread over more prefixes. A lookup re-ranked by vectors
    finds them again with a wider beam. The number of re-ranked items can stay the same, as items that the
    codes rank lower are hardly ever near. Re-ranking by codes, up to a few million items, loses little
    through the beam and much more because the codes do not tell items apart.
    """
    if items <= MANY_ITEMS or options.method != "lookup" or options.rerank != "vectors":
        return options
    reranked = RERANKED_PER_BEAM["vectors"] * options.beam if options.reranked is None else options.reranked
    return replace(options, beam=WIDER * options.beam, reranked=reranked)


def describe_options(
    chosen: Mapping[str, Any], *, vectors: bool, items: int, codes: bool = True
) -> dict[str, Any]:
    """The same for `stats`: always with method, beam and re-ranking, and on which split they were chosen.

    An index without `codes` can only be searched exactly.
    """
    if not codes:
        return {"method": "exact", "because": "there are no codes yet: all embeddings are compared"}
    options = default_options(chosen, vectors=vectors)
    plain = widened(SearchOptions(**options), items)
    shown = options | {"method": plain.method, "beam": plain.beam, "rerank": plain.rerank}
    return shown | {"chosen_on": "val" if chosen else "nothing (untuned defaults)"}
