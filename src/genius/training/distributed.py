"""Several processes as one: each holds a part of every batch, gradients and losses are those of the whole.

Start with `torchrun`; without it every function here is the identity, so callers never ask.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from genius.errors import BadInput

TIMEOUT_S = 600.0  # a process that waits longer for the others gives up; GENIUS_TIMEOUT_S changes it


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if world() > 1 else 0


def is_main() -> bool:
    """Whether this process writes the files and shows the progress."""
    return rank() == 0


@contextmanager
def processes(device: str = "auto") -> Iterator[torch.device]:
    """The device to train on (`auto`, `cpu`, `cuda`), inside torchrun's process group where there is one.

    A process that dies ends the others through torchrun; one that hangs, through the timeout.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device.startswith("cuda") and not torch.cuda.is_available():
        raise BadInput(f"device {device!r}: no CUDA device here; use --set device=cpu")
    chosen = torch.device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or world() > 1:
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


def my_part(batch: int) -> slice:
    """The rows of a batch that belong to this process; all parts have the same size."""
    if batch % world():
        raise BadInput(f"batch {batch} cannot be split over {world()} processes: choose a multiple of it")
    size = batch // world()
    return slice(rank() * size, (rank() + 1) * size)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(world())]
        dist.all_gather(parts, rows.contiguous())
        ctx.count = len(rows)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous()
        dist.all_reduce(total)
        return total[rank() * ctx.count : (rank() + 1) * ctx.count]


def gather_rows(rows: Tensor) -> Tensor:
    """The rows of all processes in rank order, (world * n, ...); gradients flow back to their owners."""
    if world() == 1:
        return rows
    gathered: Tensor = _Gather.apply(rows)  # type: ignore[no-untyped-call]
    return gathered


def sum_over_processes(values: Tensor) -> Tensor:
    """`values` summed over the processes, in place; no gradient."""
    if world() > 1:
        dist.all_reduce(values)
    return values


def mean_over_processes(values: Tensor) -> Tensor:
    """`values` averaged over the processes, in place; no gradient."""
    return sum_over_processes(values).div_(world()) if world() > 1 else values


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Give every process the mean of all gradients: one message for all parameters."""
    if world() == 1:
        return
    parameters = list(parameters)
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    mean_over_processes(flat)
    start = 0
    for parameter in parameters:
        parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()


def same_everywhere(module: nn.Module) -> None:
    """Give every process the weights and buffers of process 0."""
    if world() > 1:
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor, 0)


def from_main(values: dict[str, float]) -> dict[str, float]:
    """The values of process 0, so that all processes take the same decision."""
    if world() == 1:
        return values
    holder: list[Any] = [values]
    dist.broadcast_object_list(holder, 0)
    received: dict[str, float] = holder[0]
    return received


def seen_by_all(file: Path) -> bool:
    """Whether a file is there; raises BadInput if some processes see it and others do not."""
    here = file.exists()
    if world() == 1:
        return here
    seen: list[Any] = [None] * world()
    dist.all_gather_object(seen, here)
    if len(set(seen)) > 1:
        raise BadInput(
            f"{file} is seen by {sum(seen)} of {world()} processes: "
            "give --to a folder that all machines share, under the same path"
        )
    return here


def wait_for_all() -> None:
    """Wait until every process is here."""
    if world() > 1:
        dist.barrier()
