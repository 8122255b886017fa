"""Candidates: items a search has found in one trie, as positions with scores.

One rule breaks ties everywhere: of equal scores the lower codes win (level by level), then the item that was
added to the trie first. Positions ascend in exactly that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from genius.search.arrays import Floats, Ints, top_k


@dataclass(frozen=True, slots=True)
class Candidates:
    """Items of one trie found for one query."""

    positions: Ints  # (n,), ascending
    scores: Floats  # (n,)
    beams: int  # prefixes under which they were found
    leaves: int = -1  # items under those prefixes, of which these are the best; -1: all of them are here

    def __post_init__(self) -> None:
        if self.leaves < 0:
            object.__setattr__(self, "leaves", len(self.positions))

    def __len__(self) -> int:
        return len(self.positions)

    @classmethod
    def none(cls) -> Candidates:
        """No item."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.float32), 0)

    @classmethod
    def join(cls, parts: Sequence[Candidates]) -> Candidates:
        """Those of several searches, none of which found an item of another."""
        if not parts:
            return cls.none()
        positions = np.concatenate([part.positions for part in parts])
        scores, order = np.concatenate([part.scores for part in parts]), np.argsort(positions)
        beams, leaves = sum(part.beams for part in parts), sum(part.leaves for part in parts)
        return cls(positions[order], scores[order], beams, leaves)

    def best(self, k: int) -> Candidates:
        """The `k` best, positions still ascending."""
        kept = top_k(self.scores, k)
        return Candidates(self.positions[kept], self.scores[kept], self.beams, self.leaves)

    def with_scores(self, scores: Floats) -> Candidates:
        """The same items with other scores."""
        return Candidates(self.positions, scores, self.beams, self.leaves)
