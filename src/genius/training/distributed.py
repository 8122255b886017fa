"""Data-parallel training under `torchrun`: each process has its part of every batch.

Without torchrun there is one process and every function here does nothing, so callers need not ask.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from genius.errors import BadInput

Step = Callable[[int], Mapping[str, Tensor]]  # step number -> losses; "loss" is the one to minimise

TIMEOUT_S = 600.0  # a process that waits longer for the others gives up; GENIUS_TIMEOUT_S changes it


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def is_main() -> bool:
    """Whether this process writes the files and shows the progress."""
    return rank() == 0


@contextmanager
def process_group(device: str = "auto") -> Iterator[torch.device]:
    """The device to train on (`auto`, `cpu`, `cuda`), inside torchrun's process group where there is one.

    A process that dies ends the others through torchrun; one that hangs, through the timeout.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device.startswith("cuda") and not torch.cuda.is_available():
        raise BadInput(f"device {device!r}: no CUDA device here; use --set device=cpu")
    chosen = torch.device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or world_size() > 1:
        yield chosen
        return
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(chosen)
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    timeout = timedelta(seconds=float(os.environ.get("GENIUS_TIMEOUT_S", TIMEOUT_S)))
    store, number, count = next(rendezvous("env://", timeout=timeout))
    # a store of this attempt's own: after a restart, torchrun's still has the addresses of the dead
    own = PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group(backend, store=own, rank=number, world_size=count, timeout=timeout)
    try:
        yield chosen
    finally:
        dist.destroy_process_group()


def rank_slice(batch: int) -> slice:
    """The rows of a batch that belong to this process; all parts have the same size."""
    if batch % world_size():
        raise BadInput(
            f"batch {batch} cannot be split over {world_size()} processes: choose a multiple of it"
        )
    size = batch // world_size()
    return slice(rank() * size, (rank() + 1) * size)


class _Gather(torch.autograd.Function):
    """all_gather with gradients; torch's own is deprecated in 2.13 for a function of a private module."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(world_size())]
        dist.all_gather(parts, rows.contiguous())
        ctx.count = len(rows)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous()
        dist.all_reduce(total)
        return total[rank() * ctx.count : (rank() + 1) * ctx.count]


def all_gather_rows(rows: Tensor) -> Tensor:
    """The rows of all processes in rank order, (world * n, ...); gradients flow back to their owners."""
    if world_size() == 1:
        return rows
    gathered: Tensor = _Gather.apply(rows)  # type: ignore[no-untyped-call]
    return gathered


def all_reduce_sum(values: Tensor) -> Tensor:
    """`values` summed over the processes, in place; no gradient."""
    if world_size() > 1:
        dist.all_reduce(values)
    return values


def all_reduce_mean(values: Tensor) -> Tensor:
    """`values` averaged over the processes, in place; no gradient."""
    return all_reduce_sum(values).div_(world_size()) if world_size() > 1 else values


class _StepModule(nn.Module):
    """A training step as the forward of a module, which is what DistributedDataParallel wraps."""

    def __init__(self, module: nn.Module, step: Step) -> None:
        super().__init__()
        self.module, self.step = module, step

    def forward(self, number: int) -> dict[str, Tensor]:
        """The losses of a step; only `loss` keeps its graph, so that no other output waits for a gradient."""
        losses = self.step(number)
        return {name: value if name == "loss" else value.detach() for name, value in losses.items()}


def data_parallel(module: nn.Module, step: Step) -> Step:
    """`step` whose backward averages the gradients of `module` over all processes, overlapped with it.

    Every process starts with the weights and buffers of process 0. Buffers are not synchronised again: those
    that learn (codebooks) are reduced where they are updated.
    """
    if world_size() == 1:
        return step
    wrapped = _StepModule(module, step)
    return DistributedDataParallel(wrapped, broadcast_buffers=False, find_unused_parameters=True)


def broadcast_module(module: nn.Module) -> None:
    """Give every process the weights and buffers of process 0."""
    if world_size() > 1:
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor, 0)


def broadcast_values(values: dict[str, float]) -> dict[str, float]:
    """The values of process 0, so that all processes take the same decision."""
    if world_size() == 1:
        return values
    holder: list[Any] = [values]
    dist.broadcast_object_list(holder, 0)
    received: dict[str, float] = holder[0]
    return received


def exists_on_all_ranks(file: Path) -> bool:
    """Whether a file is there; raises BadInput if some processes see it and others do not."""
    here = file.exists()
    if world_size() == 1:
        return here
    seen: list[Any] = [None] * world_size()
    dist.all_gather_object(seen, here)
    if len(set(seen)) > 1:
        raise BadInput(
            f"{file} is seen by {sum(seen)} of {world_size()} processes: "
            "give --to a folder that all machines share, under the same path"
        )
    return here


def barrier() -> None:
    """Wait until every process is here."""
    if world_size() > 1:
        dist.barrier()
