"""Exact search: every vector of the pool is compared with the query. The reference of every other system.

On phi this is CLIP-SF or BLIP-SF of the paper, on a fusing encoder's vectors CLIP-FF or BLIP-FF.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Row
from genius.evaluate.encoding import Pool, Questions
from genius.evaluate.systems import Floats, Found, empty

if TYPE_CHECKING:
    from torch import Tensor

QUERIES_AT_ONCE = 512
ITEMS_AT_ONCE = 65_536


class Exact:
    """Cosine of phi with every item, in NumPy, or in torch on a GPU."""

    def __init__(self, device: str = "cpu", name: str = "exact") -> None:
        self.name, self._device = name, device
        self._phi: Floats = np.empty((0, 0), dtype=np.float32)
        self._resident: Tensor | None = None

    @property
    def settings(self) -> Mapping[str, Any]:
        """Nothing to set."""
        return {}

    def answers(self, row: Row) -> bool:
        """Every row."""
        return True

    def index(self, pool: Pool) -> None:
        """Keep the vectors as they are; on a GPU they lie there."""
        self._phi = pool.phi
        if self._device != "cpu":
            import torch

            self._resident = torch.from_numpy(np.ascontiguousarray(pool.phi)).to(self._device)

    def search(self, questions: Questions, k: int) -> Found:
        """The `k` nearest items; of equal ones those that come first in the pool."""
        if self._resident is not None:
            return nearest_resident(questions.phi, self._resident, k)
        return nearest(questions.phi, self._phi, k)

    def bytes_per_item(self) -> float:
        """4 bytes for each dimension."""
        return self._phi.nbytes / max(len(self._phi), 1)


def nearest_resident(queries: Floats, items: Tensor, k: int) -> Found:
    """The same by torch, where `items` (n, dim) lie; many equal ones at the border may change places."""
    import torch

    found = empty(len(queries), k)
    width = min(2 * k, len(items))
    for first in range(0, len(queries) if width else 0, QUERIES_AT_ONCE):
        part = torch.from_numpy(np.ascontiguousarray(queries[first : first + QUERIES_AT_ONCE]))
        best = (part.to(items.device) @ items.T).topk(width, dim=1)
        scores, rows = best.values.cpu().numpy(), best.indices.cpu().numpy()
        order = np.lexsort((rows, -scores), axis=1)[:, :k]
        last = slice(first, first + len(part)), slice(0, order.shape[1])
        found.rows[last] = np.take_along_axis(rows, order, axis=1)
        found.scores[last] = np.take_along_axis(scores, order, axis=1)
    return found


def nearest(queries: Floats, items: Floats, k: int) -> Found:
    """The `k` items of highest inner product with each query; equal ones in the order of the items."""
    found = empty(len(queries), k)
    for first in range(0, len(queries), QUERIES_AT_ONCE):
        part = queries[first : first + QUERIES_AT_ONCE]
        best = empty(len(part), 0)
        for start in range(0, len(items), ITEMS_AT_ONCE):
            chunk = items[start : start + ITEMS_AT_ONCE]
            rows, scores = _best(np.asarray(part @ chunk.T), k)
            both = np.concatenate([best.rows, rows + start], axis=1)
            all_scores = np.concatenate([best.scores, scores], axis=1)
            order, scores = _best(all_scores, k)
            best = Found(np.take_along_axis(both, order, axis=1), scores)
        width = best.rows.shape[1]
        found.rows[first : first + len(part), :width] = best.rows
        found.scores[first : first + len(part), :width] = best.scores
    return found


def _best(scores: Floats, k: int) -> tuple[NDArray[np.int64], Floats]:
    """Columns and values of the `k` largest of each row, falling; of equal ones the first columns win."""
    if scores.shape[1] > k:
        columns = np.sort(np.argpartition(scores, -k, axis=1)[:, -k:], axis=1)
        bar = np.take_along_axis(scores, columns, axis=1).min(axis=1, keepdims=True)
        for row in np.flatnonzero(
            (scores >= bar).sum(axis=1) > k
        ):  # a tie at the border: take the first ones
            above = np.flatnonzero(scores[row] > bar[row])
            equal = np.flatnonzero(scores[row] == bar[row])
            columns[row] = np.sort(np.concatenate([above, equal[: k - len(above)]]))
    else:
        columns = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    values = np.take_along_axis(scores, columns, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1), np.take_along_axis(values, order, axis=1)
