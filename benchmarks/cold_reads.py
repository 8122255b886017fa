"""Rows of embeddings that the system does not hold in memory: read side by side, and one after the other.

    python benchmarks/cold_reads.py --scratch FOLDER     # FOLDER: on the disk to be measured

A file as an index has it: embeddings of width 512 in float16, a checksum for each 4 KB. A search re-ranks
`--rows` of them. Before each round the system is told to forget the file; the rounds take turns. "side by
side" is `genius.store.large_array`: it finds out what is not in memory, asks for all of it, then reads. "one
after the other" reads and verifies the same blocks by a call each. "held" is the same when the system has the
file in memory. Disks differ: compare the two. Writes benchmarks/results/cold_reads.json.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _harness import Timer, run
from numpy.typing import NDArray

from genius.store.large_array import BLOCK, IN_MEMORY, LargeArray

WIDTH = 512
ROW_BYTES = 2 * WIDTH
PIECE = 1 << 20
Read = Callable[[NDArray[np.int64]], object]


def write_rows(file: Path, items: int) -> NDArray[np.uint32]:
    """A file of `items` rows, and the checksums of its blocks; every piece of it has the same bytes."""
    piece = np.random.default_rng(0).bytes(PIECE)
    pieces = items * ROW_BYTES // PIECE
    with file.open("wb") as out:
        for _ in range(pieces):
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())
    sums = [zlib.crc32(piece[start : start + BLOCK]) for start in range(0, PIECE, BLOCK)]
    return np.tile(np.array(sums, np.uint32), pieces)


def one_after_the_other(file: Path, sums: NDArray[np.uint32]) -> Read:
    """Reads and verifies the block of each row by a call of its own."""
    handle = os.open(file, os.O_RDONLY)

    def read(rows: NDArray[np.int64]) -> object:
        for block in np.unique(rows * ROW_BYTES // BLOCK).tolist():
            assert zlib.crc32(os.pread(handle, BLOCK, block * BLOCK)) == sums[block]
        return [os.pread(handle, ROW_BYTES, row * ROW_BYTES) for row in rows.tolist()]

    return read


def forget(file: Path) -> None:
    """Let the system drop what it holds of the file."""
    handle = os.open(file, os.O_RDONLY)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def main(items: int = 4_000_000, rows: int = 800, rounds: int = 15, scratch: str = "") -> dict[str, Any]:
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory(dir=scratch or None) as folder:
        file = Path(folder) / "vectors.bin"
        sums = write_rows(file, items)
        shape = (file.stat().st_size // ROW_BYTES, WIDTH)
        timers: dict[str, dict[str, list[Timer]]] = {}
        for state in ("not in memory", "held"):
            of_state = timers[state] = {"side by side": [], "one after the other": []}
            for _ in range(rounds):
                asked = rng.choice(shape[0], rows, replace=False)
                ways: dict[str, Read] = {  # as new as after a start
                    "side by side": LargeArray(file, "float16", shape, sums).__getitem__,
                    "one after the other": one_after_the_other(file, sums),
                }
                for name, read in ways.items():
                    if state == "held":
                        ways["one after the other"](asked)
                    else:
                        forget(file)
                    with Timer() as timer:
                        read(asked)
                    of_state[name].append(timer)
    figures: dict[str, Any] = {"items": shape[0], "rows": rows, "rounds": rounds}
    figures["the whole array is kept in memory"] = shape[0] * ROW_BYTES <= IN_MEMORY
    for state, measured in timers.items():
        found = {
            name: {
                "milliseconds": round(1000 * median(timer.seconds for timer in own), 2),
                "of the processor": round(1000 * median(timer.processor for timer in own), 2),
            }
            for name, own in measured.items()
        }
        slow, fast = found["one after the other"], found["side by side"]
        ratio = {key: round(slow[key] / fast[key], 1) for key in slow}
        figures[state] = {**found, "one after the other / side by side": ratio}
    return figures


if __name__ == "__main__":
    run(main)
