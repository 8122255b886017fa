"""Bytes per item and seconds to build a trie, in memory and on disk.

    python benchmarks/trie.py                                  # 5.6 M items, benchmarks/results/trie.json
    python benchmarks/trie.py --items 300000 --out -           # a quick look

Codes are random with a skew: level 0 has 3, the 8 other levels 256 or 4096 codes. Promised for 5.6 M items:
at most 10 (256 codes) and 16 bytes (4096) per item, codes included, built in under 15 s.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Timer, run
from pools import skewed_codes

from genius.search.trie import Trie

LEVELS = 9
VECTOR_BYTES = 2 * 768  # a float16 vector of CLIP ViT-L/14, for comparison


def main(items: int = 5_600_000) -> dict[str, Any]:
    result: dict[str, Any] = {"items": items, "levels": LEVELS}
    for codes, limit in ((256, 10), (4096, 16)):
        figures = measure(items, (3, *[codes] * (LEVELS - 1)))
        result[f"{codes} codes"] = figures | {"promised": {"bytes_per_item": limit, "build_seconds": 15}}
    return result


def measure(items: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    codes = skewed_codes(items, sizes)
    with Timer() as build:
        trie = Trie.build(codes, sizes)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for name, array in trie.arrays().items():
            np.save(home / f"{name}.npy", array, allow_pickle=False)
        on_disk = sum(file.stat().st_size for file in home.iterdir())
        with Timer() as opening:
            mapped = Trie.from_arrays({f.stem: np.load(f, mmap_mode="r") for f in home.iterdir()})
            assert len(mapped.children(mapped.children(mapped.root()).take()))
    some = np.random.default_rng(1).integers(0, len(codes), 1000)
    assert np.array_equal(trie.codes(some), codes[trie.rows(some)])
    return {
        "build_seconds": round(build.seconds, 2),
        "build_processor_seconds": round(build.processor, 2),
        "tree_levels": trie.tree_levels,
        "nodes": int(trie.levels[-1]),
        "bytes_per_item": {
            "in_memory": round(trie.nbytes / trie.items, 3),
            "on_disk": round(on_disk / trie.items, 3),
            "on_disk_with_vectors": round(on_disk / trie.items + VECTOR_BYTES, 1),
            "of_which_records": trie.records.shape[1],
        },
        "open_and_first_two_levels_ms": round(1000 * opening.seconds, 2),
    }


if __name__ == "__main__":
    run(main)
