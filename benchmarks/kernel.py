"""Lookup by cells beside FAISS: one thread, one run, the systems take turns; time at equal recall.

    python benchmarks/kernel.py --cache FOLDER --features FEATURES/clip_vitb16
    python benchmarks/kernel.py --items 3000 --rounds 2 --out -      # in seconds, to see that it works

The pools (`kernel_pools.py`) are synthetic, 100,000 and 1,000,000 items, CLIP's vectors of the benchmark's
photos, and a million items made from these. Codes are fitted as by `genius fit`, but with one set of
codebooks for all modalities: 15 bytes, one for the modality, then 14 of 256 codes. FAISS is searched in a
process of its own. A time is that of the processor per query, asked one at a time: median, least and most of
the rounds. Bytes are all that a search reads, codebooks and centroids included.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: a query's products are small

import kernel_faiss
import numpy as np
import torch
from _harness import Timer, run, spread
from kernel_pools import QUERIES, K, Pool, made_photos, photos, synthetic
from pools import recall_at

from genius.search.kernel import CompiledCells
from genius.search.options import Rerank, SearchOptions
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

Figures = dict[str, Any]
BEAMS = (100, 150, 200, 250, 300, 350, 400, 500, 600, 800, 1000, 1500)
RERANKED = (40, 60, 100, 200, 400)
VECTORS = [(beam, reranked, leaves) for beam in BEAMS for reranked in RERANKED for leaves in (8, 32)]
FEW = [beam << step for step in range(9) for beam in (10, 14)]
CODES = [(beam, reranked, leaves) for beam in FEW for reranked in (10, 14, 20) for leaves in (8, 32)]
OURS: dict[Rerank, list[tuple[int, int, int]]] = {"vectors": VECTORS, "codes": CODES}
RECALLS = (0.95, 0.98)


def main(
    items: list[int] | None = None,
    cache: Path | None = None,
    features: Path | None = None,
    made: int = 1_000_000,
    rivals: list[str] | None = None,
    rounds: int = 15,
) -> Iterator[Figures]:
    torch.set_num_threads(1)
    names = list(kernel_faiss.RIVALS) if rivals is None else rivals
    figures: Figures = {"rounds": rounds, "queries": QUERIES}
    with tempfile.TemporaryDirectory() as temporary:
        folder = cache or Path(temporary)
        pools: dict[str, Callable[[], Pool]] = {
            f"synthetic, {count:,} items": partial(synthetic, count, folder)
            for count in items or [100_000, 1_000_000]
        }
        if features is not None:
            pools["photos"] = partial(photos, features, folder)
            pools[f"made from photos, {made:,} items"] = partial(made_photos, features, made, folder)
        for name, make in pools.items():
            pool = make()
            label = name if "items" in name else f"{name}, {len(pool.x):,} items"
            figures[label] = pool.about | _compare(pool, names, rounds)
            del pool
            yield figures


def _compare(pool: Pool, rivals: list[str], rounds: int) -> Figures:
    """All systems on one pool."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as faiss:
        built: Figures = {}
        calls: dict[tuple[str, str], Callable[[], tuple[float, Any]]] = {}
        for name in rivals:
            built[name] = faiss.submit(kernel_faiss.build, name, pool.file, pool.folder).result()
            for value in kernel_faiss.RIVALS[name][1]:
                ask = partial(faiss.submit, kernel_faiss.search, name, value, pool.z, K)
                calls[name, f"{value}"] = lambda ask=ask: ask().result()  # type: ignore[misc]
        ours = OurSearch(pool)
        built |= ours.built
        for by, settings in OURS.items():
            name = f"lookup, {by}"
            for beam, reranked, leaves in settings:
                options = SearchOptions("lookup", by, beam=beam, k=K, reranked=reranked, leaves=leaves * beam)
                setting = f"beam {beam}, {reranked} re-ranked, {leaves} leaves a beam"
                calls[name, setting] = partial(ours.timed, options)
        times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
        found: dict[tuple[str, str], Any] = {}
        for _ in range(rounds):
            for key, call in calls.items():
                spent, found[key] = call()
                times[key].append(spent)
    points: Figures = {name: {} for name, _ in calls}
    for (name, setting), spent_in_rounds in times.items():
        recall = recall_at(K, found[name, setting], pool.truth)
        points[name][setting] = {"ms": spread(spent_in_rounds, 4), "recall": recall}
    return {"systems": built, "at equal recall": _at_equal_recall(points, times, built), "points": points}


