"""After training, codes and code vectors are refitted in turn, which lowers the quantization error."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.quantize.codebooks import split_largest
from genius.quantize.residual import ResidualQuantizer


@torch.no_grad()
def refine(
    quantizer: ResidualQuantizer,
    z: Tensor,
    modality: Tensor | None = None,
    *,
    rounds: int,
    beam: int = 1,
    sweeps: int = 3,
    anchor: float = 1.0,
    seed: int = 0,
) -> tuple[float, ...]:
    """Lower the quantization error of z (n, dim) by `rounds` of encoding and fitting.

    A round encodes all z with the beam, then sweeps over the levels: each code vector becomes the mean of
    the residuals that the other levels leave. So the sum is fitted as a whole, while codes are found level by
    level. `anchor` counts the old vector as that many members, so that rare codes do not overfit single
    vectors; codes without members move to the most used ones, to share their members. Returns the mean
    squared error before each round and after the last; the best state seen is kept.
    """
    z = z.to(quantizer.vectors)
    errors: list[float] = []
    best = quantizer.vectors.clone()
    for round_number in range(rounds + 1):
        codes = quantizer.encode(z, modality, beam)
        left = z - _sums(quantizer, codes)
        errors.append(float(left.square_().sum(1).mean()))
        if errors[-1] <= min(errors):
            best.copy_(quantizer.vectors)
        if round_number < rounds:
            _fit(quantizer, z, codes, sweeps, anchor)
            generator = torch.Generator(z.device).manual_seed(seed + round_number)
            _split_unused(quantizer, codes, generator)
    quantizer.vectors.copy_(best)
    return tuple(errors)


def _free_levels(quantizer: ResidualQuantizer) -> range:
    """Levels whose vectors can move: level 0 only where moving it cannot change a vector's modality code."""
    return range(0 if quantizer.modality == "assigned" else quantizer.first_level, quantizer.levels)


def _fit(quantizer: ResidualQuantizer, z: Tensor, codes: Tensor, sweeps: int, anchor: float) -> None:
    """Least squares of z on its code vectors with fixed codes, one level after the other."""
    left = z - _sums(quantizer, codes)
    for _ in range(sweeps):
        for level in _free_levels(quantizer):
            book, code = quantizer.codebook(level), codes[:, level]
            size = torch.bincount(code, minlength=len(book))[:, None]
            step = torch.zeros_like(book).index_add_(0, code, left) / (size + anchor)
            book += step
            if quantizer.shared:
                left = z - _sums(quantizer, codes)  # the other levels moved too
            else:
                left -= step[code]


def _sums(quantizer: ResidualQuantizer, codes: Tensor) -> Tensor:
    """`quantizer.decode` without gradients, in one pass over the table of code vectors."""
    return F.embedding_bag(quantizer.rows(codes), quantizer.vectors, mode="sum")


def _split_unused(quantizer: ResidualQuantizer, codes: Tensor, generator: torch.Generator) -> None:
    """Move codes without members close to the most used codes of their level."""
    if quantizer.shared:
        return
    for level in range(quantizer.first_level, quantizer.levels):
        book = quantizer.codebook(level)
        split_largest(book, torch.bincount(codes[:, level], minlength=len(book)), generator)
