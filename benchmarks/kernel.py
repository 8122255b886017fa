"""Lookup by cells beside FAISS: one thread, one run, the systems take turns; time at equal recall.

    python benchmarks/kernel.py --cache FOLDER --features FEATURES/clip_vitb16
    python benchmarks/kernel.py --items 3000 --rounds 2 --out -      # in seconds, to see that it works

The pools are synthetic, 100,000 and 1,000,000 items, and CLIP's vectors of the benchmark's photos. Codes are
those of `genius fit`, 15 bytes: one for the modality, then 14 of 256 codes. FAISS is searched in a process of
its own. A time is that of the processor per query, asked one at a time: median, least and most of the rounds.
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
from numpy.typing import NDArray
from pools import SyntheticPool, recall_at

from genius.quantize.fit import fit_quantizer
from genius.search.kernel import CompiledCells
from genius.search.options import Rerank, SearchOptions
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

Floats = NDArray[np.float32]
Figures = dict[str, Any]
DIM, K, QUERIES = 256, 10, 200
BEAMS = (60, 80, 100, 120, 150, 200, 250, 300, 350, 400, 500, 600, 800, 1000)
VECTORS = [(beam, reranked, leaves) for beam in BEAMS for reranked in (30, 40, 60) for leaves in (8, 32)]
CODES = [(beam, reranked, 32) for beam in (10, 20, 40, 80, 160, 320, 640) for reranked in (10, 14, 20)]
OURS: dict[Rerank, list[tuple[int, int, int]]] = {"vectors": VECTORS, "codes": CODES}
RECALLS = (0.95, 0.98)


def main(
    items: list[int] | None = None,
    cache: Path | None = None,
    features: Path | None = None,
    rivals: list[str] | None = None,
    rounds: int = 15,
) -> Iterator[Figures]:
    torch.set_num_threads(1)
    names = list(kernel_faiss.RIVALS) if rivals is None else rivals
    figures: Figures = {"rounds": rounds, "queries": QUERIES}
    with tempfile.TemporaryDirectory() as made:
        folder = cache or Path(made)
        for count in items or [100_000, 1_000_000]:
            figures[f"synthetic, {count:,} items"] = _compare(_synthetic(count, folder), names, rounds)
            yield figures
        if features is not None:
            pool = _photos(features, folder)
            figures[f"photos, {len(pool.x):,} items"] = _compare(pool, names, rounds)
            yield figures


class Pool:
    """Vectors with codes, and queries with their nearest items; a folder keeps what takes long to make."""

    def __init__(self, x: Floats, modality: NDArray[np.uint8], z: Floats, name: str, folder: Path) -> None:
        self.x, self.z, self.folder, made = x, z, folder, folder / f"{name}.npz"
        self.file = folder / f"{name}.npy"
        if not made.exists():
            np.save(self.file, x)
            quantizer = fit_quantizer(torch.from_numpy(x), torch.from_numpy(modality).long())
            codes = quantizer.codes_of(x, modality).astype(np.uint8)
            books = [book.numpy() for book in quantizer.residual.codebooks()]
            truth = [_nearest(x @ query) for query in z]
            np.savez(made, codes=codes, books=np.concatenate(books), sizes=quantizer.sizes, truth=truth)
        kept = np.load(made)
        self.codes, self.truth = kept["codes"], kept["truth"]
        self.books = np.split(kept["books"], np.cumsum(kept["sizes"])[:-1])


def _nearest(scores: Floats) -> NDArray[np.int64]:
    best = np.argpartition(-scores, K)[: K + 1]
    return np.asarray(best[np.argsort(-scores[best], kind="stable")][:K])


def _synthetic(items: int, folder: Path) -> Pool:
    source = SyntheticPool(DIM)
    return Pool(*source.items(items), source.queries(QUERIES), f"synthetic-{items}", folder)


def _photos(features: Path, folder: Path) -> Pool:
    """CLIP's vectors of the benchmark's photos; some of them, taken out, are the queries."""
    from safetensors.numpy import load_file

    table = load_file(features.with_suffix(".safetensors"))["image_embeds"].astype(np.float32)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    order = np.random.default_rng(0).permutation(len(table))
    z, x = table[order[:QUERIES]], table[order[QUERIES:]]
    return Pool(x, np.zeros(len(x), dtype=np.uint8), z, f"photos-{len(x)}", folder)


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
        stored = (self.trie.nbytes + cells.nbytes) / self.trie.items
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