class OurSearch:
    """The searcher on one pool, with all lengths known."""

    def __init__(self, pool: Pool) -> None:
        self.z, self.vectors = pool.z, pool.x.astype(np.float16)
        self.searcher = Searcher(pool.books)
        with Timer() as building:
            self.trie = Trie.build(pool.codes, self.searcher.codebooks.sizes)
        with Timer() as preparing:
            found = self.searcher.cells.cells(self.trie)
            cells = found.cells if isinstance(found, CompiledCells) else found
            for start in range(0, self.trie.items, 1 << 16):
                cells.learn_lengths(self.trie, np.arange(start, min(start + (1 << 16), self.trie.items)))
        stored = (self.trie.nbytes + found.nbytes) / self.trie.items
        own = {
            "compiled": isinstance(found, CompiledCells),
            "build_seconds": round(building.processor + preparing.processor, 1),
            "bytes_per_item": round(stored, 1),
        }
        vectors = own | {"bytes_per_item": round(stored + self.vectors.nbytes / self.trie.items, 1)}
        self.built = {"lookup, vectors": vectors, "lookup, codes": own}

    def timed(self, options: SearchOptions) -> tuple[float, Any]:
        """Processor milliseconds per query, asked one at a time, and the rows found."""
        segments, search = [TrieSegment(self.trie)], self.searcher.search
        queries = [self.z[number : number + 1] for number in range(len(self.z))]
        with Timer() as timer:
            found = [search(segments, one, options, phi=one, fetch=self.vectors)[0].rows for one in queries]
        return 1000 * timer.processor / len(queries), found


def _at_equal_recall(points: Figures, times: dict[tuple[str, str], list[float]], built: Figures) -> Figures:
    """Lookup's time over its rivals': by vectors at fixed recalls, by codes at each setting of theirs."""
    found: Figures = {}

    def compared(own: str, rival: str, setting: str, recall: float) -> Figures:
        fastest = _fastest(points[own], recall)
        if fastest is None:
            return {"recall": recall, "lookup": "none reaches it"}
        pairs = zip(times[own, fastest], times[rival, setting], strict=True)
        ratios = spread([one / other for one, other in pairs])
        return {"recall": recall, "lookup": fastest, rival: setting, "time": ratios}

    for recall in RECALLS:
        other = _fastest(points["hnsw"], recall) if "hnsw" in points else None
        if other is not None:
            row = compared("lookup, vectors", "hnsw", other, recall)
            row["bytes"] = round(_bytes(built, "lookup, vectors") / _bytes(built, "hnsw"), 3)
            found[f"lookup, vectors over hnsw, recall {recall}"] = row
    for name in points:
        if name.startswith("ivf"):
            found[f"lookup, codes over {name}, by nprobe"] = {
                setting: compared("lookup, codes", name, setting, point["recall"])
                for setting, point in points[name].items()
            }
    return found


def _bytes(built: Figures, name: str) -> float:
    return float(built[name]["bytes_per_item"])


def _fastest(points: Figures, recall: float) -> str | None:
    """The setting with the least median time of those with such a recall."""
    reaching = [name for name, point in points.items() if point["recall"] >= recall]
    return min(reaching, key=lambda name: points[name]["ms"]["median"]) if reaching else None


if __name__ == "__main__":
    run(main)
