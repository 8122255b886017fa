"""Array types of the search, and the selection of the k best that every NumPy path shares."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]


def top_k(scores: NDArray[Any], k: int, among: Ints | None = None) -> Ints:
    """Indices of the `k` largest scores, ascending; of equal scores the first ones win.

    `among` restricts the choice to these (ascending) indices. Selecting from all scores is slow, so most are
    discarded first: the scores are split into blocks, and the k-th largest of the blocks' maxima cannot
    exceed the k-th largest score.
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
    threshold = np.partition(values, len(values) - k)[len(values) - k] if k else np.inf
    above, equal = values > threshold, np.flatnonzero(values == threshold)
    above[equal[: k - np.count_nonzero(above)]] = True
    picked = picked[above]
    return picked if among is None else among[picked]


def ragged_ranges(start: Ints, count: Ints) -> Ints:
    """start[0], start[0] + 1, … (count[0] numbers), start[1], … as one array."""
    offset = np.cumsum(count)
    total = int(offset[-1]) if len(offset) else 0
    return np.repeat(start - offset + count, count) + np.arange(total)
