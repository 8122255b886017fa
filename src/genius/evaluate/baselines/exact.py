"""Exact search: every embedding of the pool is compared with the query. The reference of every other system.

On phi this is CLIP-SF or BLIP-SF of the paper, on a fusing encoder's embeddings CLIP-FF or BLIP-FF.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from genius.evaluate.embeddings import EncodedPool, EncodedQueries, Floats
from genius.evaluate.systems import System, TopK

QUERY_BATCH = 512
ITEM_BATCH = 65_536


class Exact(System):
    """Cosine of phi with every item, on the device."""

    def __init__(self, device: str = "cpu", name: str = "exact") -> None:
        self.name, self._device = name, device
        self._items = torch.empty(0, 0)

    def index(self, pool: EncodedPool) -> None:
        """Keep the embeddings as they are, on the device."""
        self._items = torch.from_numpy(pool.phi).to(self._device)

    def search(self, queries: EncodedQueries, k: int) -> TopK:
        """The `k` nearest items; of equal ones those that come first in the pool."""
        return nearest(queries.phi, self._items, k)

    def bytes_per_item(self) -> float:
        """4 bytes for each dimension."""
        return self._items.nbytes / max(len(self._items), 1)


def nearest(queries: Floats, items: Tensor, k: int) -> TopK:
    """The `k` items (n, dim) of highest inner product with each query; equal ones in their order."""
    top = TopK.empty(len(queries), k)
    for first in range(0, len(queries), QUERY_BATCH):
        part = torch.from_numpy(np.ascontiguousarray(queries[first : first + QUERY_BATCH])).to(items.device)
        scores = torch.empty(len(part), 0, device=items.device)
        rows = torch.empty(len(part), 0, dtype=torch.long, device=items.device)
        for start in range(0, len(items), ITEM_BATCH):
            chunk = part @ items[start : start + ITEM_BATCH].T
            columns = _best(chunk, k)
            rows = torch.cat([rows, columns + start], dim=1)
            scores = torch.cat([scores, chunk.gather(1, columns)], dim=1)
            order = _best(scores, k)
            rows, scores = rows.gather(1, order), scores.gather(1, order)
        target = slice(first, first + len(part)), slice(0, rows.shape[1])
        top.rows[target], top.scores[target] = rows.cpu().numpy(), scores.cpu().numpy()
    return top


def _best(scores: Tensor, k: int) -> Tensor:
    """Columns of the `k` largest of each row, falling; of equal ones the first columns come first."""
    width = min(k, scores.shape[1])
    columns = scores.topk(width, dim=1).indices
    if width:
        bar = scores.gather(1, columns)[:, -1:]
        for row in ((scores >= bar).sum(1) > width).nonzero().flatten().tolist():  # a tie at the k-th
            columns[row] = scores[row].sort(descending=True, stable=True).indices[:width]
    columns = columns.sort(dim=1).values
    return columns.gather(1, scores.gather(1, columns).sort(dim=1, descending=True, stable=True).indices)
