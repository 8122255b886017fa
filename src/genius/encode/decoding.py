"""Picture files to pixels: in threads, or in processes where pictures are many and cores are several.

Python holds threads back at several hundred pictures a second. A process of its own reads a list of files
from its input and writes their pixels to its output; it never sees the encoder or a GPU:

    python -m genius.encode.decoding < request > pixels
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.data.images import open_image
from genius.data.report import printable
from genius.encode.preprocess import Preprocess
from genius.errors import BadData, BadImage

MANY = 2000  # pictures from which on processes are worth their start
PART = 1000  # pictures of one process: bounds what is held twice
ENOUGH = 4  # pictures that must all be unreadable before the data root is to blame


class Unread(NamedTuple):
    """A picture that could not be read, and why; its pixels are black."""

    row: int
    reason: str


class Decoded(NamedTuple):
    """Pixels (n, 3, side, side) of some files, and which of them could not be read."""

    pixels: NDArray[np.uint8]
    unread: list[Unread]


def decode(files: Sequence[Path], preprocess: Preprocess, workers: int | None = None) -> Decoded:
    """The pixels of `files` as `preprocess` wants them; an unreadable picture is black and named.

    `workers` is how many things happen at once (default: the cores). Raises BadData if no file can be read.
    """
    workers = workers or os.cpu_count() or 1
    size = PART if len(files) >= MANY and workers > 1 else len(files)
    starts = range(0, len(files), max(1, size))
    with ThreadPoolExecutor(workers) as pool:
        if len(starts) > 1:
            read = pool.map(lambda start: _elsewhere(files[start : start + size], preprocess), starts)
        else:
            read = pool.map(lambda file: _here([file], preprocess), files)
            starts = range(len(files))
        pixels = np.empty((len(files), 3, preprocess.side, preprocess.side), dtype=np.uint8)
        unread: list[Unread] = []
        for start, part in zip(starts, read, strict=True):
            pixels[start : start + len(part.pixels)] = part.pixels
            unread += [Unread(start + row, reason) for row, reason in part.unread]
    if len(unread) == len(files) >= ENOUGH:
        raise BadData(
            f"none of {len(files)} pictures can be read, {printable(files[0])} first ({unread[0].reason}): "
            "are they under the data root?"
        )
    return Decoded(pixels, unread)


def _here(files: Sequence[Path], preprocess: Preprocess) -> Decoded:
    pixels = np.zeros((len(files), 3, preprocess.side, preprocess.side), dtype=np.uint8)
    unread = []
    for row, file in enumerate(files):
        try:
            # twice the side: a large JPEG is decoded small, as the engine does
            pixels[row] = preprocess.pixels(open_image(file, at_least=2 * preprocess.side))
        except BadImage as error:
            unread.append(Unread(row, str(error).removeprefix(f"{printable(file)}: ")))
    return Decoded(pixels, unread)


def _elsewhere(files: Sequence[Path], preprocess: Preprocess) -> Decoded:
    """`_here` in a process of its own; here after all if that process fails."""
    request = {"files": [str(file) for file in files], "preprocess": asdict(preprocess)}
    command = [sys.executable, "-P", "-m", "genius.encode.decoding"]  # -P: nothing out of the current folder
    done = subprocess.run(command, input=json.dumps(request).encode(), capture_output=True, check=False)
    shape = (len(files), 3, preprocess.side, preprocess.side)
    size = int(np.prod(shape))
    if done.returncode or len(done.stdout) < size:
        return _here(files, preprocess)
    pixels = np.frombuffer(done.stdout, dtype=np.uint8, count=size).reshape(shape)
    return Decoded(pixels, [Unread(*one) for one in json.loads(done.stdout[size:])])


def _answer() -> None:
    """Read a request, write pixels and then, as JSON, what could not be read."""
    request = json.loads(sys.stdin.buffer.read())
    read = _here([Path(name) for name in request["files"]], Preprocess(**request["preprocess"]))
    sys.stdout.buffer.write(read.pixels.data)
    sys.stdout.buffer.write(json.dumps(read.unread).encode())


if __name__ == "__main__":
    _answer()
