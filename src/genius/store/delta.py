"""The items since the last generation, in memory: append-only arrays that successive snapshots share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.store.records import RecordBatch, Rows, Vectors


class SelectedRows:
    """Some rows of an array, copied only when they are asked for."""

    def __init__(self, array: Vectors, rows: NDArray[Any] | None = None) -> None:
        self.array, self.rows = array, rows

    def __len__(self) -> int:
        return len(self.array if self.rows is None else self.rows)

    def __getitem__(self, wanted: NDArray[Any]) -> Vectors:
        """These of the rows."""
        return np.asarray(self.array[wanted if self.rows is None else self.rows[wanted]])

    def __iter__(self) -> Iterator[Any]:
        return (self.array[row] for row in (range(len(self)) if self.rows is None else self.rows))


class Delta:
    """Rows after the generation's last one, up to `through`; removed ones stay until the next generation."""

    def __init__(self, after: int, levels: int, dim: int | None) -> None:
        self.after = self.through = after
        self._count = 0
        self._rows = np.empty(0, np.int64)
        self._modality = np.empty(0, np.uint8)
        self._codes = np.empty((0, levels), np.uint16)
        self._vectors = None if dim is None else np.empty((0, dim), np.float16)

    def append(self, batch: RecordBatch) -> None:
        """Append rows; batches that were returned before do not change."""
        end = self._count + len(batch)
        if end > len(self._rows):
            self._grow(max(end, 2 * len(self._rows)))
        self._rows[self._count : end] = batch.rows
        self._modality[self._count : end] = batch.modality
        self._codes[self._count : end] = batch.codes
        if self._vectors is not None:
            self._vectors[self._count : end] = batch.vectors
        self._count = end

    def without(self, gone: Rows) -> tuple[RecordBatch, SelectedRows | None]:
        """The rows that are not among the `gone` ones, without and with their vectors."""
        end = self._count
        every = RecordBatch(self._rows[:end], self._modality[:end], self._codes[:end], None)
        vectors = None if self._vectors is None else self._vectors[:end]
        removed = np.isin(every.rows, gone[gone > self.after])
        if not removed.any():
            return every, None if vectors is None else SelectedRows(vectors)
        kept = np.flatnonzero(~removed)
        return every.take(kept), None if vectors is None else SelectedRows(vectors, kept)

    def _grow(self, size: int) -> None:
        self._rows = _longer(self._rows, size)
        self._modality = _longer(self._modality, size)
        self._codes = _longer(self._codes, size)
        self._vectors = None if self._vectors is None else _longer(self._vectors, size)


def _longer(array: NDArray[Any], size: int) -> NDArray[Any]:
    longer = np.empty((size, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer
