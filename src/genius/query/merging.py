"""One ranking out of several, one per modality.

Each modality is asked by a question of its own. A model that was trained on all of them together gives
similarities that can be compared as they are; one that was not has a gap: to a text, every text is nearer
than any picture. So an answer counts by how far it stands out from the background of its modality,

    (similarity of the item - background) / deviation

and the background is the mean similarity of a fixed sample of that modality, drawn towards the mean of all:
it keeps only the share of its difference that the variance between the modalities has in all of the variance.
A gap that is large beside what items of one modality differ by is taken off almost whole; a small one is left
alone, as it may well say where the answer lies. Within a modality the order of its own ranking stays.
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
    """What an sample item of a modality gets from its question, and by how much items of one differ."""

    mean: float
    deviation: float

    def standardize(self, similar: Floats) -> Floats:
        """How far items of these similarities stand out; never rises along a ranking."""
        return np.minimum.accumulate((similar - np.float32(self.mean)) / np.float32(self.deviation))


def backgrounds(samples: Mapping[Modality, Floats]) -> dict[Modality, Background]:
    """The background of each modality, from the similarities of its sample with its question."""
    there = {modality: sample.astype(np.float64) for modality, sample in samples.items() if len(sample)}
    if not there:
        return {}
    every = np.concatenate(list(there.values()))
    overall = float(every.mean())
    # a small sample says little about its modality
    means = {m: (sample.sum() + PRIOR * overall) / (len(sample) + PRIOR) for m, sample in there.items()}
    between = float(np.var(list(means.values())))
    within = float(np.mean(np.concatenate([sample - means[m] for m, sample in there.items()]) ** 2))
    share = between / (between + within) if between > 0 else 0.0
    deviation = max(float(np.sqrt(within)), FLOOR)
    return {m: Background(float(overall + share * (means[m] - overall)), deviation) for m in there}


def merge_rankings(scores: Sequence[Floats], k: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Places of the `k` best over several rankings: which ranking, and which rank in it.

    Equal scores go to the higher rank first, then to the earlier ranking.
    """
    which = np.concatenate([np.full(len(part), number) for number, part in enumerate(scores)])
    rank = np.concatenate([np.arange(len(part)) for part in scores])
    order = np.lexsort((which, rank, -np.concatenate(scores)))[:k]
    return which[order], rank[order]
