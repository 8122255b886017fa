"""After training, codes and code vectors are refitted in turn, which lowers the quantization error."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.quantize.codebooks import split_largest
from genius.quantize.residual import ResidualQuantizer

PREFIX_WEIGHT = 0.03  # of the error that the first levels leave, for each level but the last; the last has 1
HARD_WEIGHT = 0.5  # exponent: items count by their relative error to this power
LEAST_ERROR = 0.01  # of the mean: items that are coded nearly exactly still count
LEAST_SPREAD = 0.1  # of the mean: no item counts for all others because it lies at the centre of its cluster
RIDGE = 1.0  # members at zero that a code vector has beside its own, at most
FEW_MEMBERS, MANY_MEMBERS = 8, 16  # of a code on average: there are none, there are all of them
FIRST_SHARE = 0.5  # of the items that the first of many rounds fits; the share grows to all of them,
ALL_ITEMS_FROM = 0.9  # which it reaches after this part of the rounds
MANY_ROUNDS = 20


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
    ordered: bool = False,
    seed: int = 0,
) -> tuple[float, ...]:
    """Lower the quantization error of z (n, dim) by `rounds` of encoding and fitting.

    Each round encodes all z with the beam and then sweeps over the levels: each code vector becomes the mean
    of the residuals that the other levels leave. So the sum is fitted as a whole, while codes are found level
    by level. `anchor` counts the old vector as that many members, so that rare codes do not overfit single
    vectors; codes without members move next to the most used ones, to share their members. With `ordered`,
    the sums of the first levels get some weight, too: otherwise the levels lose their order after some
    rounds, and the beam no longer finds the best codes. Errors are then relative to the `_spread` of the
    items: an error that is small where items lie far apart changes the order of items that lie close
    together. Items with a large error count more, because one that is far from its codes is not found at all;
    and code vectors are kept short, so that no code is spent on a single item and errors differ less between
    items. If there are many rounds, each of the first ones fits a random part of the items: code vectors
    fitted to all items pull them towards the codes they have, and after some rounds no code would change any
    more. Returns the mean squared error before each round and after the last; the state with the least error,
    in this sense, is kept.
    """
    z = z.to(quantizer.vectors)
    errors: list[float] = []
    losses: list[float] = []
    best = quantizer.vectors.clone()
    for round_number in range(rounds + 1):
        codes = quantizer.encode(z, modality, beam)
        error = (z - _sums(quantizer, codes)).square_().sum(1)
        spread = _spread(quantizer, z, codes) if ordered else torch.ones_like(error)
        errors.append(float(error.mean()))
        losses.append(float((error / spread).mean()))
        if losses[-1] <= min(losses):
            best.copy_(quantizer.vectors)
        if round_number < rounds:
            weight = _weights(error, spread) if ordered else spread
            generator = torch.Generator(z.device).manual_seed(seed + round_number)
            if ordered:
                some = _some_rows(len(z), round_number, rounds, generator)
                _fit_ordered(quantizer, z[some], codes[some], weight[some], sweeps, anchor)
            else:
                _fit(quantizer, z, codes, sweeps, anchor)
            _split_unused(quantizer, codes, weight, generator)
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


def _some_rows(items: int, round_number: int, rounds: int, generator: torch.Generator) -> Tensor | slice:
    """Rows of the items that a round fits: all, or in the first of many rounds a random part."""
    share = FIRST_SHARE + (1 - FIRST_SHARE) * round_number / (ALL_ITEMS_FROM * rounds)
    if rounds < MANY_ROUNDS or share >= 1:
        return slice(None)
    drawn = torch.randperm(items, generator=generator, device=generator.device)
    return drawn[: int(share * items)].sort().values


def _spread(quantizer: ResidualQuantizer, z: Tensor, codes: Tensor) -> Tensor:
    """How far apart items lie around each z (n, dim), (n,), 1 on average but for a floor.

    It is the squared distance to the sum of the first codes, the centre of a cluster.
    """
    left = (z - _sums(quantizer, codes, quantizer.first_level + 1)).square_().sum(1)
    return (left / left.mean().clamp(min=1e-12)).clamp_(min=LEAST_SPREAD)


def _weights(error: Tensor, spread: Tensor) -> Tensor:
    """How much the squared error of each item counts, (n,), 1 on average."""
    relative = error / spread
    weight = (relative / relative.mean().clamp(min=1e-12)).clamp(min=LEAST_ERROR) ** HARD_WEIGHT / spread
    return weight / weight.mean()


def _fit_ordered(
    quantizer: ResidualQuantizer, z: Tensor, codes: Tensor, weight: Tensor, sweeps: int, anchor: float
) -> None:
    """Weighted least squares of z on the sums of all levels and, with less weight, of the first ones.

    The normal equations need how often two codes occur together, not the residuals of all z: a sweep is a
    product of that matrix, a level at a time, with the code vectors.
    """
    assert not quantizer.shared
    weighted = z * weight[:, None]
    levels = _free_levels(quantizer)
    share = [1 + PREFIX_WEIGHT * (quantizer.levels - 1 - level) for level in range(quantizer.levels)]
    wanted = {
        level: torch.zeros_like(quantizer.codebook(level)).index_add_(0, codes[:, level], weighted)
        for level in levels
    }
    for _ in range(sweeps):
        for level in levels:
            book = quantizer.codebook(level)
            together = torch.cat(
                [
                    share[max(level, other)] * _together(quantizer, codes, weight, level, other)
                    for other in range(quantizer.levels)
                ],
                dim=1,
            )  # (codes, rows of all levels)
            size = torch.zeros_like(book[:, :1]).index_add_(0, codes[:, level], weight[:, None])
            ridge = _ridge(len(z) / len(book)) if level >= quantizer.first_level else 0.0
            left = share[level] * (wanted[level] - ridge * book) - together @ quantizer.vectors
            book += left / (share[level] * (size + anchor + ridge))


def _ridge(members: float) -> float:
    """How many members at zero a code vector has; where codes have few members, all items are coded well."""
    return RIDGE * min(1.0, max(0.0, (members - FEW_MEMBERS) / (MANY_MEMBERS - FEW_MEMBERS)))


def _together(quantizer: ResidualQuantizer, codes: Tensor, weight: Tensor, level: int, other: int) -> Tensor:
    """Weights of the items that have a code of `level` and one of `other`, (codes, codes of other)."""
    sizes = quantizer.sizes[level], quantizer.sizes[other]
    pairs = codes[:, level] * sizes[1] + codes[:, other]
    return weight.new_zeros(sizes[0] * sizes[1]).index_add_(0, pairs, weight).view(sizes)


def _sums(quantizer: ResidualQuantizer, codes: Tensor, levels: int | None = None) -> Tensor:
    """`quantizer.decode`, or the sums of the first `levels`, in one pass over the table of code vectors."""
    return F.embedding_bag(quantizer.rows(codes)[:, :levels], quantizer.vectors, mode="sum")


def _split_unused(
    quantizer: ResidualQuantizer, codes: Tensor, weight: Tensor, generator: torch.Generator
) -> None:
    """Move codes without members close to those of their level whose members have the most weight."""
    if quantizer.shared:
        return
    for level in range(quantizer.first_level, quantizer.levels):
        book = quantizer.codebook(level)
        size = torch.zeros_like(book[:, 0]).index_add_(0, codes[:, level], weight)
        split_largest(book, size, generator)
