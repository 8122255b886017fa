"""What the durable store costs: adding, compacting, opening, the first look at it, and bytes per item.

    python benchmarks/store.py                                    # benchmarks/results/store.json
    python benchmarks/store.py --items 20000 --out -              # a quick look

Random codes (level 0 and 8 levels of 256) and random unit vectors of width 512; encoding is not part of it
(benchmarks/ingest.py splits the time of real photos into reading, encoding, quantizing and storing).
`open_ms` is what a new process pays before its first search, model aside: SQLite opened, trie and codes
mapped and their checksums verified; vectors are verified where they are read. `disk_bytes_per_item` is what
lies in the folder (the truth has codes and vectors too, with ids and paths), `memory_bytes_per_item` what a
search maps: the codes are all touched, of the vectors only the leaves'.
"""

from __future__ import annotations

import math
import sqlite3
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Timer, run, seconds, versions

from genius.query.view import PoolView
from genius.store.check import check
from genius.store.index import Index
from genius.store.records import Record
from genius.store.stats import stats
from genius.types import Modality

SIZES = (3, *(256,) * 8)
DIM = 512


def records(start: int, count: int, vectors: bool) -> list[Record]:
    noise = np.random.default_rng(start)
    codes = noise.integers(0, 256, (count, len(SIZES))).astype(np.uint16)
    codes[:, 0] %= 3
    phi = noise.standard_normal((count, DIM), dtype=np.float32)
    half = (phi / np.linalg.norm(phi, axis=1, keepdims=True)).astype(np.float16)
    return [
        Record(
            f"photos/{start + n:08d}.jpg",
            list(Modality)[codes[n, 0]],
            codes[n],
            half[n] if vectors else None,
            path=f"/data/photos/{start + n:08d}.jpg",
            hash=bytes(32),
        )
        for n in range(count)
    ]


def measure(folder: Path, items: int, batch: int, vectors: bool) -> dict[str, Any]:
    Index.create(folder, model="none", fingerprint="0" * 64, sizes=SIZES, dim=DIM, vectors=vectors)
    with Index.open(folder) as index:
        parts = (records(start, min(batch, items - start), vectors) for start in range(0, items, batch))
        adding = sum(seconds(partial(index.add, part)) for part in parts)
        compacting = seconds(index.compact)
    with Timer() as opening:
        index = Index.open(folder)
        PoolView(index.snapshot())
    with index:
        new = records(items, 1, vectors)
        one = seconds(lambda: index.add(new))
        with Timer() as refresh:
            view = PoolView(index.snapshot())
        removing = seconds(lambda: index.remove([f"photos/{n:08d}.jpg" for n in range(100)]))
        if vectors:
            view.vectors(np.random.default_rng(0).integers(0, items, 400))
        used = stats(index)["bytes"]
        generation = index.snapshot().generation
        mapped = {
            "codes": sum(array.nbytes for array in generation.arrays.values()),
            "vectors": sum(math.prod(large.shape) * 2 for large in generation.large.values()),
        }
    with Timer() as checking:
        assert check(folder).clean
    return {
        "vectors": vectors,
        "batch": batch,
        "add_items_per_s": round(items / adding),
        "compact_s": round(compacting, 2),
        "open_ms": round(1000 * opening.seconds, 1),
        "add_one_ms": round(1000 * one, 2),
        "see_it_ms": round(1000 * refresh.seconds, 2),
        "remove_100_ms": round(1000 * removing, 2),
        "check_s": round(checking.seconds, 1),
        "disk_bytes_per_item": {name: round(size / items, 1) for name, size in used.items()},
        "memory_bytes_per_item": {name: round(size / items, 1) for name, size in mapped.items()},
    }


def main(items: int = 100_000) -> dict[str, Any]:
    rows = []
    for batch, vectors in ((64, True), (1024, True), (1024, False)):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(Path(folder) / "index", items, batch, vectors))
    return {"items": items, "versions": {**versions(), "sqlite": sqlite3.sqlite_version}, "rows": rows}


if __name__ == "__main__":
    run(main)
