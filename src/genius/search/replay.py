"""Programs of fixed shape, run again and again: on a GPU each batch size is recorded once and replayed.

A recorded program reads its queries from one place and leaves its answers in another, so a search costs one
copy to the device, one replay and one copy back, whatever the number of operations in it. Batches are padded
to the next recorded size. On the CPU the same program is simply called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.search.fixed import Answers
from genius.search.leaves import Leaves

BUCKETS = (1, 4, 16, 64, 256)
WARM_UPS = 3  # runs before recording: libraries choose and load their kernels in these

Program = Callable[[Tensor, Tensor], Answers]


class _Recorded(NamedTuple):
    z: Tensor  # (bucket, dim), read by the program
    wanted: Tensor  # (bucket, modalities)
    out: Tensor  # (bucket, 2 k + 2) int64, written by it
    run: Callable[[], None]


class Replay:
    """A program for batches of any size, at most `buckets[-1]` at a time; threads take turns."""

    def __init__(
        self,
        program: Program,
        dim: int,
        modalities: int,
        device: torch.device | str,
        *,
        buckets: Sequence[int] = BUCKETS,
        compiled: bool = False,
    ) -> None:
        self.device, self.dim, self.modalities = torch.device(device), dim, modalities
        self.buckets = tuple(sorted(buckets))
        self.program = _compiled(program) if compiled else program
        self._recorded: dict[int, _Recorded] = {}
        self._memory: Any = None
        self._turn = threading.Lock()

    def warm(self) -> Replay:
        """Record every bucket now, the largest first, so that no search has to wait for it."""
        for bucket in reversed(self.buckets):
            with self._turn:
                self._record(bucket)
        return self

    def __call__(self, z: NDArray[Any], wanted: NDArray[np.bool_] | None = None) -> Found:
        """Answers for `z` (batch, dim); `wanted` (batch, modalities) says which modalities may be found."""
        parts = []
        for start in range(0, len(z), self.buckets[-1]):
            part = slice(start, start + self.buckets[-1])
            parts.append(self._run(z[part], None if wanted is None else wanted[part]))
        out = np.concatenate(parts)
        k = (out.shape[1] - 2) // 2
        scores = out[:, k : 2 * k].astype(np.int32).view(np.float32)
        return Found(out[:, :k], scores, out[:, -2], out[:, -1].astype(bool))

    def _run(self, z: NDArray[Any], wanted: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        bucket = next(size for size in self.buckets if size >= len(z))
        with self._turn:
            recorded = self._record(bucket)
            recorded.z[: len(z)].copy_(torch.from_numpy(np.ascontiguousarray(z, dtype=np.float32)))
            recorded.wanted.fill_(True)
            if wanted is not None:
                recorded.wanted[: len(z)].copy_(torch.from_numpy(np.ascontiguousarray(wanted)))
            recorded.run()
            return recorded.out[: len(z)].cpu().numpy().copy()

    @torch.no_grad()
    def _record(self, bucket: int) -> _Recorded:
        if bucket in self._recorded:
            return self._recorded[bucket]
        z = torch.zeros(bucket, self.dim, device=self.device)
        wanted = torch.ones(bucket, self.modalities, dtype=torch.bool, device=self.device)
        k = self.program(z, wanted).positions.shape[1]
        out = torch.zeros(bucket, 2 * k + 2, dtype=torch.long, device=self.device)

        def run() -> None:
            with torch.no_grad():
                answers = self.program(z, wanted)
                bits = answers.scores.contiguous().view(torch.int32).long()
                rest = [answers.leaves.long()[:, None], answers.sure.long()[:, None]]
                out.copy_(torch.cat([answers.positions, bits, *rest], 1))

        recorded = _Recorded(z, wanted, out, self._graph(run) if self.device.type == "cuda" else run)
        self._recorded[bucket] = recorded
        return recorded

    def _graph(self, run: Callable[[], None]) -> Callable[[], None]:
        """The same as one graph; all graphs share their memory, since they take turns."""
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream(self.device).wait_stream(side)
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        # other threads may go on using the device, an encoder for instance
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            run()
        self._memory = self._memory or graph.pool()
        replay: Callable[[], None] = graph.replay
        return replay


def _compiled(program: Program) -> Program:
    """The program with its small operations fused; one that needs the host would be an error."""
    call = cast(Any, program).__call__  # the method: an object is no function to torch
    return cast(Program, torch.compile(call, fullgraph=True, dynamic=False))


class Found(NamedTuple):
    """What a replayed program found, on the host."""

    positions: NDArray[np.int64]  # (batch, k) rising
    scores: NDArray[np.float32]  # (batch, k), -inf where there is none
    leaves: NDArray[np.int64]  # (batch,)
    sure: NDArray[np.bool_]  # (batch,)

    def of(self, query: int, beams: int) -> Leaves:
        """The items of one query."""
        there = self.scores[query] > -np.inf
        touched = int(self.leaves[query])
        return Leaves(self.positions[query][there], self.scores[query][there], beams, touched)
