"""The contrastive loss of stages 0 and 1 (eq. 2, 3), on the whole batch of all processes.

Each process gets the mean over its own rows; the mean over the processes, which the training loop takes of
the gradients and of the figures, is the loss of the whole batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.training.distributed import all_gather_rows, rank


def contrastive_loss(
    query: Tensor,
    item: Tensor,
    temperature: float | Tensor,
    positive: Tensor | None = None,
    *,
    symmetric: bool = True,
) -> Tensor:
    """Eq. 2 and 3 by cosine: queries against all items of the batch and, if `symmetric`, the other way round.

    `query` and `item` (n, dim) are the rows of this process, the i-th item a positive of the i-th query.
    `positive` (batch, batch) tells for the whole batch which item is a positive of which query; those are
    no negatives. Without it all others are. In float32 whatever surrounds it: at a temperature of 0.01 the
    rounding of half precision would drown the differences.
    """
    with torch.autocast(query.device.type, enabled=False):
        query, item = F.normalize(query.float(), dim=1), F.normalize(item.float(), dim=1)
        own = torch.arange(len(query), device=query.device) + rank() * len(query)
        to_items = query @ all_gather_rows(item).T / temperature  # (n, batch)
        others = None if positive is None else positive.clone().fill_diagonal_(False)
        if others is not None:
            to_items = to_items.masked_fill(others[own], -torch.inf)
        if not symmetric:
            return F.cross_entropy(to_items, own)
        to_queries = item @ all_gather_rows(query).T / temperature
        if others is not None:
            to_queries = to_queries.masked_fill(others.T[own], -torch.inf)
        return (F.cross_entropy(to_items, own) + F.cross_entropy(to_queries, own)) / 2
