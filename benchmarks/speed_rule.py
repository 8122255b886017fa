"""Phases of `speed.py` on a GPU: re-ranking in batches, and whether CPU or GPU is faster.

    PYTHONPATH=src python benchmarks/speed.py --device cuda --phases rerank rule --budget 120
    PYTHONPATH=src python benchmarks/speed.py --phases rerank rule --tiny --gpu-phases

Codes, vectors and weights are random. What is timed is the searcher: query vectors in, ranked items out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pools import random_decoder, skewed_codes
from speed_gpu import median_seconds

from genius.decode.model import Decoder
from genius.search.kernel import load_kernel
from genius.search.kernel.build import compile_kernel
from genius.search.options import SearchOptions
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

if TYPE_CHECKING:
    from speed import SpeedOptions

Figures = dict[str, Any]
SIZES, WIDTH = (3, *[256] * 8), 256
ROUNDS_S = 0.2  # seconds that one figure is repeated for
SLOW_S = 1.0  # a call that takes longer is not repeated; a larger batch is left out after a quarter of it


class Pool:
    """Random codes, codebooks and vectors, and searchers of them on the GPU and on the CPU."""

    def __init__(self, args: SpeedOptions, items: int, decoder: Decoder | None = None) -> None:
        rng = np.random.default_rng(0)
        self.books = [
            rng.normal(size=(size, WIDTH)).astype(np.float32) * np.float32(0.7**level)
            for level, size in enumerate(SIZES)
        ]
        codes = skewed_codes(items, SIZES).astype(np.uint8)
        self.segment = TrieSegment(Trie.build(codes, SIZES))
        drawn = rng.integers(0, items, 256)  # queries near items, so that beams are as uneven as real ones
        z = sum(book[codes[drawn, level]] for level, book in enumerate(self.books))
        z = z + rng.normal(size=(256, WIDTH)).astype(np.float32)
        self.z = np.ascontiguousarray(z / np.linalg.norm(z, axis=1, keepdims=True), dtype=np.float32)
        precision = "float32" if args.device == "cpu" else "bfloat16"
        self.searchers = {
            "gpu": Searcher(self.books, decoder, args.device, precision),
            "cpu": Searcher(self.books, decoder, "cpu"),
        }

    def milliseconds(
        self, where: str, options: SearchOptions, batch: int, args: SpeedOptions, **more: Any
    ) -> float:
        """Of one call of the searcher, answers as ranked items included."""
        segment = more.pop("segment", self.segment)
        z, searcher = self.z[:batch], self.searchers[where]
        call = partial(searcher.search, [segment], z, options, phi=z, **more)
        return 1e3 * median_seconds(call, args.device if where == "gpu" else "cpu", ROUNDS_S, slow=SLOW_S)


def _on_gpu(options: dict[str, Any]) -> SearchOptions:
    """Replayed on the GPU whatever the rule says."""
    return SearchOptions(**options, fixed=True)


def rerank(args: SpeedOptions) -> Iterator[Figures]:
    """Lookup re-ranked by vectors, by codes and not at all, in batches; with removals and with a filter."""
    items = 5_000 if args.tiny else 1_000_000
    pool = Pool(args, items)
    vectors = torch.randn(items, WIDTH, device=args.device).half().cpu().numpy()
    rng = np.random.default_rng(1)
    segments = {
        "all items": pool.segment,
        "1,000 removed": pool.segment.without(rng.integers(0, items, 1000)),
        "filter of a half": pool.segment.restricted(rng.random(items) < 0.5),
    }
    figures: Figures = {"items": items, "compiled kernel on the CPU": _has_kernel()}
    for by in ("vectors", "codes"):
        options: dict[str, Any] = {"method": "lookup", "rerank": by, "beam": 50, "k": 10}
        for name, segment in segments.items():
            for where, own in (("gpu", _on_gpu(options)), ("cpu", SearchOptions(**options, fixed=False))):
                for batch in (4,) if args.tiny else (256, 16, 1):
                    if time.perf_counter() > args.deadline:
                        return
                    if batch < 256 and not args.tiny and (name != "all items" or by == "codes"):
                        continue
                    spent = pool.milliseconds(where, own, batch, args, segment=segment, fetch=vectors)
                    figures[f"{by}, {name}, batch {batch}, {where}"] = {
                        "ms": round(spent, 3),
                        "queries_per_s": round(1e3 * batch / spent, 1),
                    }
                    yield figures


def rule(args: SpeedOptions) -> Iterator[Figures]:
    """Milliseconds of a batch on the CPU and on the GPU: `genius.search.placement` has what follows."""
    figures: Figures = {"compiled kernel on the CPU": _has_kernel(), "threads": torch.get_num_threads()}
    decoder = random_decoder("mini", WIDTH, SIZES, prefix=8)
    batches = (1, 4) if args.tiny else (1, 4, 8, 16, 64, 256)
    searches: dict[str, dict[str, Any]] = {
        "lookup, codes": {"method": "lookup", "rerank": "codes", "beam": 50},
        "lookup, not re-ranked": {"method": "lookup", "rerank": "none", "beam": 50},
        "generate, early stop": {"method": "generate", "rerank": "codes", "beam": 50, "stop": 3},
        "generate, full depth": {"method": "generate", "rerank": "none", "beam": 50},
    }
    for items in (2_000, 5_000) if args.tiny else (10_000, 1_000_000):
        pool = Pool(args, items, decoder)
        for name, options in searches.items():
            for where, own in (("gpu", _on_gpu(options)), ("cpu", SearchOptions(**options, fixed=False))):
                row = figures.setdefault(f"{name}, {items:,} items, {where}", {})
                for batch in batches if "lookup" in name else [b for b in batches if b in (1, 8, 64, 256)]:
                    if time.perf_counter() > args.deadline:
                        return
                    row[f"batch {batch}"] = round(pool.milliseconds(where, own, batch, args), 3)
                    yield figures
                    if row[f"batch {batch}"] > 1e3 * SLOW_S / 4:
                        break
        del pool
    figures["least batch that is faster on the GPU"] = _crossings(figures)
    yield figures


def _crossings(figures: Figures) -> dict[str, str]:
    """For each search and pool the least batch from which on the GPU is faster at all that were measured."""
    found: dict[str, str] = {}
    for name, row in figures.items():
        if name.endswith(", gpu"):
            cpu = figures[name.removesuffix("gpu") + "cpu"]
            slower = [batch for batch in row if batch in cpu and row[batch] >= cpu[batch]]
            faster = [batch for batch in row if batch in cpu and row[batch] < cpu[batch]]
            later = [batch for batch in faster if not slower or _number(batch) > max(map(_number, slower))]
            found[name.removesuffix(", gpu")] = min(later, key=_number, default="none")
    return found


def _number(batch: str) -> int:
    return int(batch.removeprefix("batch "))


def _has_kernel() -> bool:
    """Whether lookups on the CPU are compiled; tries to compile them where they are not."""
    if load_kernel() is None and compile_kernel() is None:
        load_kernel.cache_clear()
    return load_kernel() is not None


PHASES: dict[str, Callable[[SpeedOptions], Iterator[Figures]]] = {"rerank": rerank, "rule": rule}
