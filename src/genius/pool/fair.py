"""One ranking out of several, one per modality.

Scores of different modalities cannot be compared: a text is nearer to every text than to any picture. So an
answer counts by how far it stands out among ordinary items of its own modality, for this very query:

    (similarity of the item - mean) / deviation of the similarities of a fixed sample of that modality

Small samples are drawn towards all modalities together, or the only text of a pool could never stand out.
Within a modality the order of its own ranking stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.types import Modality

Floats = NDArray[np.float32]
PRIOR = 16  # a sample of this many items weighs as much as all modalities together
FLOOR = 1e-3  # least deviation: items that are all alike do not stand out


class Background(NamedTuple):
    """Mean and deviation of what an ordinary item of a modality gets from a query."""

    mean: float
    deviation: float

    def stands_out(self, similar: Floats) -> Floats:
        """How far items of these similarities stand out; never rises along a ranking."""
        return np.minimum.accumulate((similar - np.float32(self.mean)) / np.float32(self.deviation))


def backgrounds(samples: Mapping[Modality, Floats]) -> dict[Modality, Background]:
    """The background of each modality, from the similarities of its sample with one query."""
    every = np.concatenate(list(samples.values())) if samples else np.zeros(0, np.float32)
    if not len(every):
        return {}
    overall, variance = float(every.mean()), float(every.var())
    found = {}
    for modality, sample in samples.items():
        share = len(sample) / (len(sample) + PRIOR)
        mean = share * float(sample.mean()) + (1 - share) * overall if len(sample) else overall
        own = float(np.square(sample - mean).mean()) if len(sample) else variance
        spread = share * own + (1 - share) * variance
        found[modality] = Background(mean, max(float(np.sqrt(spread)), FLOOR))
    return found


def merged(scores: Sequence[Floats], k: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Places of the `k` best over several rankings: which ranking, and which rank in it.

    Equal scores go to the higher rank first, then to the earlier ranking.
    """
    which = np.concatenate([np.full(len(part), number) for number, part in enumerate(scores)])
    rank = np.concatenate([np.arange(len(part)) for part in scores])
    order = np.lexsort((which, rank, -np.concatenate(scores)))[:k]
    return which[order], rank[order]
