"""The losses of stage 1 that look at codes (eq. 7, 8); its contrastive loss is that of stage 0, on z."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def residual_loss(z: Tensor, partial: Tensor) -> Tensor:
    """L_rq (eq. 7): mean over rows, levels and dimensions of (r_{i-1} - sg(e_i))^2.

    `partial` (n, levels, dim) holds the quantized vectors e_1 + ... + e_i after each level; r_{i-1} - e_i is
    z minus that. A mean where the paper has a sum: its weight of 100 was tuned for the mean.
    """
    return (z[:, None] - partial.detach()).square().mean()


def agreement_loss(query: Tensor, item: Tensor, query_sum: Tensor, item_sum: Tensor) -> Tensor:
    """L_mse: mean squared difference of the quantized query and item, both L2-normalised; (n, dim) each.

    `query_sum` and `item_sum` are the quantized vectors; the gradient goes straight through them to z.
    """
    ours = F.normalize(straight_through(query, query_sum), dim=1)
    theirs = F.normalize(straight_through(item, item_sum), dim=1)
    return (ours - theirs).square().mean()


def straight_through(z: Tensor, quantized: Tensor) -> Tensor:
    """The value of `quantized` with the gradient of z."""
    return z + (quantized - z).detach()
