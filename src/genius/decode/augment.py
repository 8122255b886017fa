"""Query augmentation: in training the decoder reads a mixture of query and target (eq. 11)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.errors import BadInput

Augmentation = Literal["paper", "released", "none"]


def augment(
    z_query: Tensor,
    z_target: Tensor,
    form: Augmentation,
    generator: torch.Generator,
    alpha: float = 2.0,
    plain: float = 0.0,
) -> Tensor:
    """Augmented queries (batch, dim), with randomness from `generator`, which is on the vectors' device.

    `paper`: one mu ~ Beta(alpha, alpha) per row, mu * z_query + (1 - mu) * z_target.
    `released`: one s per row and dimension, sqrt(s) * z_query + sqrt(1 - s) * z_target, L2-normalised.
    `none`: the query. A share `plain` of the rows, drawn independently, stays the plain query in any form.
    """
    if form == "none":
        return z_query
    if form == "paper":
        mu = beta((len(z_query), 1), alpha, generator)
        mixed = mu * z_query + (1 - mu) * z_target
    elif form == "released":
        share = beta(tuple(z_query.shape), alpha, generator)
        mixed = F.normalize(share.sqrt() * z_query + (1 - share).sqrt() * z_target, dim=1)
    else:
        raise BadInput(f"unknown augmentation {form!r}: use paper, released or none")
    if not plain:
        return mixed
    stays = torch.rand(len(z_query), 1, generator=generator, device=generator.device) < plain
    return torch.where(stays, z_query, mixed)


def beta(shape: tuple[int, ...], alpha: float, generator: torch.Generator) -> Tensor:
    """Samples of Beta(alpha, alpha): x / (x + y) of two gamma variables."""
    concentration = torch.full((2, *shape), alpha, device=generator.device)
    x, y = torch._standard_gamma(concentration, generator=generator).unbind(0)
    return x / (x + y)
