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


def floor(rates: Rates, shape: DecoderShape, beam: int, stop: int, batch: int, full: bool) -> dict[str, Any]:
    """One batch of decoder searches: `full` scores the leaves by the decoder, else they are looked up."""
    layer = shape.width * (4 * shape.inner + 2 * shape.inner + 2 * shape.feed_forward)
    prefix = shape.prefix * shape.width * (shape.dim + shape.layers * 2 * shape.inner)
    steps = beam * (stop - 2)
    rest = int(LEAVES * beam) * (shape.levels - stop) if full else 0
    head = shape.width * max(shape.sizes)
    rows = 2 * shape.sizes[0] + steps + rest  # vectors that pass the layers
    macs = rows * shape.layers * layer + prefix + (shape.sizes[0] + steps + rest) * head
    layers = shape.layers * (layer + shape.width * 2 * shape.inner)
    weights = 2 * (
        layers
        + shape.dim * shape.prefix * shape.width
        + sum(shape.sizes[: shape.levels if full else stop]) * shape.width
    )
    logits = 2 * 4 * (steps + rest) * max(shape.sizes) * batch  # written once, read once
    passes = 3 if full else 2
    kernels = passes * (16 * shape.layers + 4) + 120
    arithmetic, memory = 2 * macs * batch / rates.products, (weights + logits) / rates.copy
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


def lookup_floor(
    rates: Rates, items_a_beam: float, beam: int, codes: int, dim: int, batch: int
) -> dict[str, Any]:
    """One batch of lookups: tables, the cells that are looked at, leaves with their records."""
    leaves = items_a_beam * beam
    macs = codes * dim
    memory = batch * (4 * codes + 16 * leaves) + 4 * codes * dim
    arithmetic = 2 * macs * batch / (rates.products / 16)  # float32
    kernels = 130
    least = max(arithmetic, memory / rates.copy, kernels * rates.launch)
    return {
        "gigamacs a query": macs / 1e9,
        "megabytes of weights": 4 * codes * dim / 1e6,
        "megabytes of logits a batch": 0.0,
        "arithmetic, ms": 1e3 * arithmetic,
        "memory, ms": 1e3 * memory / rates.copy,
        "launches": kernels,
        "launches, ms": 1e3 * kernels * rates.launch,
        "queries a second at most": batch / least,
    }


def floors(rates: Rates) -> dict[str, dict[str, Any]]:
    """The searches of docs/speed.md: T5-small, 9 levels of 4096, beam 50; lookup, 256 codes, beam 200."""
    shape = DecoderShape.preset("t5-small", 768, (3, *[4096] * 8))
    every: dict[str, dict[str, Any]] = {}
    for batch in (1, 256):
        for full in (False, True):
            name = f"{'full depth' if full else 'early stop'}, batch {batch}"
            every[name] = floor(rates, shape, 50, 3, batch, full)
    every["lookup, batch 256"] = lookup_floor(rates, 8, 200, 2051, 256, 256)
    return every
