"""Learning codebooks: k-means on a large sample, then moving averages; dead codes are re-seeded."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from genius.quantize.residual import SCORES_AT_ONCE, ResidualQuantizer, nearest, scores
from genius.training.distributed import all_reduce_sum, rank_slice, world_size

SPLIT = 0.1  # relative distance of the two centres that a large cluster is split into
SEEDING_ROUNDS = 64  # k-means++ draws its seeds in this many rounds instead of one by one


Seeding = Literal["distance", "random"]


@torch.no_grad()
def kmeans(
    x: Tensor, count: int, generator: torch.Generator, rounds: int = 10, seeding: Seeding = "distance"
) -> Tensor:
    """`count` centres of x (n, dim), (count, dim): seeds, then `rounds` of Lloyd's iteration.

    Seeding by `distance` is k-means++; a centre without members moves to one of the vectors with the largest
    error. Both prefer outliers. With `random`, seeds are any rows, and a centre without members splits the
    largest cluster.
    """
    centres = _seeds(x, count, generator) if seeding == "distance" else _random_rows(x, count, generator)
    for _ in range(rounds):
        member, distance = _assign(x, centres)
        size = torch.bincount(member, minlength=count)
        total = torch.zeros_like(centres).index_add_(0, member, x)
        centres = total / size.clamp(min=1)[:, None]
        if seeding == "random":
            split_largest(centres, size, generator)
            continue
        empty = (size == 0).nonzero().squeeze(1)
        worst = distance.topk(min(len(empty), len(x))).indices
        centres[empty[: len(worst)]] = x[worst]
    return centres


def split_largest(centres: Tensor, size: Tensor, generator: torch.Generator) -> None:
    """Move each centre without members close to one of the centres with the most members, in place."""
    empty = (size == 0).nonzero().squeeze(1)
    largest = size.topk(len(empty)).indices
    noise = torch.randn(len(empty), 1, generator=generator, device=centres.device)
    centres[empty] = centres[largest] * (1 + SPLIT * noise)


def _random_rows(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Distinct rows of x, or all of them several times where there are fewer."""
    order = torch.randperm(len(x), generator=generator, device=x.device)
    return x[order.repeat(-(-count // len(x)))[:count]]


def _seeds(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Rows of x, sampled with a probability proportional to the squared distance to the seeds so far."""
    first = torch.randint(len(x), (1,), generator=generator, device=x.device)
    seeds = x[first]
    distance = (x - seeds).square().sum(1)
    while len(seeds) < count:
        new = min(count - len(seeds), max(1, count // SEEDING_ROUNDS))
        weight = distance.clamp(min=0).double() + 1e-12  # if all distances are 0, any row will do
        rows = torch.multinomial(weight, new, replacement=new > len(x), generator=generator)
        seeds = torch.cat([seeds, x[rows]])
        distance = torch.minimum(distance, _assign(x, x[rows])[1])
    return seeds


def _assign(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest centre and squared distance to it for each row of x, in chunks."""
    members, distances = [], []
    for part in torch.split(x, max(1, SCORES_AT_ONCE // len(centres))):
        best = scores(part, centres).max(1)
        members.append(best.indices)
        distances.append((part.square().sum(1) - 2 * best.values).clamp_(min=0))
    return torch.cat(members), torch.cat(distances)


@torch.no_grad()
def init_codebooks(
    quantizer: ResidualQuantizer,
    z: Tensor,
    modality: Tensor,
    generator: torch.Generator,
    rounds: int = 10,
    seeding: Seeding = "distance",
) -> Tensor:
    """Fill the codebooks from a sample z (n, dim) of known modality (n,); returns the sample's codes.

    Level 0 gets the mean of each modality, every further level k-means of what is left. Levels that share
    a codebook each put in their part of it. A classifier starts from discriminant analysis.
    """
    residual = z.to(quantizer.vectors)
    codes = []
    if quantizer.first_level:
        if quantizer.classifier is not None:  # nothing is subtracted: the rows of level 0 stay zero
            _start_classifier(quantizer.classifier, residual, modality)
        else:
            for number, vector in enumerate(quantizer.codebook(0)):
                members = residual[modality == number]
                vector.copy_(members.mean(0) if len(members) else residual.mean(0))
        codes.append(modality)
        residual = residual - quantizer.codebook(0)[modality]
    later = quantizer.levels - quantizer.first_level
    filled = 0
    for level in range(quantizer.first_level, quantizer.levels):
        book = quantizer.codebook(level)
        if quantizer.shared:
            end = len(book) * (level - quantizer.first_level + 1) // later
            book[filled:end] = kmeans(residual, max(1, end - filled), generator, rounds, seeding)[
                : end - filled
            ]
            code, filled = nearest_in_chunks(residual, book[: max(1, end)]), end
        else:
            book.copy_(kmeans(residual, len(book), generator, rounds, seeding))
            code = nearest_in_chunks(residual, book)
        codes.append(code)
        residual = residual - book[code]
    return torch.stack(codes, dim=1)


def _start_classifier(classifier: nn.Linear, z: Tensor, modality: Tensor) -> None:
    """Linear discriminant analysis, which is optimal if the modalities differ by their means alone."""
    kinds = torch.nn.functional.one_hot(modality, classifier.out_features).to(z)
    means = kinds.T @ z / kinds.sum(0).clamp(min=1)[:, None]  # (modalities, dim)
    within = z - means[modality]
    spread = within.T @ within / len(z)
    spread += 1e-2 * spread.diagonal().mean() * torch.eye(len(spread), device=z.device)
    weight = torch.linalg.solve(spread, means.T).T
    classifier.weight.copy_(weight)
    classifier.bias.copy_((weight * means).sum(1) / -2)


def nearest_in_chunks(x: Tensor, book: Tensor) -> Tensor:
    """The code nearest to each row of x (n, dim), (n,)."""
    return torch.cat([nearest(part, book) for part in torch.split(x, max(1, SCORES_AT_ONCE // len(book)))])


class MovingAverage(nn.Module):
    """Exponential moving averages of the residuals of each code; they are the codebooks during training.

    A code whose average count per step falls under `dead_below` (or under half of its fair share of the
    batch, if that is less) is re-seeded with a vector of the batch; never at level 0. All processes see the
    sums over the whole batch and stay equal.
    """

    count: Tensor
    total: Tensor

    def __init__(self, quantizer: ResidualQuantizer, decay: float = 0.9, dead_below: float = 2.0) -> None:
        super().__init__()
        self.decay, self.dead_below = decay, dead_below
        self.register_buffer("count", torch.zeros(len(quantizer.vectors)))
        self.register_buffer("total", torch.zeros_like(quantizer.vectors))

    @torch.no_grad()
    def start(self, quantizer: ResidualQuantizer, codes: Tensor, batch: int) -> None:
        """Initialise from codebooks that gave a sample these `codes`; a step has `batch` vectors."""
        used = torch.bincount(quantizer.rows(codes).flatten(), minlength=len(self.count))
        self.count.copy_(used * (batch / len(codes)))
        self.total.copy_(quantizer.vectors * self.count[:, None])

    @torch.no_grad()
    def update(
        self, quantizer: ResidualQuantizer, residual: Tensor, codes: Tensor, generator: torch.Generator
    ) -> None:
        """Update the codebooks from a batch: residuals before each level (n, levels, dim) and its codes."""
        residual = residual.float()
        seen, rows = codes.shape[0] * world_size(), quantizer.rows(codes).flatten()
        batch = torch.zeros(len(self.count), quantizer.dim + 1, device=rows.device)  # sums, then counts
        batch[:, :-1].index_add_(0, rows, residual.flatten(0, 1))
        batch[:, -1].index_add_(0, rows, torch.ones_like(rows, dtype=batch.dtype))
        all_reduce_sum(batch)
        self.total.lerp_(batch[:, :-1], 1 - self.decay)
        self.count.lerp_(batch[:, -1], 1 - self.decay)
        self._revive(quantizer, residual, seen, generator)
        known = self.count[:, None] > 1e-6
        vectors = torch.where(known, self.total / self.count[:, None].clamp(min=1e-6), quantizer.vectors)
        if quantizer.modality == "classifier":
            vectors[: quantizer.sizes[0]] = 0
        quantizer.vectors.copy_(vectors)

    def _revive(
        self, quantizer: ResidualQuantizer, residual: Tensor, seen: int, generator: torch.Generator
    ) -> None:
        """Re-seed codes that are hardly used with vectors of the batch, without waiting for the device."""
        for level in range(
            quantizer.first_level, quantizer.levels if not quantizer.shared else quantizer.first_level + 1
        ):
            start, size = quantizer.starts[level], quantizer.sizes[level]
            rows = slice(start, start + size)
            limit = min(self.dead_below, seen / size / 2)
            dead = (self.count[rows] < limit)[:, None]
            drawn = torch.randint(seen, (size,), generator=generator, device=residual.device)
            places = _rows_of_batch(residual[:, level], drawn, seen)
            self.total[rows] = torch.where(dead, places * limit, self.total[rows])
            self.count[rows] = torch.where(dead[:, 0], limit, self.count[rows])


def _rows_of_batch(own: Tensor, drawn: Tensor, seen: int) -> Tensor:
    """Rows `drawn` of the batch of all processes, of which this one holds its part `own` (n, dim)."""
    if world_size() == 1:
        return own[drawn]
    part = rank_slice(seen)
    mine = (drawn >= part.start) & (drawn < part.stop)
    rows = torch.where(mine[:, None], own[(drawn - part.start).clamp(0, len(own) - 1)], 0.0)
    return all_reduce_sum(rows)
