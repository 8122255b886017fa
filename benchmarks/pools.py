"""Synthetic pools for the benchmarks: vectors with clusters and a low inner dimension, quantized for real.

Vectors are points of a skewed mixture in 24 dimensions, bent into `dim` dimensions and L2-normalised; each of
the three modalities has its own offset. Codes come from residual k-means on a sample, so prefixes are as
unevenly filled as those of real collections.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius.decode.init import initialise
from genius.decode.model import Decoder
from genius.decode.shape import DecoderShape
from genius.quantize.codebooks import init_codebooks
from genius.quantize.model import Quantizer

Floats = NDArray[np.float32]
Codes = NDArray[Any]
CHUNK = 100_000
DRAWN = 1 << 22  # codes drawn at once
LEVELS, CODES = 9, 256


class SyntheticPool:
    """An endless, reproducible supply of items and queries of one distribution."""

    def __init__(self, dim: int, seed: int = 0, clusters: int = 3000, inner: int = 24) -> None:
        rng = np.random.default_rng(seed)
        self.seed, self.inner = seed, inner
        self.centres = rng.normal(size=(clusters, inner)).astype(np.float32)
        weight = 1.0 / (np.arange(clusters) + 10.0)
        self.weight = weight / weight.sum()
        self.bend = rng.normal(size=(inner, 128)).astype(np.float32) / np.float32(inner**0.5)
        self.lift = rng.normal(size=(128, dim)).astype(np.float32) / np.float32(128**0.5)
        self.offset = rng.normal(size=(3, dim)).astype(np.float32) * np.float32(0.3)

    def chunks(self, count: int) -> Iterator[tuple[Floats, NDArray[np.uint8]]]:
        """`count` items as (vectors, modalities), CHUNK at a time; the first n are the same for any count."""
        for start in range(0, count, CHUNK):
            rng = np.random.default_rng((self.seed, 1, start))
            x, modality = self._draw(rng, CHUNK)
            yield x[: count - start], modality[: count - start]

    def items(self, count: int) -> tuple[Floats, NDArray[np.uint8]]:
        """`count` items at once."""
        chunks = list(self.chunks(count))
        return np.concatenate([x for x, _ in chunks]), np.concatenate([m for _, m in chunks])

    def queries(self, count: int) -> Floats:
        """Queries drawn as the items are, so each has its own neighbours among them."""
        return self._draw(np.random.default_rng((self.seed, 2)), count)[0]

    def _draw(self, rng: np.random.Generator, count: int) -> tuple[Floats, NDArray[np.uint8]]:
        cluster = rng.choice(len(self.centres), count, p=self.weight)
        modality = rng.choice(3, count, p=[0.4, 0.35, 0.25]).astype(np.uint8)
        latent = self.centres[cluster] + 0.5 * rng.normal(size=(count, self.inner)).astype(np.float32)
        x = np.tanh(latent @ self.bend) @ self.lift + self.offset[modality]
        return x / np.linalg.norm(x, axis=1, keepdims=True), modality


def skewed_codes(items: int, sizes: Sequence[int]) -> NDArray[np.uint16]:
    """Random codes with a skew; a pool is the beginning of every larger one."""
    starts = range(0, items, CHUNK)
    return np.concatenate([skewed_chunk(start, sizes)[: items - start] for start in starts])


def skewed_chunk(start: int, sizes: Sequence[int]) -> NDArray[np.uint16]:
    """The CHUNK codes from item `start` on."""
    rng = np.random.default_rng((7, start))
    chunk = rng.random((CHUNK, len(sizes)), dtype=np.float32) ** 1.5 * np.array(sizes, dtype=np.float32)
    return np.asarray(chunk.astype(np.uint16))


class QuantizedPool:
    """A synthetic pool with codebooks from residual k-means, quantized as far as it is asked for."""

    def __init__(self, dim: int, tiny: bool, cache: Path | None, levels: int = LEVELS) -> None:
        self.source, self._cache = SyntheticPool(dim), cache
        self.sizes = [3, *[CODES] * (levels - 1)]
        self._quantizer = Quantizer(dim, self.sizes, fusion="sum").eval()
        x, modality = map(torch.from_numpy, self.source.items(3000 if tiny else 50_000))
        generator = torch.Generator().manual_seed(0)
        init_codebooks(self._quantizer.residual, x, modality.long(), generator)
        self.codebooks = [book.numpy() for book in self._quantizer.residual.codebooks()]

    def codes(self, items: int) -> Codes:
        """Codes of the first items; quantizing a million takes half a minute."""
        file = None if self._cache is None else self._cache / f"codes-{items}.npy"
        if file is not None and file.exists():
            return np.asarray(np.load(file))
        chunks = [self._quantizer.codes_of(x, modality) for x, modality in self.source.chunks(items)]
        codes = np.concatenate(chunks).astype(np.uint8)
        if file is not None:
            np.save(file, codes)
        return codes


def multiply_codes(codes: Codes, items: int, seed: int = 0) -> Codes:
    """So many synthetic codes with the prefixes of `codes`: levels 0-2, 3-5, … of several items drawn."""
    out = np.empty((items, codes.shape[1]), dtype=np.uint8)
    parts = {
        first: np.ascontiguousarray(codes[:, first : first + 3]) for first in range(0, codes.shape[1], 3)
    }

    def fill(start: int) -> None:
        rng, rows = np.random.default_rng((seed, start)), out[start : start + DRAWN]
        for first, part in parts.items():
            drawn = rng.integers(0, len(codes), len(rows), dtype=np.int32)
            rows[:, first : first + 3] = part.take(drawn, axis=0)

    with ThreadPoolExecutor() as threads:
        list(threads.map(fill, range(0, items, DRAWN)))
    return out


def random_decoder(preset: str, dim: int, sizes: Sequence[int], **shape: Any) -> Decoder:
    """A decoder with random weights: its speed does not depend on them."""
    decoder = Decoder(DecoderShape.preset(preset, dim, tuple(sizes), **shape)).eval()
    initialise(decoder, torch.Generator().manual_seed(0))
    return decoder


def recall_at(k: int, found: Sequence[Any], truth: Sequence[Any]) -> float:
    """The share of the k nearest that are among the first k found."""
    shares = [len(set(a[:k].tolist()) & set(b[:k].tolist())) / k for a, b in zip(found, truth, strict=True)]
    return round(float(np.mean(shares)), 4)
