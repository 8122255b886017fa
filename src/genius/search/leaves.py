"""What a search finds: items as positions in a trie with their scores, and how the best are picked.

Everywhere the same rule breaks ties: of equal scores the lower codes win (level by level), then the item that
was given to the trie first. Positions rise in just that order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Leaves:
    """Items of one trie found for one query."""

    positions: Ints  # (n,), rising
    scores: Floats  # (n,)
    beams: int  # prefixes under which they were found
    touched: int = -1  # items under those, from which these are the best; -1: all of them

    def __post_init__(self) -> None:
        if self.touched < 0:
            object.__setattr__(self, "touched", len(self.positions))

    def __len__(self) -> int:
        return len(self.positions)

    @classmethod
    def none(cls) -> Leaves:
        """No item."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.float32), 0)

    def best(self, k: int) -> Leaves:
        """The `k` best, positions still rising."""
        kept = top(self.scores, k)
        return Leaves(self.positions[kept], self.scores[kept], self.beams, self.touched)

    def rescored(self, scores: Floats) -> Leaves:
        """The same items with other scores."""
        return Leaves(self.positions, scores, self.beams, self.touched)


def top(scores: Floats, k: int, among: Ints | None = None) -> Ints:
    """Indices of the `k` largest scores, rising; of equal scores the first ones win.

    A selection over all scores is slow, so most are discarded first: the scores are dealt into blocks, and
    the k-th largest maximum of a block cannot exceed the k-th largest score.
    """
    values = scores if among is None else scores[among]
    if len(values) <= k:
        return np.arange(len(values)) if among is None else among
    picked = np.arange(len(values))
    blocks = 4 * k
    if len(values) > 4 * blocks > 0:
        maxima = values[: len(values) // blocks * blocks].reshape(-1, blocks).max(0)
        picked = np.flatnonzero(values >= np.partition(maxima, blocks - k)[blocks - k])
        values = values[picked]
    bar = np.partition(values, len(values) - k)[len(values) - k] if k else np.inf
    above, equal = values > bar, np.flatnonzero(values == bar)
    above[equal[: k - np.count_nonzero(above)]] = True
    picked = picked[above]
    return picked if among is None else among[picked]
