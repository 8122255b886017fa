"""FAISS's side of `kernel.py`: in a process of its own, rivals are built or read, and timed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.evaluate.baselines.faiss import load_faiss

RIVALS: dict[str, tuple[str, tuple[int, ...]]] = {  # what FAISS calls it, values of its search parameter
    "hnsw": ("HNSW32", (8, 10, 12, 14, 16, 20, 24, 28, 32, 48)),
    "ivf-pq": ("OPQ16_256,IVF{lists},PQ16", (1, 2, 4, 8, 16, 32, 64)),
    "ivf-pq fast-scan": ("OPQ32_256,IVF{lists},PQ32x4fs", (1, 2, 4, 8, 16, 32, 64)),
    "ivf-rabitq": ("RR{dim},IVF{lists},RaBitQ", (1, 2, 4, 8, 16, 32, 64)),
    "ivf-rabitq 16 bytes": ("PCAR64,IVF{lists},RaBitQ", (1, 2, 4, 8, 16, 32, 64)),  # 64 bits and two floats
}
TRAINED = 40  # vectors to learn from, for each list
ITERATIONS = 8  # of k-means and of the rotation: more take long and gain little
_built: dict[str, Any] = {}


def build(name: str, x_file: Path, folder: Path) -> dict[str, float]:
    """Build a rival on the vectors of a file, or read it from the folder; its processor seconds."""
    faiss = load_faiss()
    faiss.omp_set_num_threads(1)
    file = folder / f"{name.replace(' ', '-')}-{x_file.stem}.faiss"
    figures = file.with_suffix(".json")
    if not figures.exists():
        x = np.load(x_file)
        items = len(x)
        lists = max(1, min(int(2 * items**0.5), items // 39))
        description = RIVALS[name][0].format(lists=lists, dim=x.shape[1])
        metric = faiss.METRIC_INNER_PRODUCT if name == "hnsw" else faiss.METRIC_L2  # the same on unit vectors
        start = time.process_time()
        index = faiss.index_factory(x.shape[1], description, metric)
        if name == "hnsw":
            index.hnsw.efConstruction = 100
        else:
            faiss.extract_index_ivf(index).cp.niter = ITERATIONS
            rotation = faiss.downcast_VectorTransform(index.chain.at(0))
            if "OPQ" in description:
                rotation.niter = ITERATIONS
            index.train(x[np.random.default_rng(0).permutation(items)[: TRAINED * lists]])
        index.add(x)
        seconds = time.process_time() - start
        faiss.write_index(index, str(file))
        size = file.stat().st_size / len(x)
        figures.write_text(json.dumps({"build_seconds": round(seconds, 1), "bytes_per_item": round(size, 1)}))
    _built[name] = faiss.read_index(str(file))
    return dict(json.loads(figures.read_text()))


def search(name: str, value: int, z: NDArray[np.float32], k: int) -> tuple[float, NDArray[np.int64]]:
    """Processor milliseconds per query, asked one at a time, and the rows found."""
    faiss = load_faiss()
    parameter = "efSearch" if name == "hnsw" else "nprobe"
    faiss.ParameterSpace().set_index_parameter(_built[name], parameter, value)
    index = _built[name]
    start = time.process_time()
    found = [index.search(query[None], k)[1][0] for query in z]
    return 1000 * (time.process_time() - start) / len(z), np.stack(found)
