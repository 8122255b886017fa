"""The options of a search, with their defaults: the one place where these are written down.

`genius.search.plan` resolves them into what will run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from genius.errors import BadInput

Method = Literal["generate", "lookup", "both"]
Rerank = Literal["none", "codes", "vectors"]


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How to search. The weights are values found on validation data."""

    method: Method = "lookup"
    rerank: Rerank = "none"
    beam: int = 50  # prefixes kept at each level; never fewer than k
    k: int = 10
    stop: int | None = None  # levels to search; None: until few items are left
    leaves: int | None = None  # how many are few; None: 32 per beam, 1 where the decoder has to score them
    reranked: int | None = None  # candidates to re-rank; None: 4 per beam by vectors, 2 by codes
    weight: float = 1.0  # of the lookup score beside the decoder's, for `both`
    fusion: float = 0.0  # of the search score beside the similarity, when re-ranking
    fixed: bool | None = None  # use programs of fixed shape where possible; None: on a GPU

    @property
    def by_similarity(self) -> bool:
        """Whether items are ranked by their cosine with the query alone."""
        return self.rerank != "none" and self.fusion == 0.0

    def __post_init__(self) -> None:
        if self.method not in ("generate", "lookup", "both"):
            raise BadInput(f"unknown search {self.method!r}: use generate, lookup or both")
        if self.rerank not in ("none", "codes", "vectors"):
            raise BadInput(f"unknown re-ranking {self.rerank!r}: use none, codes or vectors")
        for name, least in (("beam", 1), ("k", 1), ("stop", 0), ("leaves", 0), ("reranked", 0)):
            value = getattr(self, name)
            if value is None and name not in ("beam", "k"):
                continue
            if not isinstance(value, (int, np.integer)) or value < least:
                raise BadInput(f"{name} {value!r}: must be a whole number, at least {least}")
        for name in ("weight", "fusion"):
            value = getattr(self, name)
            if not isinstance(value, (int, float, np.number)) or not math.isfinite(value):
                raise BadInput(f"{name} {value!r}: must be a finite number")
