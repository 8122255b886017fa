"""An array in a file that is read row by row: every block of it is verified before its first row is used.

What was read stays in memory, up to IN_MEMORY: all of a small array, of a larger one the rows that were read
last.
"""

from __future__ import annotations

import os
import threading
import weakref
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.search.kernel.parts import read_parts

AnyArray = NDArray[Any]
BLOCK = 1 << 12  # bytes per checksum: a row that is read for the first time brings no more than it needs
OLDER_BLOCK = 1 << 16  # of generations that do not say how many
AT_ONCE = 1 << 20  # bytes read by `verify`
TOGETHER = 1 << 22  # bytes of blocks that are read at the same time to be verified
IN_MEMORY = 1 << 30  # bytes of an array that stay in this process's memory
FEW = 1 / 16  # of the rows that stay in memory: reading more at once, such as all, does not replace them


class CacheDamaged(Exception):
    """A generation is missing or not what was published. Never shown to users: the cache is rebuilt."""


class RowCache:
    """Rows that were read last, as bytes: each has one place, its number modulo the number of places."""

    def __init__(self, places: int, width: int) -> None:
        self._numbers = np.full(places, -1, np.int64)
        self._rows = np.empty((places, width), np.uint8)  # takes no room before it is written to
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._numbers)

    def get(self, numbers: NDArray[np.int64], out: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Write the rows that are there into `out` (n, width); which ones are."""
        places = numbers % len(self)
        with self._lock:
            found: NDArray[np.bool_] = self._numbers[places] == numbers
            out[found] = self._rows[places[found]]
        return found

    def put(self, numbers: NDArray[np.int64], rows: NDArray[np.uint8]) -> None:
        """Keep these rows (n, width) instead of those in their places."""
        places = numbers % len(self)
        with self._lock:
            # of several rows with the same place the last one is written, in both
            self._numbers[places], self._rows[places] = numbers, rows


class LargeArray:
    """The array (n, …) in `file`, whose blocks have the CRC-32 `sums`; read, never mapped.

    A file that is cut or overwritten under a running process is CacheDamaged, not the end of the process.
    The file stays open as long as the object lives, so it may be deleted meanwhile.
    """

    def __init__(
        self, file: Path, dtype: str, shape: Sequence[int], sums: NDArray[np.uint32], block: int = BLOCK
    ) -> None:
        self.file, self.dtype, self.shape, self.sums = file, np.dtype(dtype), tuple(shape), sums
        self.block = block  # bytes per checksum
        self.nbytes = self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))
        self._handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._handle)
        if os.fstat(self._handle).st_size != self.nbytes:
            raise CacheDamaged(f"{file} has not the size of what was published")
        self._checked = np.zeros(len(sums), dtype=bool)
        self._memory = self._allocate() if self.nbytes <= IN_MEMORY else None
        self._recent = self._recent_rows() if self._memory is None else None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | AnyArray) -> AnyArray:
        """The rows (numbers or a slice); raises CacheDamaged when a block is not what was written."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        rows = np.asarray(rows, dtype=np.int64)
        if not len(self) or not rows.size:
            return np.empty((*rows.shape, *self.shape[1:]), self.dtype)
        width = self.nbytes // len(self)
        self._check(rows.ravel(), width)
        if self._memory is not None:
            return np.asarray(self._memory[rows])
        return self._rows(rows.ravel(), width).reshape(*rows.shape, *self.shape[1:])

    def verify(self) -> None:
        """Read every block; raises CacheDamaged."""
        for start in range(0, self.nbytes, AT_ONCE):
            data = memoryview(self._pread(min(AT_ONCE, self.nbytes - start), start))
            blocks = np.arange(start // self.block, -(-(start + len(data)) // self.block))
            self._require_sums(blocks, data)

    def _allocate(self) -> AnyArray | None:
        """Memory for all of it, which takes no room before it is written to; None if there is not enough."""
        try:
            return np.empty(self.shape, self.dtype)
        except MemoryError:
            return None

    def _recent_rows(self) -> RowCache | None:
        """Room for some of the rows; None if there is none."""
        width = self.nbytes // max(len(self), 1)
        places = min(len(self), IN_MEMORY // max(width, 1))
        try:
            return RowCache(places, width) if places else None
        except MemoryError:
            return None

    def _check(self, rows: NDArray[np.int64], width: int) -> None:
        """Verify the blocks of these rows that were not verified before."""
        first, last = rows * width // self.block, (rows * width + width - 1) // self.block
        if width <= self.block and self._checked[first].all() and self._checked[last].all():
            return
        steps = np.arange(int((last - first).max()) + 1)
        touched = np.unique(np.minimum(first[:, None] + steps, last[:, None]))
        new = touched[~self._checked[touched]]
        whole = new[(new + 1) * self.block <= self.nbytes]
        count = TOGETHER // self.block
        for some in np.split(whole, range(count, len(whole), count)):
            data = self._parts(some * self.block, self.block)
            self._take(some, data)
            self._remember(rows, width, some, data)
        for last_one in new[len(whole) :].tolist():  # of the file, and shorter
            size, at = self.nbytes - last_one * self.block, last_one * self.block
            self._take(np.array([last_one]), self._parts(np.array([at]), size))

    def _take(self, blocks: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
        """Verify the blocks by what the file has there, (n, size); keep it if the array is kept in memory."""
        self._require_sums(blocks, data.reshape(-1).data)
        if self._memory is not None:
            kept, size = self._memory.reshape(-1).view(np.uint8), data.shape[1]
            if size < self.block:  # the last one
                kept[-size:] = data
            else:
                kept[: len(kept) // size * size].reshape(-1, size)[blocks] = data
        self._checked[blocks] = True

    def _remember(
        self, rows: NDArray[np.int64], width: int, blocks: NDArray[np.int64], data: NDArray[np.uint8]
    ) -> None:
        """Keep those rows that lie in these verified blocks, (n, block), so that they are not read again."""
        recent = self._recent
        if recent is None or len(rows) > FEW * len(recent) or self.block % width or not len(blocks):
            return
        of_block = self.block // width
        block, within = np.divmod(rows, of_block)
        at = np.minimum(np.searchsorted(blocks, block), len(blocks) - 1)
        there = blocks[at] == block
        recent.put(rows[there], data.reshape(-1, width)[at[there] * of_block + within[there]])

    def _require_sums(self, blocks: NDArray[np.int64], data: memoryview) -> None:
        """Compare the checksums of blocks that lie one after the other in `data`."""
        parts = (data[start : start + self.block] for start in range(0, len(data), self.block))
        found = np.array([zlib.crc32(part) for part in parts], np.uint32)
        if wrong := np.flatnonzero(found != self.sums[blocks]).tolist():
            raise CacheDamaged(f"block {blocks[wrong[0]]} of {self.file} fails its checksum")

    def _rows(self, rows: NDArray[np.int64], width: int) -> AnyArray:
        """Rows of verified blocks: those read lately from memory, all others from the file."""
        recent = self._recent
        if recent is None or len(rows) > FEW * len(recent):
            data = self._parts(rows * width, width)
        else:
            data = np.empty((len(rows), width), np.uint8)
            new = ~recent.get(rows, data)
            if new.any():
                data[new] = self._parts(rows[new] * width, width)
                recent.put(rows[new], data[new])
        return data.reshape(-1).view(self.dtype)

    def _parts(self, starts: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """`size` bytes from each of the `starts`, (n, size)."""
        try:
            return read_parts(self._handle, starts, size)
        except OSError as error:
            raise CacheDamaged(f"{self.file} cannot be read: {error}") from None
        except EOFError:
            raise CacheDamaged(f"{self.file} has lost its end") from None

    def _pread(self, size: int, at: int) -> bytes:
        try:
            data = os.pread(self._handle, size, at)
        except OSError as error:
            raise CacheDamaged(f"{self.file} cannot be read: {error}") from None
        if len(data) != size:
            raise CacheDamaged(f"{self.file} has lost its end")
        return data
