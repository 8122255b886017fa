"""The pools of `kernel.py`: synthetic ones, the benchmark's photos, and a million items made from those.

A made item is a photo's vector moved at random along the differences to its nearest neighbours
(`genius.evaluate.scaled_pools`). How far is calibrated without labels: a quarter of the photos, filled up to
all of them with made items, must have the ten nearest items of the queries as near as all photos do. Queries
are photos that are neither in a pool nor behind a made item.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pools import SyntheticPool

from genius.encode.base import Parts
from genius.evaluate.embeddings import EncodedPool
from genius.evaluate.scaled_pools import SPREADS, ScaledPools
from genius.quantize.fit import FitOptions, fit_quantizer

Floats = NDArray[np.float32]
Modalities = NDArray[np.uint8]
DIM, K, QUERIES = 256, 10, 200
AT_ONCE = 16  # queries
KEPT = 4  # one of so many photos stays in the pools that are compared with all photos
FIT = FitOptions(by_modality=False)  # FAISS knows of no modalities, and queries want all


class Pool:
    """Vectors with codes, and queries with their nearest items; a folder keeps what takes long to make."""

    def __init__(
        self, name: str, z: Floats, make: Callable[[], tuple[Floats, Modalities]], folder: Path
    ) -> None:
        self.z, self.folder, self.file, kept = z, folder, folder / f"{name}.npy", folder / f"{name}.npz"
        if not kept.exists():
            x, modality = make()
            np.save(self.file, x)
            quantizer = fit_quantizer(torch.from_numpy(x), torch.from_numpy(modality).long(), FIT)
            codes = quantizer.codes_of(x, modality).astype(np.uint8)
            books = [book.numpy() for book in quantizer.residual.codebooks()]
            np.savez(
                kept, codes=codes, books=np.concatenate(books), sizes=quantizer.sizes, truth=nearest(x, z)
            )
        arrays = np.load(kept)
        self.about: dict[str, Any] = {}  # how its items were made
        self.x: Floats = np.load(self.file, mmap_mode="r")
        self.codes, self.truth = arrays["codes"], arrays["truth"]
        self.books = np.split(arrays["books"], np.cumsum(arrays["sizes"])[:-1])


def nearest(x: Floats, z: Floats) -> NDArray[np.int64]:
    """The rows of the K items nearest to each query, (queries, K)."""
    rows = []
    for start in range(0, len(z), AT_ONCE):
        for scores in z[start : start + AT_ONCE] @ x.T:
            best = np.argpartition(-scores, K)[: K + 1]
            rows.append(best[np.argsort(-scores[best], kind="stable")][:K])
    return np.asarray(rows)


def synthetic(items: int, folder: Path) -> Pool:
    """Items and queries of one distribution, of three modalities."""
    source = SyntheticPool(DIM)
    return Pool(f"synthetic-{items}", source.queries(QUERIES), partial(source.items, items), folder)


def photos(features: Path, folder: Path) -> Pool:
    """CLIP's vectors of the benchmark's photos but for the queries."""
    x, z = _photos(features)
    return Pool(f"photos-{len(x)}", z, lambda: (x, _one_modality(len(x))), folder)


def made_photos(features: Path, items: int, folder: Path) -> Pool:
    """The same photos, filled up to so many items with made ones; the same queries."""
    x, z = _photos(features)
    name = f"made-{items}"
    calibrated = folder / f"{name}-calibration.json"
    if not calibrated.exists():
        calibrated.write_text(json.dumps(calibration(x, z)))
    about = json.loads(calibrated.read_text())
    pool = Pool(name, z, lambda: (_filled(x, about["spread"], items), _one_modality(items)), folder)
    pool.about = {"calibration": about}
    return pool


def calibration(x: Floats, z: Floats) -> dict[str, Any]:
    """How far made items are moved, and how near the K nearest items are with that and other spreads."""
    real = _mean_cosine(x, z)
    filled = {spread: _mean_cosine(_filled(x, spread, len(x), len(x) // KEPT), z) for spread in SPREADS}
    best = min(filled, key=lambda spread: abs(filled[spread] - real))
    return {
        "photos": len(x),
        "spread": best,
        "all photos": real,
        "a quarter of them": _mean_cosine(_filled(x, best, len(x) // KEPT), z),
        "a quarter filled up, by spread": filled,
    }


def _photos(features: Path) -> tuple[Floats, Floats]:
    """Vectors of the photos that are items, and of those that are queries."""
    from safetensors.numpy import load_file

    table = load_file(features.with_suffix(".safetensors"))["image_embeds"].astype(np.float32)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    order = np.random.default_rng(0).permutation(len(table))
    return table[order[QUERIES:]], table[order[:QUERIES]]


def _filled(x: Floats, spread: float, items: int, real: int | None = None) -> Floats:
    """Some of the vectors, all or `real` of them, and made ones between those."""
    codes = np.zeros((len(x), 1), dtype=np.uint16)
    pool = EncodedPool(
        list(map(str, range(len(x)))), _one_modality(len(x)), x, codes, "photos", [], _no_parts
    )
    nobody = np.empty(0, dtype=np.int64)
    made = ScaledPools(pool, x, nobody, lambda z, _: codes[: len(z)], spread=spread, real=real)
    return np.asarray(made.at(items)[0].phi)


def _mean_cosine(x: Floats, z: Floats) -> float:
    near = np.take_along_axis(z @ x.T, nearest(x, z), axis=1)
    return round(float(near.mean()), 4)


def _one_modality(items: int) -> Modalities:
    return np.zeros(items, dtype=np.uint8)


def _no_parts(rows: NDArray[np.int64]) -> Parts:
    raise AssertionError("nothing here asks for images and texts apart")
