"""The three losses of stage 1 (eq. 3, 7, 8), on the whole batch of all processes.

Each process gets the mean over its own rows; the mean over the processes, which the training loop takes of
the gradients and of the figures, is the loss of the whole batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.training.distributed import gather_rows, rank


def contrastive_loss(
    query: Tensor, item: Tensor, temperature: float, positive: Tensor | None = None
) -> Tensor:
    """L_cl (eq. 3), both ways: each query finds its item in the batch, and each item its query.

    `query` and `item` (n, dim) are the rows of this process, the i-th item a positive of the i-th query.
    `positive` (batch, batch) tells for the whole batch which item is a positive of which query; those are
    no negatives. Without it all others are.
    """
    with torch.autocast(query.device.type, enabled=False):
        query, item = F.normalize(query.float(), dim=1), F.normalize(item.float(), dim=1)
        own = torch.arange(len(query), device=query.device) + rank() * len(query)
        to_items = query @ gather_rows(item).T / temperature  # (n, batch)
        to_queries = item @ gather_rows(query).T / temperature
        if positive is not None:
            others = positive.clone().fill_diagonal_(False)
            to_items = to_items.masked_fill(others[own], -torch.inf)
            to_queries = to_queries.masked_fill(others.T[own], -torch.inf)
        return (F.cross_entropy(to_items, own) + F.cross_entropy(to_queries, own)) / 2


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
