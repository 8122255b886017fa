"""Time and memory of fitting codes to a collection, beside encoding pictures with `mini` in the same run.

    python benchmarks/fit_speed.py --photos FOLDER                  # 100,000 and a million items
    python benchmarks/fit_speed.py --items 10000000 --dim 768 --encoded 200000 --out -    # memory alone
    python benchmarks/fit_speed.py --items 100000 400000 --index --out benchmarks/results/fit_speed_index.json

Embeddings are synthetic (benchmarks/pools.py), in a memory-mapped file that is read in chunks, as those of an
index are; with `--index` they are in an index, and all of `Engine.fit` is measured, storing included. Each
size is fitted in a process of its own; its peak of memory is reported without the pages of that file. Codes
of all items are part of the fit. On a machine that others use as well, compare seconds of the processor.
Writes benchmarks/results/fit_speed.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _harness import Timer, run
from pools import SyntheticPool

from genius import Engine
from genius.data.images import open_image
from genius.encode.mini.encoder import load as load_mini
from genius.quantize.fit import FitOptions, fit_quantizer, sample_rows
from genius.store.records import Record
from genius.types import Modality

ROWS_AT_ONCE = 16_384
BATCH = 64  # pictures


def encode_pictures(folder: Path, count: int) -> Timer:
    """How long `mini` takes for so many pictures, decoding included."""
    encoder = load_mini()
    files = sorted(file for file in folder.rglob("*") if file.suffix in (".jpg", ".jpeg", ".png", ".webp"))
    files = (files * -(-count // len(files)))[:count]
    encoder.encode_images([open_image(file) for file in files[:BATCH]])  # loads and warms up
    with Timer() as timer:
        for start in range(0, count, BATCH):
            encoder.encode_images([open_image(file) for file in files[start : start + BATCH]])
    return timer


def write_items(file: Path, items: int, dim: int) -> None:
    """`items` embeddings in float16, as an index stores them, and their modalities beside them."""
    vectors = np.lib.format.open_memmap(file, "w+", dtype=np.float16, shape=(items, dim))
    modality = np.empty(items, dtype=np.uint8)
    start = 0
    for chunk, kinds in SyntheticPool(dim).chunks(items):
        vectors[start : start + len(chunk)], modality[start : start + len(chunk)] = chunk, kinds
        start += len(chunk)
    vectors.flush()
    np.save(file.with_suffix(".modality.npy"), modality)


def write_index(folder: Path, items: int, dim: int) -> None:
    """An index of `items` embeddings without codes."""
    with Engine.create(folder, encoder="vectors", dim=dim) as engine:
        first = np.zeros(engine.index.levels, dtype=np.uint16)
        start = 0
        for chunk, kinds in SyntheticPool(dim).chunks(items):
            halves = chunk.astype(np.float16)
            records = [
                Record(str(start + n), tuple(Modality)[kind], first, halves[n])
                for n, kind in enumerate(kinds.tolist())
            ]
            engine.index.add(records)
            start += len(chunk)


def fit_index(folder: Path) -> dict[str, Any]:
    """`Engine.fit` of the index: seconds and memory."""
    with Engine.open(folder) as engine, MemoryWatch() as memory, Timer() as timer:
        engine.fit()
    return {
        "seconds": round(timer.seconds, 1),
        "processor_seconds": round(timer.processor, 1),
        "peak_mb": round(memory.most),
    }


def fit_items(file: Path, encoded: int) -> dict[str, Any]:
    """Fit to the embeddings in `file` and encode the first `encoded`; seconds, memory and error."""
    vectors = np.load(file, mmap_mode="r")
    modality = torch.from_numpy(np.load(file.with_suffix(".modality.npy")).astype(np.int64))
    with MemoryWatch() as memory:
        with Timer() as fitting:
            rows = sample_rows(len(vectors), FitOptions())
            sample = torch.from_numpy(vectors[rows.numpy()].astype(np.float32))
            quantizer = fit_quantizer(sample, modality[rows])
        codes = np.empty((len(vectors), quantizer.levels), dtype=np.uint8)
        with Timer() as encoding:
            for start in range(0, min(encoded, len(vectors)), ROWS_AT_ONCE):
                part = slice(start, start + ROWS_AT_ONCE)
                codes[part] = quantizer.codes_of(vectors[part].astype(np.float32), modality[part].numpy())
    some = np.arange(0, min(encoded, len(codes)), max(1, len(codes) // 10_000))
    left = vectors[some].astype(np.float32) - quantizer.vectors_of(codes[some])
    return {
        "seconds": round(fitting.seconds + encoding.seconds, 1),
        "processor_seconds": round(fitting.processor + encoding.processor, 1),
        "of_it_fitting": round(fitting.processor, 1),
        "peak_mb": round(memory.most),
        "squared_error": round(float(np.square(left).sum(1).mean()), 5),
    }


class MemoryWatch:
    """The most memory that this process held, sampled by a thread, without pages of mapped files."""

    def __init__(self) -> None:
        self.most = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            status = Path("/proc/self/status").read_text()
            held = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
            self.most = max(self.most, int(held.split()[1]) / 1024)


def in_own_process(file: Path, threads: int, encoded: int, index: bool) -> dict[str, Any]:
    """`fit_items` or `fit_index` in a new process."""
    command = [sys.executable, __file__, "--fit", str(file), "--threads", str(threads), "--out", "-"]
    command += ["--encoded", str(encoded), *(["--index"] if index else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout)["fitted"])


def main(
    photos: Path | None = None,
    pictures: int = 4000,
    items: list[int] = [100_000, 1_000_000],  # noqa: B006 (read only)
    dim: int = 512,
    threads: int = 2,
    encoded: int = 1_000_000_000,
    index: bool = False,
    fit: Path | None = None,
    scratch: Path | None = None,
) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(threads)
    if fit is not None:
        yield {"fitted": fit_index(fit) if index else fit_items(fit, encoded)}
        return
    result: dict[str, Any] = {"dim": dim, "options": str(FitOptions()), "items": {}}
    if photos is not None:
        timer = encode_pictures(photos, pictures)
        seconds = {"seconds": round(timer.seconds, 1), "processor_seconds": round(timer.processor, 1)}
        result["pictures"] = {"count": pictures} | seconds
    for count in items:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            file = Path(folder) / ("index" if index else "items.npy")
            (write_index if index else write_items)(file, count, dim)
            found = in_own_process(file, threads, encoded, index)
        if photos is not None:
            found |= {
                f"{key}_of_the_pictures": round(found[key] / result["pictures"][key], 2) for key in seconds
            }
        result["items"][str(count)] = found
        yield result


if __name__ == "__main__":
    run(main)
