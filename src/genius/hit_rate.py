"""The hit rate, once for training and evaluation: a query is a hit if any of its first k items is relevant.

Arrays may be NumPy's or torch's: training validates on its device, evaluation ranks with NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from genius.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Booleans = TypeVar("Booleans", torch.Tensor, NDArray[np.bool_])


def hits(relevant: Booleans, k: int) -> Booleans:
    """Whether any of the first k is relevant, bool (queries,); `relevant` is (queries, depth), best first."""
    if k < 1:
        raise BadInput(f"k is {k}: it has to be 1 or more")
    found: Any = relevant[:, :k].any(1)
    return found  # type: ignore[no-any-return]


def rate_by_task(hit: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
    """The hit rate of each task, (tasks,), NaN for one without queries; `hit` and `task` (queries,)."""
    import torch

    return torch.bincount(task, weights=hit.double()) / torch.bincount(task)


def mean_over_tasks(hit: torch.Tensor, task: torch.Tensor) -> float:
    """The mean over the tasks of each task's hit rate; `hit` and `task` (queries,)."""
    return float(rate_by_task(hit, task).nanmean())
