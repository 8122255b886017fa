"""Runs a program of fixed shape for batches of any size; on a GPU recorded once per size, then replayed.

A recorded program reads its queries from one buffer and writes its candidates to another, so a search costs
one copy to the device, one replay and one copy back, however many operations it has. Batches are padded to
the next recorded size. On the CPU the same program is simply called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.search.candidates import Candidates
from genius.search.gpu.steps import CandidateTensors

BATCH_SIZES = (1, 4, 16, 64, 256)
WARM_UPS = 3  # runs before recording, in which libraries choose and load their kernels

Program = Callable[[Tensor, Tensor], CandidateTensors]


class CandidateArrays(NamedTuple):
    """The candidates of a batch, on the host."""

    positions: NDArray[np.int64]  # (batch, k) ascending, or in the order of the scores
    scores: NDArray[np.float32]  # (batch, k), -inf in the padding
    leaves: NDArray[np.int64]  # (batch,) items under the beams
    exact: NDArray[np.bool_]  # (batch,) whether the beams are those of the plain search

    def of_query(self, query: int, beams: int) -> Candidates:
        """The candidates of one query, if positions ascend."""
        valid = self.scores[query] > -np.inf
        leaves = int(self.leaves[query])
        return Candidates(self.positions[query][valid], self.scores[query][valid], beams, leaves)


class _Recording(NamedTuple):
    z: Tensor  # (batch, dim), read by the program
    modalities: Tensor  # (batch, codes of level 0), read by it
    out: Tensor  # (batch, 2 k + 2) int32, written by it
    host: Tensor  # the same in memory that the device can write to
    run: Callable[[], None]


class GraphReplay:
    """A program for batches of any size, at most `batch_sizes[-1]` at a time; one thread at a time.

    With `ranked`, the best candidates come first, and of equal ones the lower position.
    """

    def __init__(
        self,
        program: Program,
        dim: int,
        modalities: int,
        device: torch.device | str,
        *,
        batch_sizes: Sequence[int] = BATCH_SIZES,
        compiled: bool = False,
        ranked: bool = False,
    ) -> None:
        self.device, self.dim, self.modalities = torch.device(device), dim, modalities
        self.batch_sizes, self.ranked = tuple(sorted(batch_sizes)), ranked
        self.program = _compiled(program) if compiled else program
        self._recordings: dict[int, _Recording] = {}
        self._memory_pool: Any = None
        self._lock = threading.Lock()

    def warm(self) -> GraphReplay:
        """Record every batch size now, the largest first, so that no search has to wait for it."""
        for size in reversed(self.batch_sizes):
            with self._lock:
                self._record(size)
        return self

    def __call__(self, z: NDArray[Any], modalities: NDArray[np.bool_] | None = None) -> CandidateArrays:
        """Candidates for `z` (batch, dim); `modalities` (batch, n) says which codes of level 0 count."""
        parts = []
        for start in range(0, len(z), self.batch_sizes[-1]):
            part = slice(start, start + self.batch_sizes[-1])
            parts.append(self._run(z[part], None if modalities is None else modalities[part]))
        out = parts[0] if len(parts) == 1 else np.concatenate(parts)
        k = (out.shape[1] - 2) // 2
        return CandidateArrays(
            positions=out[:, :k].astype(np.int64),
            scores=out[:, k : 2 * k].view(np.float32),
            leaves=out[:, -2].astype(np.int64),
            exact=out[:, -1].astype(bool),
        )

    def _run(self, z: NDArray[Any], modalities: NDArray[np.bool_] | None) -> NDArray[np.int32]:
        size = next(size for size in self.batch_sizes if size >= len(z))
        with self._lock:
            recording = self._record(size)
            recording.z[: len(z)].copy_(torch.from_numpy(np.ascontiguousarray(z, dtype=np.float32)))
            recording.modalities.fill_(True)
            if modalities is not None:
                recording.modalities[: len(z)].copy_(torch.from_numpy(np.ascontiguousarray(modalities)))
            recording.run()
            if self.device.type == "cuda":
                recording.host.copy_(recording.out, non_blocking=True)
                torch.cuda.current_stream(self.device).synchronize()
            return recording.host[: len(z)].numpy().copy()

    @torch.no_grad()
    def _record(self, size: int) -> _Recording:
        if size in self._recordings:
            return self._recordings[size]
        # `run` must not hold self: such a cycle would keep GPU memory for long
        program, ranked = self.program, self.ranked
        z = torch.zeros(size, self.dim, device=self.device)
        modalities = torch.ones(size, self.modalities, dtype=torch.bool, device=self.device)
        k = program(z, modalities).positions.shape[1]
        out = torch.zeros(size, 2 * k + 2, dtype=torch.int32, device=self.device)

        def run() -> None:
            with torch.no_grad():
                found = program(z, modalities)
                positions, scores = found.positions, found.scores
                if ranked:
                    scores, order = scores.sort(dim=1, descending=True, stable=True)
                    positions = positions.gather(1, order)
                out[:, :k], out[:, k : 2 * k] = positions, scores.contiguous().view(torch.int32)
                out[:, -2], out[:, -1] = found.leaves, found.exact

        recorded = self._capture(run) if self.device.type == "cuda" else run
        host = torch.empty(out.shape, dtype=out.dtype, pin_memory=True) if out.is_cuda else out
        self._recordings[size] = _Recording(z, modalities, out, host, recorded)
        return self._recordings[size]

    def _capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """The same as one CUDA graph; all graphs share their memory, since only one runs at a time."""
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream(self.device).wait_stream(side)
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        # thread_local: other threads can go on using the device, an encoder for instance
        with torch.cuda.graph(graph, pool=self._memory_pool, capture_error_mode="thread_local"):
            run()
        self._memory_pool = self._memory_pool or graph.pool()
        replay: Callable[[], None] = graph.replay
        return replay


def _compiled(program: Program) -> Program:
    """The program with its small operations fused; copying a value to the host would be an error."""
    call = cast(Any, program).__call__  # torch compiles functions and methods, not objects
    return cast(Program, torch.compile(call, fullgraph=True, dynamic=False))
