"""How sure an average over queries is: percentile bootstrap, drawing queries with replacement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadInput

Floats = NDArray[np.float64]
Interval = tuple[float, float]

SAMPLES = 2000
LEVEL = 0.95


def interval(values: Floats, samples: int = SAMPLES, level: float = LEVEL, seed: int = 0) -> Interval:
    """Bootstrap interval of the mean of `values`, one per query.

    For the difference of two systems on the same queries pass the differences: the draw is then paired.
    """
    return interval_of_mean([values], samples, level, seed)


def interval_of_mean(
    rows: Sequence[Floats], samples: int = SAMPLES, level: float = LEVEL, seed: int = 0
) -> Interval:
    """Bootstrap interval of the plain mean over rows of their means; a query is drawn inside its row."""
    if not rows or any(len(row) == 0 for row in rows):
        raise BadInput("no queries to draw from: an interval needs at least one in each row")
    generator = np.random.default_rng(seed)
    means = np.mean([_means(row, samples, generator) for row in rows], axis=0)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _means(values: Floats, samples: int, generator: np.random.Generator) -> Floats:
    """Means of `samples` draws of len(values) queries, (samples,).

    A draw with replacement is a multinomial draw of how often each distinct value comes up; metrics have few
    distinct values, so this costs far less than drawing every query.
    """
    distinct, counts = np.unique(values, return_counts=True)
    drawn = generator.multinomial(len(values), counts / len(values), size=samples)  # (samples, distinct)
    return np.asarray(drawn @ distinct / len(values), dtype=np.float64)
