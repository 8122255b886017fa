"""Passages in the truth: kept, removed, recoded and read with the items whose texts they are of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.store.connection import corrupt
from genius.store.indexed_words import IndexedWords
from genius.store.records import Codes, PassageRows, Passages, RecordBatch, Rows, checksum

LAST = 2**62  # no row comes after it
_COLUMNS = "row, count, spans, codes, vectors, sum"


class StoredPassages(IndexedWords):
    """A truth with the passages of long texts."""

    def keep_passages(self, row: int, passages: Passages) -> None:
        """Store the passages of the item in `row`; the caller holds the transaction."""
        values = (row, *passages.columns())
        self.connection.execute(
            f"INSERT OR REPLACE INTO passages ({_COLUMNS}) VALUES (?,?,?,?,?,?)", (*values, checksum(values))
        )

    def delete_passages(self, items: Sequence[int]) -> list[int]:
        """Take the passages of items out; the rows that they had. The caller holds the transaction."""
        gone: list[int] = []
        for row in items:
            query = "DELETE FROM passages WHERE row = ? RETURNING count"
            for (count,) in self.connection.execute(query, (row,)).fetchall():
                gone += range(row + 1, row + 1 + count)
        return gone

    def recode_passages(self, items: PassageRows, rows: Rows, codes: Codes) -> None:
        """Give the passages of items other codes, those of `rows`; the caller holds the transaction."""
        for row, passages in self._stored(items):
            first = int(np.searchsorted(rows, row)) + 1
            own = codes[first : first + len(passages.codes)]
            self.keep_passages(row, Passages(passages.spans, own, passages.vectors))

    def passages(self, row: int) -> Passages | None:
        """The passages of the item in `row`; None if its text is short."""
        query = f"SELECT {_COLUMNS} FROM passages WHERE row = ?"
        with self.use():
            found = self.connection.execute(query, (row,)).fetchone()
        return None if found is None else self._passages(found)

    def spans(self, rows: Iterable[int]) -> dict[int, NDArray[np.int32]]:
        """Where in their texts the passages of these items are, (n, 2), by row; only of long texts."""
        found = {row: self.passages(row) for row in rows}
        return {row: passages.spans for row, passages in found.items() if passages is not None}

    def passage_rows(self, after: int = 0, through: int = LAST) -> PassageRows:
        """Which items with rows in (after, through] have passages."""
        query = "SELECT row, count FROM passages INDEXED BY passage_counts WHERE row > ? AND row <= ?"
        with self.use():
            found = self.connection.execute(f"{query} ORDER BY row", (after, through)).fetchall()
        rows = np.array(found, dtype=np.int64).reshape(-1, 2)
        return PassageRows(np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1]))

    def with_passages(self, items: RecordBatch, levels: int, dim: int | None) -> RecordBatch:
        """A batch of items in row order, each followed by its other passages."""
        found = []
        for row, passages in self._stored(self.passage_rows(int(items.rows[0]) - 1, int(items.rows[-1]))):
            place = int(np.searchsorted(items.rows, row))
            count, vectors = len(passages.codes), passages.vectors
            if items.rows[place] != row or passages.codes.shape != (count, levels):
                raise corrupt(self.file, f"the passages of row {row} belong to no item")
            if dim is not None and (vectors is None or vectors.shape != (count, dim)):
                raise corrupt(self.file, f"the passages of row {row} have no vectors of width {dim}")
            found.append(
                RecordBatch(
                    np.arange(row + 1, row + 1 + count),
                    np.full(count, items.modality[place]),
                    passages.codes,
                    vectors if dim is not None else None,
                )
            )
        if not found:
            return items
        every = RecordBatch.join([items, *found])
        return every.take(np.argsort(every.rows, kind="stable"))

    def _stored(self, items: PassageRows) -> Iterator[tuple[int, Passages]]:
        for row in items.items.tolist():
            if (passages := self.passages(row)) is not None:
                yield row, passages

    def _passages(self, values: tuple[Any, ...]) -> Passages:
        row, count, spans, codes, vectors, expected = values
        if checksum(values[:-1]) != expected:
            raise corrupt(self.file, f"the passages of row {row} fail their checksum")
        return Passages(
            np.frombuffer(spans, dtype="<i4").reshape(-1, 2).astype(np.int32, copy=False),
            np.frombuffer(codes, dtype="<u2").reshape(count, -1).astype(np.uint16, copy=False),
            None
            if vectors is None
            else np.frombuffer(vectors, dtype="<f2").reshape(count, -1).astype(np.float16, copy=False),
        )
