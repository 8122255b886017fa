"""The least a search must do, counted: multiplications and bytes, and their time at the rates of an H200."""

from __future__ import annotations

from typing import Any

from genius.decode.model import DecoderShape

COPY = 4.3e12  # bytes a second that a copy moves on an H200, read and written, as measured
PRODUCTS = 790e12  # operations a second of a large bf16 product there
LAUNCH = 1.5e-6  # seconds from one small kernel of a graph to the next, at best
LEAVES = 1.28  # a beam, where the decoder scores them


def floor(shape: DecoderShape, beam: int, stop: int, batch: int, full: bool) -> dict[str, Any]:
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
    arithmetic, memory = 2 * macs * batch / PRODUCTS, (weights + logits) / COPY
    least = max(arithmetic, memory, kernels * LAUNCH)
    return {
        "gigamacs a query": macs / 1e9,
        "megabytes of weights": weights / 1e6,
        "megabytes of logits a batch": logits / 1e6,
        "arithmetic, ms": 1e3 * arithmetic,
        "memory, ms": 1e3 * memory,
        "launches": kernels,
        "launches, ms": 1e3 * kernels * LAUNCH,
        "queries a second at most": batch / least,
    }


def lookup_floor(items_a_beam: float, beam: int, codes: int, dim: int, batch: int) -> dict[str, Any]:
    """One batch of lookups: tables, the cells that are looked at, leaves with their records."""
    leaves = items_a_beam * beam
    macs = codes * dim
    memory = batch * (4 * codes + 16 * leaves) + 4 * codes * dim
    arithmetic = 2 * macs * batch / (PRODUCTS / 16)  # float32
    kernels = 130
    least = max(arithmetic, memory / COPY, kernels * LAUNCH)
    return {
        "gigamacs a query": macs / 1e9,
        "megabytes of weights": 4 * codes * dim / 1e6,
        "megabytes of logits a batch": 0.0,
        "arithmetic, ms": 1e3 * arithmetic,
        "memory, ms": 1e3 * memory / COPY,
        "launches": kernels,
        "launches, ms": 1e3 * kernels * LAUNCH,
        "queries a second at most": batch / least,
    }


def floors() -> dict[str, dict[str, Any]]:
    """The searches of docs/speed.md: T5-small, 9 levels of 4096, beam 50; lookup, 256 codes, beam 200."""
    shape = DecoderShape.preset("t5-small", 768, (3, *[4096] * 8))
    every: dict[str, dict[str, Any]] = {}
    for batch in (1, 256):
        for full in (False, True):
            name = f"{'full depth' if full else 'early stop'}, batch {batch}"
            every[name] = floor(shape, 50, 3, batch, full)
    every["lookup, batch 256"] = lookup_floor(8, 200, 2051, 256, 256)
    return every
