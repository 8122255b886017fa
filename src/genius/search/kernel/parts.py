"""Parts of a file, many in one call: compiled where the kernel was built, else one read after the other."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from genius.search.arrays import Ints
from genius.search.kernel import load_kernel


def read_parts(file: int, starts: Ints, size: int) -> NDArray[np.uint8]:
    """`size` bytes from each of the `starts` (n,) of an open file, (n, size).

    Compiled, parts that the system does not hold in memory are read from the disk side by side.

    Raises OSError where the file cannot be read, EOFError where it ends before.
    """
    library = load_kernel()
    if library is None:
        joined = b"".join(os.pread(file, size, start) for start in starts.tolist())
        if len(joined) != size * len(starts):
            raise EOFError
        return np.frombuffer(joined, np.uint8).reshape(-1, size)
    starts = np.ascontiguousarray(starts, dtype=np.int64)
    parts, waiting = np.empty((len(starts), size), np.uint8), np.empty(len(starts), np.int64)
    found = int(
        library.genius_read_parts(
            file, starts.ctypes.data, len(starts), size, parts.ctypes.data, waiting.ctypes.data
        )
    )
    if found < 0:
        raise OSError(-found, os.strerror(-found))
    if found < len(starts):
        raise EOFError
    return parts
