"""Exact search: every embedding of the pool is compared with the query. The reference of every other system.

On phi this is CLIP-SF or BLIP-SF of the paper, on a fusing encoder's embeddings CLIP-FF or BLIP-FF.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Row
from genius.evaluate.embeddings import EncodedPool, EncodedQueries, Floats
from genius.evaluate.systems import TopK

if TYPE_CHECKING:
    from torch import Tensor

QUERY_BATCH = 512
ITEM_BATCH = 65_536


class Exact:
    """Cosine of phi with every item, in NumPy, or in torch on a GPU."""

    def __init__(self, device: str = "cpu", name: str = "exact") -> None:
        self.name, self._device = name, device
        self._phi: Floats = np.empty((0, 0), dtype=np.float32)
        self._on_device: Tensor | None = None

    @property
    def settings(self) -> Mapping[str, Any]:
        """No settings."""
        return {}

    def supports(self, row: Row) -> bool:
        """Every row."""
        return True

    def index(self, pool: EncodedPool) -> None:
        """Keep the embeddings as they are, on the device."""
        self._phi = pool.phi
        if self._device != "cpu":
            import torch

            self._on_device = torch.from_numpy(np.ascontiguousarray(pool.phi)).to(self._device)

    def search(self, queries: EncodedQueries, k: int) -> TopK:
        """The `k` nearest items; of equal ones those that come first in the pool."""
        if self._on_device is not None:
            return nearest_on_device(queries.phi, self._on_device, k)
        return nearest(queries.phi, self._phi, k)

    def bytes_per_item(self) -> float:
        """4 bytes for each dimension."""
        return self._phi.nbytes / max(len(self._phi), 1)


def nearest_on_device(queries: Floats, items: Tensor, k: int) -> TopK:
    """`nearest` by torch on the device of `items` (n, dim); ties at the k-th position may differ."""
    import torch

    top = TopK.empty(len(queries), k)
    width = min(2 * k, len(items))
    for first in range(0, len(queries) if width else 0, QUERY_BATCH):
        part = torch.from_numpy(np.ascontiguousarray(queries[first : first + QUERY_BATCH]))
        best = (part.to(items.device) @ items.T).topk(width, dim=1)
        scores, rows = best.values.cpu().numpy(), best.indices.cpu().numpy()
        order = np.lexsort((rows, -scores), axis=1)[:, :k]
        target = slice(first, first + len(part)), slice(0, order.shape[1])
        top.rows[target] = np.take_along_axis(rows, order, axis=1)
        top.scores[target] = np.take_along_axis(scores, order, axis=1)
    return top


def nearest(queries: Floats, items: Floats, k: int) -> TopK:
    """The `k` items of highest inner product with each query; equal ones in the order of the items."""
    top = TopK.empty(len(queries), k)
    for first in range(0, len(queries), QUERY_BATCH):
        part = queries[first : first + QUERY_BATCH]
        best = TopK.empty(len(part), 0)
        for start in range(0, len(items), ITEM_BATCH):
            rows, scores = _best(np.asarray(part @ items[start : start + ITEM_BATCH].T), k)
            rows = np.concatenate([best.rows, rows + start], axis=1)
            order, scores = _best(np.concatenate([best.scores, scores], axis=1), k)
            best = TopK(np.take_along_axis(rows, order, axis=1), scores)
        width = best.rows.shape[1]
        top.rows[first : first + len(part), :width] = best.rows
        top.scores[first : first + len(part), :width] = best.scores
    return top


def _best(scores: Floats, k: int) -> tuple[NDArray[np.int64], Floats]:
    """Columns and values of the `k` largest of each row, falling; of equal ones the first columns win."""
    if scores.shape[1] > k:
        columns = np.sort(np.argpartition(scores, -k, axis=1)[:, -k:], axis=1)
        bar = np.take_along_axis(scores, columns, axis=1).min(axis=1, keepdims=True)
        for row in np.flatnonzero((scores >= bar).sum(axis=1) > k):  # a tie at the k-th: take the first ones
            above = np.flatnonzero(scores[row] > bar[row])
            equal = np.flatnonzero(scores[row] == bar[row])
            columns[row] = np.sort(np.concatenate([above, equal[: k - len(above)]]))
    else:
        columns = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    values = np.take_along_axis(scores, columns, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1), np.take_along_axis(values, order, axis=1)
