"""Confidence of an answer: how often answers like it are right on labelled data, from 0 to 1.

    confidence = sigmoid(bias + similarity * s + gap * (s - mean) / deviation)

s is the similarity of query and item; mean and deviation are those of the query's similarities with a sample
of the items of that modality. So a query that is a little like everything, such as one that means nothing,
gets little confidence. The weights are fitted for each kind of query and item (`genius calibrate`), and are
never negative for s: a more similar item is never less sure. Labelled data seldom has the very picture that
is asked with: where an image asks for images, the confidence is at least the share of the way from NEAR to 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.errors import ModelMismatch
from genius.types import Modality

Floats = NDArray[np.float32]
Kind = tuple[Modality, Modality]  # of the query, of the item
POOLED = "pooled"  # weights for kinds without labelled data, and for items of several modalities
SAMPLE = 256  # items of a modality whose similarities are the background of a query
NEAR = 0.96  # cosine of two copies of a picture: benchmarks/duplicates.py
SURE = 0.999  # confidence of the very picture that was asked with
FLOOR = 1e-3  # smallest deviation, for items that are all alike


class ConfidenceWeights(NamedTuple):
    """The weights of one kind of query and item."""

    bias: float
    similarity: float
    gap: float


class Calibration(NamedTuple):
    """Weights by kind, and those for all others."""

    kinds: Mapping[Kind, ConfidenceWeights]
    pooled: ConfidenceWeights

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Calibration | None:
        """The calibration in a table of model.toml; None if there is none. Raises ModelMismatch."""
        if not table:
            return None
        try:
            weights = {name: ConfidenceWeights(*map(float, values)) for name, values in table.items()}
            pooled = weights.pop(POOLED)
            kinds = {tuple(map(Modality, name.split("_to_"))): own for name, own in weights.items()}
            return cls({(have, want): own for (have, want), own in kinds.items()}, pooled)
        except (TypeError, ValueError, KeyError) as error:
            reason = f"the model's table of confidence cannot be read ({error})"
            raise ModelMismatch(f"{reason}: run `genius calibrate` again") from None

    def table(self) -> dict[str, list[float]]:
        """What `from_table` reads."""
        kinds = {f"{have}_to_{want}": own for (have, want), own in self.kinds.items()}
        rows = {**kinds, POOLED: self.pooled}
        return {name: [round(value, 4) for value in own] for name, own in rows.items()}

    def logits(self, have: Modality | None, want: Modality | None, similar: Floats, sample: Floats) -> Floats:
        """Log-odds that items with these similarities are right; `sample` has those of the background.

        `have` and `want` are the modalities of query and items; None is unknown, or several.
        """
        known = have is not None and want is not None
        weights = self.kinds.get((have, want), self.pooled) if known else self.pooled  # type: ignore[arg-type]
        gaps = background_gaps(similar, sample)
        logits = weights.bias + weights.similarity * similar + weights.gap * gaps
        if (have, want) == (Modality.IMAGE, Modality.IMAGE):
            logits = np.maximum(logits, copy_logits(similar))
        return np.asarray(logits, dtype=np.float32)


def copy_logits(similar: Floats) -> Floats:
    """Log-odds that pictures with these similarities are copies of the one that was asked with."""
    chance = np.clip((similar - np.float32(NEAR)) / (1 - NEAR), 0, SURE)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(chance / (1 - chance)), dtype=np.float32)


def background_gaps(similar: Floats, sample: Floats) -> Floats:
    """How far similarities are above the background of a query, in its standard deviations."""
    if not len(sample):
        return np.zeros_like(similar)
    mean, deviation = mean_and_deviation(sample)
    return np.asarray((similar - np.float32(mean)) / np.float32(max(deviation, FLOOR)))


def mean_and_deviation(sample: Floats) -> tuple[float, float]:
    """Mean and standard deviation of some numbers; np.std takes four times as long for a few."""
    mean = np.add.reduce(sample) / len(sample)
    centred = sample - mean
    return float(mean), math.sqrt(float(np.vecdot(centred, centred)) / len(sample))


def sigmoid(logits: NDArray[Any]) -> NDArray[np.float64]:
    """1 / (1 + exp(-x)), without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * np.asarray(logits, dtype=np.float64))))
