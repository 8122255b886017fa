"""Lookup by codes in 10 million, 100 million and a billion synthetic items, on a CPU and on a GPU beside it.

    PYTHONPATH=src python benchmarks/billion.py --cache runs/pool      # 128 GB of memory; half an hour
    python benchmarks/billion.py --sizes 100000 1000000 --queries 16   # to see that it works

Codes have the 15 levels of `mini`; they are those of a million quantized synthetic items, recombined. Each
pool is built in bounded passes by all cores, and searched by one thread. `recall` is the share of the first
10 whose score (similarity, or cosine where codes re-rank) is at least that of the 10th best item when all
codes are compared. Lengths of items are computed when a query first meets them: `ms` is that of queries
which were not asked before, `ms_again` when they are asked again. On a machine with a GPU all codes are
compared there, and the pool is searched there too, in batches. Writes benchmarks/results/billion.json after
each size.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: a query's products are small

import resource
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _harness import Timer, run
from numpy.typing import NDArray
from pools import QuantizedPool, multiply_codes
from speed_cpu import timed
from speed_gpu import median_seconds

from genius.search.codebooks import Codebooks
from genius.search.gpu.fixed_lookup import FixedLookup
from genius.search.gpu.fixed_trie import FixedTrie
from genius.search.gpu.replay import GraphReplay
from genius.search.gpu.steps import choose_shape
from genius.search.options import SearchOptions
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

Floats = NDArray[np.float32]
DIM, LEVELS, K = 256, 15, 10
BASE = 1_000_000  # items that are quantized
SIZES = [10_000_000, 100_000_000, 1_000_000_000]
AT_ONCE = 1 << 20  # items compared at once
EQUAL = 1e-4  # scores that differ by less are equal: they are sums in another order


def main(
    sizes: list[int] = SIZES,
    base: int = BASE,
    queries: int = 256,
    compared: int = 16,
    beam: int = 200,
    cache: Path | None = None,
) -> Iterator[Mapping[str, Any]]:
    """Figures by size; `compared` queries are compared with all codes."""
    torch.set_num_threads(1)
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
    pool = QuantizedPool(DIM, base < BASE, cache, LEVELS)
    few, z = pool.codes(base), pool.source.queries(queries)
    codebooks, device = Codebooks(pool.codebooks), "cuda" if torch.cuda.is_available() else "cpu"
    found: dict[str, Any] = {}
    result: dict[str, Any] = {"levels": LEVELS, "beam": beam, "sizes": found}
    if device == "cuda":
        result["device"] = torch.cuda.get_device_name()
    for items in sizes:
        with Timer() as making:
            codes = multiply_codes(few, items)
        truth = _tenth_best(codes, codebooks, z[:compared], device)
        before = _resident_bytes()
        with Timer() as build:
            trie = Trie.build(codes, pool.sizes)
        row: dict[str, Any] = {
            "codes_made_seconds": round(making.seconds, 1),
            "build_seconds": round(build.seconds, 1),
            "build_bytes_per_item_beside_the_codes": round((_peak_bytes() - before) / items, 1),
            "bytes_per_item": round(trie.nbytes / items, 2),
            "tree_levels": trie.tree_levels,
            "cpu": {},
        }
        found[str(items)] = row
        del codes
        yield result
        searcher, segments = Searcher(pool.codebooks), [TrieSegment(trie)]
        for name, options in _searches(beam).items():
            row["cpu"][name] = _on_cpu(partial(searcher.search, segments), z, options, truth)
        yield result
        if device == "cuda":
            row["gpu"] = _on_gpu(trie, codebooks, z, beam)
            yield result
        del trie, searcher, segments
    smallest, largest = found[str(sizes[0])], found[str(sizes[-1])]
    result["largest over smallest"] = {
        name: {
            key: round(largest["cpu"][name][key] / smallest["cpu"][name][key], 3)
            for key in ("ms", "ms_again")
        }
        for name in _searches(beam)
    }
    yield result


def _searches(beam: int) -> dict[str, SearchOptions]:
    return {
        "lookup, codes": SearchOptions("lookup", "codes", beam=beam, k=K),
        "lookup, codes, 4 times the beam": SearchOptions("lookup", "codes", beam=4 * beam, k=K),
        "lookup": SearchOptions("lookup", "none", beam=beam, k=K),
        "lookup, 4 times the beam": SearchOptions("lookup", "none", beam=4 * beam, k=K),
    }


def _on_cpu(search: Any, z: Floats, options: SearchOptions, truth: Mapping[str, Floats]) -> dict[str, Any]:
    """Processor milliseconds of a query, asked one at a time, and the recall."""
    search(z[:1], options)  # makes tables, and cells
    with Timer() as timer:
        answers = [search(query[None], options)[0] for query in z]
    again, _ = timed(lambda part: search(part, options), z)
    own = zip(answers, truth[options.rerank], strict=False)
    shares = [np.mean(np.asarray(a.scores[:K]) >= least - EQUAL) for a, least in own]
    return {
        "ms": round(1000 * timer.processor / len(z), 4),
        "ms_again": again,
        "leaves": round(float(np.mean([a.leaves for a in answers]))),
        "recall": round(float(np.mean(shares)), 4),
    }


def _on_gpu(trie: Trie, codebooks: Codebooks, z: Floats, beam: int) -> dict[str, Any]:
    """Queries a second in batches, answers on the host included."""
    with Timer() as moving:
        fixed = FixedTrie(trie, codebooks, "cuda")
    program = FixedLookup(fixed, codebooks, choose_shape(fixed, beam, K, 8), cosine=True)
    figures: dict[str, Any] = {
        "to_the_gpu_seconds": round(moving.seconds, 1),
        "gpu_bytes_per_item": round(torch.cuda.memory_allocated() / trie.items, 1),
    }
    for batch in (1, 64, 256):
        part = np.resize(z, (batch, z.shape[1]))
        replay = GraphReplay(program, z.shape[1], 3, "cuda", batch_sizes=(batch,)).warm()
        spent = median_seconds(partial(replay, part), "cuda")
        figures[f"lookup, codes, batch {batch}"] = {
            "ms": round(1000 * spent, 3),
            "queries_per_s": round(batch / spent, 1),
        }
    return figures


@torch.no_grad()
def _tenth_best(codes: NDArray[np.uint8], codebooks: Codebooks, z: Floats, device: str) -> dict[str, Floats]:
    """The similarity, and the cosine, of each query's 10th best item, all codes compared."""
    queries = torch.from_numpy(z).to(device)
    vectors = torch.from_numpy(codebooks.vectors).to(device)
    first = torch.tensor([level.start for level in codebooks.levels], device=device)
    best = {by: torch.full((len(z), K), -torch.inf, device=device) for by in ("none", "codes")}
    for start in range(0, len(codes), AT_ONCE):
        rows = torch.from_numpy(codes[start : start + AT_ONCE]).to(device).long() + first
        sums = torch.nn.functional.embedding_bag(rows, vectors, mode="sum")
        scores = queries @ sums.T
        for by, own in (("none", scores), ("codes", scores / sums.norm(dim=1))):
            known = torch.cat([best[by], own.topk(min(K, own.shape[1])).values], 1)
            best[by] = known.topk(K).values
    return {by: np.asarray(found[:, -1].cpu().numpy()) for by, found in best.items()}


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _resident_bytes() -> int:
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


if __name__ == "__main__":
    run(main)
