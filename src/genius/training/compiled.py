"""Compiled losses: kernels of small networks are fused, and launched as one graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def compiled(loss: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """`loss` compiled; on CUDA it is replayed as a graph, since kernel launches dominate small batches."""
    if device.type != "cuda":
        return torch.compile(loss, dynamic=False)
    fast = torch.compile(loss, dynamic=False, mode="reduce-overhead")

    def replayed(*inputs: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return fast(*inputs).clone()  # the graph's own output is overwritten by the next step

    return replayed
