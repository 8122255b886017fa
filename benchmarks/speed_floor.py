"""The least a search must do, counted: multiplications, bytes and launches, at the rates of the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from genius.decode.shape import DecoderShape

LEAVES = 1.28  # a beam, where the decoder scores them


@dataclass(frozen=True, slots=True)
class Rates:
    """What the machine can do, from the phase `ceilings` of speed.py."""

    copy: float  # bytes a second that a copy moves, read and written
    products: float  # operations a second of a large bf16 product
    launch: float  # seconds from one small kernel of a graph to the next


def floor(
    rates: Rates, batch: int, macs: float, weights: float, logits: float, kernels: int, slower: float = 1.0
) -> dict[str, Any]:
    """One batch: multiplications per query, bytes of weights, bytes read and written, launches.

    Products are `slower` than the rate of bf16.
    """
    arithmetic, memory = 2 * macs * batch * slower / rates.products, (weights + logits) / rates.copy
    least = max(arithmetic, memory, kernels * rates.launch)
    return {
        "gigamacs a query": macs / 1e9,
        "megabytes of weights": weights / 1e6,
        "megabytes of logits a batch": logits / 1e6,
        "arithmetic, ms": 1e3 * arithmetic,
        "memory, ms": 1e3 * memory,
        "launches": kernels,
        "launches, ms": 1e3 * kernels * rates.launch,
        "queries a second at most": batch / least,
    }


def decoder_floor(
    rates: Rates, shape: DecoderShape, beam: int, stop: int, batch: int, full: bool
) -> dict[str, Any]:
    """One batch of decoder searches: `full` scores the leaves by the decoder, else they are looked up."""
    layer = shape.width * (4 * shape.inner + 2 * shape.inner + 2 * shape.feed_forward)
    prefix = shape.prefix * shape.width * (shape.dim + shape.layers * 2 * shape.inner)
    steps = beam * (stop - 2)
    rest = int(LEAVES * beam) * (shape.levels - stop) if full else 0
    rows = 2 * shape.sizes[0] + steps + rest  # vectors that pass the layers
    head = (shape.sizes[0] + steps + rest) * shape.width * max(shape.sizes)
    embeddings = sum(shape.sizes[: shape.levels if full else stop]) * shape.width
    layers = shape.layers * (layer + shape.width * 2 * shape.inner)
    weights = 2 * (layers + shape.dim * shape.prefix * shape.width + embeddings)
    logits = 2 * 4 * (steps + rest) * max(shape.sizes) * batch  # written once, read once
    kernels = (3 if full else 2) * (16 * shape.layers + 4) + 120
    return floor(rates, batch, rows * shape.layers * layer + prefix + head, weights, logits, kernels)
