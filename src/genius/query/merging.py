"""One ranking out of one per modality.

Each modality is searched with its own sub-query. A model trained on all modalities together has comparable
similarities; other models have a modality gap: to a text, every text is closer than any image. Therefore the
score of an item is its similarity standardized within its modality:

    (similarity - background) / deviation

The background of a modality is the mean similarity of a fixed sample of its items, shrunk towards the mean of
all modalities: of its difference it keeps the fraction that the variance between modalities has of the total
variance. A gap that is large compared with the spread within modalities is removed almost completely; a small
one is kept, as it may say which modality holds the answer. The order within a modality does not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.types import Modality

Floats = NDArray[np.float32]
PRIOR = 16  # items: the weight of the mean of all modalities in the mean of one
FLOOR = 1e-3  # smallest deviation, for items that are all alike


class Background(NamedTuple):
    """Mean similarity of a modality with its sub-query, and the standard deviation within modalities."""

    mean: float
    deviation: float

    def standardize(self, similar: Floats) -> Floats:
        """Scores of the items of a ranking with these similarities; they never rise along it."""
        return np.minimum.accumulate((similar - np.float32(self.mean)) / np.float32(self.deviation))


def backgrounds(samples: Mapping[Modality, Floats]) -> dict[Modality, Background]:
    """The background of each modality, from the similarities of its sample with its sub-query."""
    there = {modality: sample.astype(np.float64) for modality, sample in samples.items() if len(sample)}
    if not there:
        return {}
    every = np.concatenate(list(there.values()))
    overall = float(every.mean())
    # a small sample says little about its modality, so its mean is shrunk
    means = {m: (sample.sum() + PRIOR * overall) / (len(sample) + PRIOR) for m, sample in there.items()}
    between = float(np.var(list(means.values())))
    within = float(np.mean(np.concatenate([sample - means[m] for m, sample in there.items()]) ** 2))
    share = between / (between + within) if between > 0 else 0.0
    deviation = max(float(np.sqrt(within)), FLOOR)
    return {m: Background(float(overall + share * (means[m] - overall)), deviation) for m in there}


def merge_rankings(scores: Sequence[Floats], k: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The `k` best over several rankings: which ranking each is from, and its rank there.

    Equal scores go to the higher rank first, then to the earlier ranking.
    """
    which = np.concatenate([np.full(len(part), number) for number, part in enumerate(scores)])
    rank = np.concatenate([np.arange(len(part)) for part in scores])
    order = np.lexsort((which, rank, -np.concatenate(scores)))[:k]
    return which[order], rank[order]
