"""Whether the codes of an index still suit its items: their number and distortion at the last fit and now.

Uses NumPy only, so `stats` can report it without loading a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from genius.errors import ModelMismatch
from genius.fitting.folder import QUANTIZER
from genius.model_toml import read_model_toml
from genius.store.index import Index

FIRST_FIT = 1000  # items from which codes are worth having; with fewer, comparing all vectors is as fast
GROWTH = 4  # times as many items as at the last fit: more codes a level, or other ones, are worth it
DRIFT = 1.25  # times the distortion of the last fit,
LEAST_DRIFT = 0.005  # and by so much: small collections are coded nearly exactly
SAMPLE = 512  # items that the distortion is measured on


@dataclass(frozen=True, slots=True)
class FitState:
    """How well the codes suit the items."""

    number: int  # fits so far; 0: no codes, search is exact
    at: str  # time of the last fit
    items: int  # in the index at that time
    distortion: float  # at that time: 1 - cosine of embedding and its codes, mean
    distortion_now: float | None  # of the items that are in the index now; None where it has no vectors
    due: str | None  # why a fit is worth it
    encoder: str | None = None  # what embeds items and queries, where the codes are no trained model's

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as `stats` shows them."""
        return {
            "encoder": self.encoder,
            "fits": self.number,
            "fitted": self.at or None,
            "items_then": self.items,
            "distortion_then": self.distortion,
            "distortion_now": self.distortion_now,
            "worth_fitting": self.due,
        }


def fit_state(index: Index) -> FitState:
    """How well the codes of an index suit its items; codes that were trained count as never fitted."""
    fit = index.settings.get("fit") or {}
    number, items = int(fit.get("number", 0)), int(fit.get("items", 0))
    count = sum(index.truth.counts().values())
    distortion = float(fit.get("distortion", 0.0))
    codes = index.levels > 1
    now = _distortion(index) if codes and fit and index.dim and count else None
    return FitState(
        number,
        str(fit.get("at", "")),
        items,
        distortion,
        now,
        _due(count, codes, items, distortion, now),
        _encoder(index),
    )


def _encoder(index: Index) -> str | None:
    if not index.settings.get("fit"):
        return None
    try:
        table = read_model_toml(Path(index.model_source)).get("encoder", {})
    except ModelMismatch:  # damaged: `check` says so
        return None
    named = table.get("name") if table.get("name") == "vectors" else table.get("model") or table.get("source")
    return None if named is None else str(named)


def _due(count: int, codes: bool, items: int, distortion: float, now: float | None) -> str | None:
    if not codes:
        return f"{count} items and no codes yet" if count >= FIRST_FIT else None
    if items and count >= GROWTH * items:
        return f"{count} items, where the codes were fitted to {items}"
    if now is not None and count >= FIRST_FIT and now > max(DRIFT * distortion, distortion + LEAST_DRIFT):
        return f"the collection has moved: its codes are off by {now:.3f}, {distortion:.3f} at the last fit"
    return None


def _distortion(index: Index) -> float | None:
    """1 - cosine of stored vectors and their codes, mean over some items; None if codebooks are damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    assert index.dim is not None
    try:
        table = load_file(Path(index.model_source) / QUANTIZER)["residual.vectors"]
    except (OSError, SafetensorError, KeyError):
        return None
    sizes = index.settings["sizes"]
    some = index.truth.some_rows(SAMPLE)
    records = index.truth.records(some.tolist())
    vectors = index.truth.vectors(some, index.dim).astype(np.float32)
    codes = np.stack([records[row].codes for row in some.tolist()]).astype(np.int64)
    places = codes + np.cumsum([0, *sizes[:-1]])
    if len(table) > sum(sizes):  # each modality has codebooks of its own
        places[:, 1:] += codes[:, :1] * sum(sizes[1:])
    sums = table[places].sum(axis=1)
    lengths = np.linalg.norm(sums, axis=1) * np.linalg.norm(vectors, axis=1)
    return round(float(1 - ((sums * vectors).sum(axis=1) / np.maximum(lengths, 1e-12)).mean()), 6)
