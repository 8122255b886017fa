"""Bytes per item and seconds to build a trie, in memory and on disk.

    python benchmarks/trie.py                                  # 5.6 M items, benchmarks/results/trie.json
    python benchmarks/trie.py --items 300000 --out -           # a quick look

Codes are random with a skew: level 0 has 3, the 8 other levels 256 or 4096 codes. Promised for 5.6 M items:
at most 10 (256 codes) and 16 bytes (4096) per item, codes included, built in under 15 s.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pools import versions

from genius.search.trie import Trie

LEVELS = 9
VECTOR_BYTES = 2 * 768  # a float16 vector of CLIP ViT-L/14, for comparison


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=5_600_000)
    parser.add_argument("--out", default="benchmarks/results/trie.json")
    args = parser.parse_args()
    result: dict[str, Any] = {
        "command": " ".join(["python benchmarks/trie.py", *sys.argv[1:]]),
        "versions": versions(),
        "items": args.items,
        "levels": LEVELS,
    }
    for codes, limit in ((256, 10), (4096, 16)):
        result[f"{codes} codes"] = figures = measure(skewed(args.items, codes), (3, *[codes] * (LEVELS - 1)))
        figures["promised"] = {"bytes_per_item": limit, "build_seconds": 15}
    text = json.dumps(result, indent=2)
    print(text)
    if args.out != "-":
        Path(args.out).write_text(text + "\n")


def skewed(items: int, codes: int) -> NDArray[np.uint16]:
    rng = np.random.default_rng(0)
    out = np.empty((items, LEVELS), dtype=np.uint16)
    for level in range(LEVELS):
        out[:, level] = rng.random(items, dtype=np.float32) ** 1.5 * (codes if level else 3)
    return out


def measure(codes: NDArray[np.uint16], sizes: tuple[int, ...]) -> dict[str, Any]:
    begin, busy = time.perf_counter(), time.process_time()
    trie = Trie.build(codes, sizes)
    built, built_busy = time.perf_counter() - begin, time.process_time() - busy
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for name, array in trie.arrays().items():
            np.save(home / f"{name}.npy", array, allow_pickle=False)
        on_disk = sum(file.stat().st_size for file in home.iterdir())
        begin = time.perf_counter()
        mapped = Trie.from_arrays({f.stem: np.load(f, mmap_mode="r") for f in home.iterdir()})
        children = mapped.children(mapped.children(mapped.root()).take())
        opened = time.perf_counter() - begin
        assert len(children)
    some = np.random.default_rng(1).integers(0, len(codes), 1000)
    assert np.array_equal(trie.codes(some), codes[trie.rows(some)])
    return {
        "build_seconds": round(built, 2),
        "build_processor_seconds": round(built_busy, 2),
        "tree_levels": trie.tree_levels,
        "nodes": int(trie.levels[-1]),
        "bytes_per_item": {
            "in_memory": round(trie.nbytes / trie.items, 3),
            "on_disk": round(on_disk / trie.items, 3),
            "on_disk_with_vectors": round(on_disk / trie.items + VECTOR_BYTES, 1),
            "of_which_records": trie.records.shape[1],
        },
        "open_and_first_two_levels_ms": round(1000 * opened, 2),
    }


if __name__ == "__main__":
    main()
