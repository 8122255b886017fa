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

    def at_least(self, confidence: float | None) -> SearchResult:
        """The hits that are at least so sure; if none is, those there are become the `nearest`."""
        if confidence is None or not self.hits:
            return self
        if self.hits[0].confidence is None:
            raise BadInput(
                "this model says nothing about confidence: calibrate it on labelled queries with "
                "`genius calibrate --model FOLDER --data DATA`, or leave the threshold out"
            )
        sure = [hit for hit in self.hits if (hit.confidence or 0.0) >= confidence]
        cursor = self.cursor if len(sure) == len(self.hits) else None  # what follows is less sure
        return self._replace(hits=sure, nearest=() if sure else self.hits, cursor=cursor)
