"""How well the confidence of hits says how often they are right, and how it treats queries without an answer.

    python benchmarks/confidence.py --data BENCH             # benchmarks/results/confidence.json

Confidence is fitted on half of the val queries and tested on the other half, both ways. Per kind of query:
mean log loss of the first ten answers beside that of their mean (no information), and a reliability table:
of the answers with a confidence between 0.2 and 0.4, how many are right. The same queries are then asked in a
pool without their right items, and words that mean nothing in the whole pool: how sure is the first answer?
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _harness import run
from numpy.typing import NDArray

from genius.confidence import SAMPLE, Calibration, sigmoid
from genius.data.base import open_dataset
from genius.data.instructions import engine_instruction
from genius.evaluate.cache import read_items
from genius.evaluate.calibration import Observations, fit_calibration, observe
from genius.evaluate.embeddings import Embedder
from genius.model import Model
from genius.types import Modality

EDGES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
THRESHOLD = 0.3
NONSENSE = ("asdfghjkl", "qwertz uiop", "xkcd 9f8a7", "lorem ipsum dolor", "zzzz", "foo bar baz", "0815 4711")


def chances(calibration: Calibration, seen: Observations) -> NDArray[np.float64]:
    """The confidence of each observed answer."""
    weights = calibration.kinds.get(seen.kind, calibration.pooled)
    return sigmoid(weights.bias + weights.similarity * seen.similar + weights.gap * seen.gap)


def cross_fitted(observed: Sequence[Observations]) -> dict[str, tuple[Observations, NDArray[np.float64]]]:
    """For each kind its observations, with confidences fitted on the other half of the queries."""
    chance = [np.zeros(len(one.right)) for one in observed]
    for half in (0, 1):
        fitted = fit_calibration([one.take(one.query % 2 != half) for one in observed])
        for one, own in zip(observed, chance, strict=True):
            tested = one.query % 2 == half
            own[tested] = chances(fitted, one.take(tested))
    return {f"{one.kind[0]} to {one.kind[1]}": (one, own) for one, own in zip(observed, chance, strict=True)}


def log_loss(right: NDArray[np.bool_], chance: NDArray[np.float64]) -> float:
    clipped = np.clip(chance, 1e-6, 1 - 1e-6)
    return float(-np.mean(np.where(right, np.log(clipped), np.log(1 - clipped))))


def reliability(right: NDArray[np.bool_], chance: NDArray[np.float64]) -> dict[str, Any]:
    """By range of confidence: answers, mean confidence, share that is right; and the mean difference."""
    place = np.clip(np.searchsorted(EDGES, chance, "right") - 1, 0, len(EDGES) - 2)
    table, error = {}, 0.0
    for number, (low, high) in enumerate(itertools.pairwise(EDGES)):
        own = place == number
        if own.any():
            mean, share = float(chance[own].mean()), float(right[own].mean())
            error += abs(mean - share) * own.mean()
            table[f"{low} to {high}"] = {
                "answers": int(own.sum()), "confidence": round(mean, 4), "right": round(share, 4)
            }  # fmt: skip
    return {"ranges": table, "mean difference": round(float(error), 4)}


def nonsense(model: Model, embedder: Embedder, pool: Any) -> dict[str, float]:
    """The confidence of the first answer to words that mean nothing, the highest over the modalities."""
    found: dict[str, float] = {}
    for place, want in enumerate(Modality):
        items = pool.phi[pool.modality == place]
        spread = np.linspace(0, len(items) - 1, min(SAMPLE, len(items))).astype(np.int64)
        sentence = engine_instruction(Modality.TEXT, want)
        several = [None] * len(NONSENSE), list(NONSENSE), [sentence] * len(NONSENSE)
        for words, phi in zip(NONSENSE, model.phi(model.embed_queries(*several)), strict=True):
            similar = items @ phi
            logits = model.calibrations["vectors"].logits(
                Modality.TEXT, want, similar.max(keepdims=True), similar[spread]
            )
            found[words] = max(found.get(words, 0.0), round(float(sigmoid(logits)[0]), 4))
    return found


def figures(observed: Sequence[Observations]) -> dict[str, Any]:
    kinds = cross_fitted(observed)
    right = np.concatenate([one.right for one, _ in kinds.values()])
    chance = np.concatenate([own for _, own in kinds.values()])
    by_kind = {}
    for name, (one, own) in kinds.items():
        best = one.rank == 0
        wrong = np.concatenate([np.sort(own[(one.query == q) & ~one.right])[-1:] for q in set(one.query)])
        by_kind[name] = {
            "queries": int(best.sum()),
            "log loss": round(log_loss(one.right, own), 4),
            "log loss of the mean": round(log_loss(one.right, np.full(len(own), one.right.mean())), 4),
            "first answer is right": round(float(one.right[best].mean()), 4),
            "first answer's confidence": round(float(own[best].mean()), 4),
            f"first answer at least {THRESHOLD}": round(float((own[best] >= THRESHOLD).mean()), 4),
            f"the same without right items in the pool, {THRESHOLD}": round(
                float((wrong >= THRESHOLD).mean()), 4
            ),
        }
    return {"kinds": by_kind, "all": reliability(right, chance)}


def main(data: Path, model: str = "mini", cache: Path = Path("runs/any-cache")) -> dict[str, Any]:
    dataset = open_dataset("mbeir", data)
    loaded = Model.load(model)
    embedder = Embedder(loaded, cache)
    observed = observe(dataset, loaded, embedder, "val")
    pool = embedder.pool(read_items(dataset.pool("val"), fuses=embedder.fuses))
    return {
        "model": model,
        "split": "val",
        **{name: figures(several) for name, several in observed.items()},
        "nonsense": nonsense(loaded, embedder, pool) if "vectors" in loaded.calibrations else {},
    }


if __name__ == "__main__":
    run(main)
