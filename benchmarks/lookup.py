"""Lookup search beside FAISS, one thread, one query at a time, on the same vectors.

    python benchmarks/lookup.py                                           # benchmarks/results/lookup.json
    python benchmarks/lookup.py --pools 10000 100000 --queries 50 --out -     # a quick look

Lookup: beam 200, stopped after level 0 and 3 codes of 256, the leaves ranked by their codes or by their
float16 vectors; `adaptive` stops by itself. FAISS (pip install genius-search[bench]): HNSW (M 32) and IVF-PQ
(16 bytes a vector), and exact search, from which recall@10 is counted. Times leave out the encoding of the
query. Graphs take minutes to build, so HNSW is left out above `--hnsw-up-to`; vectors do not fit above
`--vectors-up-to`, so there only the time of the lookup is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pools import Pool, quantize, train_codebooks, versions

from genius.search.options import SearchOptions
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

Floats = NDArray[np.float32]
K = 10
CODES = 256
LEVELS = 9
SKETCH_MS = {10_000: 0.4, 100_000: 0.6, 1_000_000: 1.0, 5_600_000: 1.7}  # what had to be matched
WAYS = {
    "lookup, codes": SearchOptions("lookup", "none", beam=200, k=K, stop=4),
    "lookup, vectors": SearchOptions("lookup", "vectors", beam=200, k=K, stop=4),
    "lookup, adaptive, codes": SearchOptions("lookup", "none", beam=200, k=K),
    "lookup, adaptive, vectors": SearchOptions("lookup", "vectors", beam=200, k=K),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pools", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 5_600_000])
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--hnsw-up-to", type=int, default=100_000)
    parser.add_argument("--vectors-up-to", type=int, default=1_000_000)
    parser.add_argument("--out", default="benchmarks/results/lookup.json")
    args = parser.parse_args()
    import faiss
    import torch

    faiss.omp_set_num_threads(1)
    torch.set_num_threads(1)
    source = Pool(args.dim)
    books = train_codebooks(*source.items(50_000), LEVELS, CODES, 0)
    parts = source.chunks(max(args.pools))
    codes = np.concatenate([quantize(x, modality, books) for x, modality in parts])
    z = source.queries(args.queries)
    result: dict[str, Any] = {
        "command": " ".join(["python benchmarks/lookup.py", *sys.argv[1:]]),
        "versions": {**versions(), "faiss": faiss.__version__, "dim": args.dim},
        "recall": f"share of the {K} exact neighbours found",
    }
    for items in args.pools:
        x = source.items(items)[0] if items <= args.vectors_up_to else None
        figures = ours(Searcher(books), codes[:items], z, x)
        if x is not None:
            figures |= others(x, z, hnsw=items <= args.hnsw_up_to)
            truth = figures["exact"].pop("found")
            for row in figures.values():
                if "found" in row:
                    row["recall"] = round(recall(row.pop("found"), truth), 4)
        for row in figures.values():
            row.pop("found", None)
        result[f"{items} items"] = figures
        if items in SKETCH_MS:
            figures["sketch to match"] = {"ms": SKETCH_MS[items]}
    text = json.dumps(result, indent=2)
    print(text)
    if args.out != "-":
        Path(args.out).write_text(text + "\n")


def ours(searcher: Searcher, codes: NDArray[np.uint16], z: Floats, x: Floats | None) -> dict[str, Any]:
    """Every way of ours to search these codes; the vectors, if any, serve to re-rank."""
    begin = time.process_time()
    trie = Trie.build(codes, searcher.codebooks.sizes)
    built = time.process_time() - begin
    vectors = None if x is None else x.astype(np.float16)
    pool, figures = [TrieSegment(trie)], {}
    for name, options in WAYS.items():
        if vectors is None and options.rerank == "vectors":
            continue
        ask = partial(_ask, searcher, pool, options, vectors)
        taken, found = one_by_one(ask, z)
        stored = trie.nbytes / trie.items
        if vectors is not None and options.rerank == "vectors":
            stored += vectors.nbytes / len(vectors)
        figures[name] = {
            **taken,
            "bytes_per_item": round(stored, 2),
            "build_processor_seconds": round(built, 2),
            "leaves": round(float(np.mean([answer.leaves for answer in found]))),
            "found": [answer.rows for answer in found],
        }
    return figures


def _ask(searcher: Searcher, pool: list[TrieSegment], options: SearchOptions, vectors: Any, z: Floats) -> Any:
    return searcher.search(pool, z, options, phi=z, fetch=vectors)[0]


def others(x: Floats, z: Floats, hnsw: bool) -> dict[str, Any]:
    """FAISS's indexes over the same vectors."""
    import faiss

    dim = x.shape[1]
    kinds: dict[str, tuple[Any, float]] = {"exact": (faiss.IndexFlatIP(dim), 4 * dim)}
    if hnsw:
        graph = faiss.IndexHNSWFlat(dim, 32, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efSearch = 64
        kinds["faiss hnsw"] = (graph, 4 * dim + 2 * 32 * 4)
    lists = int(2 * len(x) ** 0.5)
    index = faiss.IndexIVFPQ(faiss.IndexFlatIP(dim), dim, lists, 16, 8, faiss.METRIC_INNER_PRODUCT)
    index.nprobe = 16
    index.cp.niter = 10
    kinds["faiss ivf-pq"] = (index, 16 + 8)
    figures: dict[str, Any] = {}
    for name, (index, stored) in kinds.items():
        begin = time.process_time()
        if not index.is_trained:
            index.train(x[:100_000])
        index.add(x)
        built = time.process_time() - begin
        taken, found = one_by_one(partial(_nearest, index), z)
        figures[name] = {
            **taken,
            "bytes_per_item": stored,
            "build_processor_seconds": round(built, 2),
            "found": found,
        }
    return figures


def _nearest(index: Any, z: Floats) -> NDArray[np.int64]:
    return np.asarray(index.search(z, K)[1][0])


def one_by_one(ask: Callable[[Floats], Any], z: Floats) -> tuple[dict[str, float], list[Any]]:
    """Milliseconds a query (median by the clock, mean of the processor), and the answers."""
    for number in range(3):
        ask(z[number : number + 1])
    taken, found = [], []
    busy = time.process_time()
    for number in range(len(z)):
        begin = time.perf_counter()
        found.append(ask(z[number : number + 1]))
        taken.append(1000 * (time.perf_counter() - begin))
    busy = 1000 * (time.process_time() - busy) / len(z)
    return {"ms": round(float(np.median(taken)), 3), "processor_ms": round(busy, 3)}, found


def recall(found: list[Any], truth: list[Any]) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, truth, strict=True)]))


if __name__ == "__main__":
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":  # read when NumPy is imported: begin again
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"OPENBLAS_NUM_THREADS": "1"})
    main()
