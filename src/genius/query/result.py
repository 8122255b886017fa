"""What a search returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from genius.errors import BadInput
from genius.types import Facets, Hit


class SearchResult(NamedTuple):
    """The hits of one query and what the search touched."""

    hits: list[Hit]
    beams: int  # prefixes of codes the search ended with
    leaves: int  # items under them
    generation: int  # of the arrays that answered
    changes: int  # number of the last committed change that was searched
    pool: int = 0  # items that could have been found: what the filter and `want` keep
    facets: Facets = {}  # noqa: RUF012 (never changed)
    cursor: str | None = None  # of the next page
    nearest: Sequence[Hit] = ()  # the best ones, where none is as sure as was asked for
    unknown_fields: Sequence[str] = ()  # of the filter, that no item has; a server looks if no item passes

    def at_least(self, confidence: float | None) -> SearchResult:
        """The hits with at least this confidence; if a first page has none, its hits become the `nearest`.

        Later pages may have more, where words affect the ranking but not the confidence.
        """
        if confidence is None:
            return self
        if not 0 <= confidence <= 1:
            raise BadInput(f"a confidence of at least {confidence:g}: it is from 0 to 1")
        if not self.hits:
            return self
        if self.hits[0].confidence is None:
            raise BadInput(
                "this model says nothing about confidence: calibrate it on labelled queries with "
                "`genius calibrate --model FOLDER --data DATA`, or leave the threshold out"
            )
        values = [hit.confidence or 0.0 for hit in self.hits]
        sure = [hit for hit, value in zip(self.hits, values, strict=True) if value >= confidence]
        ends = not sure or (len(sure) < len(self.hits) and values == sorted(values, reverse=True))
        nearest = self.hits if not sure and self.hits[0].rank == 1 else ()
        return self._replace(hits=sure, nearest=nearest, cursor=None if ends else self.cursor)
