"""Targets of the decoder at each level, and the loss (eq. 10).

Hard targets are the item's codes. Soft targets give probability to all codes that are near the residual:

    softmax_k(-|r - e_k|^2 / T),   r = z_item - (the code vectors of its own earlier codes)

so that a near miss costs less than a far one and the order of the wrong codes is learned too. The modality
(level 0) is always hard. Two options move the soft targets towards the query:

- `toward_query` w: r is measured from (1 - w) * z_item + w * z_query instead of z_item;
- `lookup_share` s: a share s of the target is softmax_k(<z_query, e_k> / lookup_temperature), the order that
  lookup search would give; it does not depend on the earlier codes, so its sum over levels ranks whole items.

z_query is the vector that the decoder reads, after augmentation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class SoftTargetOptions:
    """How soft targets are made; the fields are those of the recipe's `decoder_training` table."""

    softness: float = 0.08  # T as a fraction of the mean nearest distance of the level
    hard_share: float = 0.0  # weight of the item's own code beside the soft target
    toward_query: float = 0.0
    lookup_share: float = 0.0
    lookup_temperature: float = 0.02
    perplexity: float = 0.0  # if set, T of each level is the one at which targets have this perplexity
    target_temperature: float = 0.0  # if set, T of all levels


class SoftTargets:
    """Computes the soft targets of a batch from its vectors and codes, without gradient."""

    def __init__(
        self,
        codebooks: Sequence[Tensor],
        temperatures: Sequence[float],
        values: SoftTargetOptions,
        first_level: int = 1,
    ) -> None:
        """`codebooks` (sizes[level], dim) per level, or those of each modality.

        `temperatures` come from `temperatures_of`. Levels before `first_level` stay hard; it is 0 for a
        quantizer without a modality level.
        """
        self.codebooks = [book.detach().float() for book in codebooks]
        self.temperatures = list(temperatures)
        self.values, self.first_level = values, first_level

    @torch.no_grad()
    def __call__(self, z_query: Tensor, z_item: Tensor, codes: Tensor) -> list[Tensor]:
        """Target probabilities (batch, sizes[level]) from `first_level` on; `codes` (batch, levels)."""
        values = self.values
        with torch.autocast(z_item.device.type, enabled=False):
            z_query, z_item = z_query.float(), z_item.float()
            anchor = torch.lerp(z_item, z_query, values.toward_query) if values.toward_query else z_item
            targets = []
            left = list(residuals(anchor, codes, self.codebooks))
            for level in range(self.first_level, len(self.codebooks)):
                book = self.codebooks[level]
                closeness = _closeness(left[level], book, codes)
                target = F.softmax(closeness / self.temperatures[level], dim=1)
                if values.lookup_share:
                    similarity = _of_modality(z_query @ book.mT, codes)
                    lookup = F.softmax(similarity / values.lookup_temperature, dim=1)
                    target = torch.lerp(target, lookup, values.lookup_share)
                targets.append(target)
        return targets


def level_losses(
    logits: Sequence[Tensor],
    codes: Tensor,
    soft: Sequence[Tensor] | None = None,
    hard_share: float = 0.0,
    *,
    normalised: bool = False,
) -> Tensor:
    """Cross-entropy of each level, mean over the batch, (levels,), float32; the loss is its mean (eq. 10).

    `logits` (batch, sizes[level]) per level, `codes` (batch, levels); `soft` holds the target probabilities
    of the last levels, to which the item's own code contributes a share `hard_share`. `normalised` says that
    the logits are log-probabilities already, of a larger vocabulary than the level.
    """

    def hard(level: int) -> Tensor:
        entropy = F.nll_loss if normalised else F.cross_entropy
        return entropy(logits[level].float(), codes[:, level].long())

    if soft is None:
        return torch.stack([hard(level) for level in range(len(logits))])
    losses = []
    for level, scores in enumerate(logits):
        target = level - (len(logits) - len(soft))  # the first levels have no soft target
        if target < 0:
            losses.append(hard(level))
            continue
        if normalised:
            loss = -(soft[target] * scores.float()).sum(1).mean()
        else:
            loss = F.cross_entropy(scores.float(), soft[target])
        losses.append(torch.lerp(loss, hard(level), hard_share) if hard_share else loss)
    return torch.stack(losses)


def residuals(z: Tensor, codes: Tensor, codebooks: Sequence[Tensor]) -> Iterator[Tensor]:
    """The residuals of `z` (n, dim) before each level, and last the one after all levels."""
    yield z
    for level, book in enumerate(codebooks):
        code = codes[:, level].long()
        z = z - (book[code] if book.ndim == 2 else book[codes[:, 0].long(), code])
        yield z


def _closeness(residual: Tensor, book: Tensor, codes: Tensor) -> Tensor:
    """-|r - e_k|^2 + |r|^2 for each code vector of a level, (n, codes); `codes` (n, levels) of the items."""
    return _of_modality(2 * residual @ book.mT - book.square().sum(-1)[..., None, :], codes)


def _of_modality(values: Tensor, codes: Tensor) -> Tensor:
    """Of values (modalities, n, codes) those of the items' modality; (n, codes) as they are."""
    if values.ndim == 2:
        return values
    return values[codes[:, 0].long(), torch.arange(values.shape[1], device=values.device)]


def mean_nearest(z: Tensor, codes: Tensor, codebooks: Sequence[Tensor], rows: int = 65536) -> list[float]:
    """Mean of |r - e|^2 at each level over the first `rows` items, e being the item's own code vector."""
    _, *left = residuals(z[:rows].float(), codes[:rows], codebooks)
    return [rest.square().sum(1).mean().item() for rest in left]


def temperatures_of(
    z: Tensor, codes: Tensor, codebooks: Sequence[Tensor], values: SoftTargetOptions, rows: int = 8192
) -> list[float]:
    """T of each level as `values` says, measured on the first `rows` items."""
    if values.target_temperature:
        return [values.target_temperature] * len(codebooks)
    if not values.perplexity:
        return [max(values.softness * distance, 1e-8) for distance in mean_nearest(z, codes, codebooks)]
    *left, _ = residuals(z[:rows].float(), codes[:rows], codebooks)
    return [
        _temperature(_closeness(r, book.float(), codes[:rows]), values.perplexity)
        for r, book in zip(left, codebooks, strict=True)
    ]


def _temperature(closeness: Tensor, perplexity: float) -> float:
    """The T at which softmax(closeness / T) has this perplexity in the geometric mean over the rows."""
    low, high = 1e-5, 10.0
    if perplexity >= closeness.shape[1]:
        return high
    for _ in range(40):
        middle = math.sqrt(low * high)
        chance = F.log_softmax(closeness / middle, dim=1)
        entropy = float(-(chance.exp() * chance).sum(1).mean())
        low, high = (middle, high) if entropy < math.log(perplexity) else (low, middle)
    return math.sqrt(low * high)
