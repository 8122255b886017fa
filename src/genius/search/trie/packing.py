"""How an item's record is packed into bytes: codes of 8, 12 or 16 bits, then the item's row number.

Codes of at most 8, 12 or 16 bits take 1, 1.5 or 2 bytes: all low bytes come first, then all high bits, so
that a level is a plain column. An item row takes as few bytes as the largest one needs. Reading works on
NumPy arrays and on torch tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadInput


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """Where the bytes of a record are: low bytes of codes, their high bits, the row."""

    below: int  # levels below the tree
    high_bits: int  # 0, 4 or 8 bits above the low byte
    row_bytes: int

    @property
    def high_bytes(self) -> int:
        """Bytes that hold the high bits of all codes: two codes share a byte when 4 bits are enough."""
        return (self.below * self.high_bits + 7) // 8

    @property
    def width(self) -> int:
        """Bytes of a record."""
        return self.below + self.high_bytes + self.row_bytes

    @classmethod
    def of(cls, sizes: Sequence[int], row_bytes: int) -> RecordLayout:
        """The layout for codes of these sizes."""
        largest = max(sizes, default=1)
        return cls(len(sizes), 0 if largest <= 256 else 4 if largest <= 4096 else 8, row_bytes)

    def code(self, records: Any, number: int) -> Any:
        """Codes of the `number`-th level below the tree, one for each record."""
        return self._code(number, lambda column: records[..., column])

    def code_at(self, flat: Any, positions: Any, number: int) -> Any:
        """The same for the records at `positions` of a whole pool, given as its `flat` bytes.

        One byte is touched for each, not the record.
        """
        first = positions * self.width
        return self._code(number, lambda column: flat.take(first + column))

    def _code(self, number: int, column: Callable[[int], Any]) -> Any:
        low = column(number)
        if not self.high_bits:
            return low
        high = column(self.below + number * self.high_bits // 8)
        if self.high_bits == 4:
            high = (high >> 4) if number % 2 else (high & 15)
        return low + _wider(high) * 256

    def put_code(self, records: NDArray[np.uint8], number: int, codes: NDArray[Any]) -> None:
        """Write the codes of the `number`-th level below the tree."""
        records[:, number] = codes & 255
        if self.high_bits:
            high = (codes >> 8).astype(np.uint8)
            if self.high_bits == 4 and number % 2:
                high <<= 4
            records[:, self.below + number * self.high_bits // 8] |= high

    def row(self, records: Any) -> Any:
        """Item rows of the records, int64."""
        first = self.below + self.high_bytes
        if isinstance(records, np.ndarray):
            padded = np.zeros((*records.shape[:-1], 8), dtype=np.uint8)
            padded[..., : self.row_bytes] = records[..., first : first + self.row_bytes]
            return padded.view("<i8")[..., 0]
        rows = _wider(records[..., first], 64)
        for byte in range(1, self.row_bytes):
            rows = rows + (_wider(records[..., first + byte], 64) << (8 * byte))
        return rows

    def put_row(self, records: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        """Write the item rows."""
        for byte in range(self.row_bytes):
            records[:, self.below + self.high_bytes + byte] = (rows >> (8 * byte)) & 255


def bytes_for(largest: int) -> int:
    """Bytes that hold the row `largest`."""
    if largest >= 2**32:
        raise BadInput("a trie holds item rows below 4,294,967,296: number the items anew")
    return max(1, (largest.bit_length() + 7) // 8)


def _wider(values: Any, bits: int = 32) -> Any:
    """Integers of more bits, NumPy or torch."""
    if isinstance(values, np.ndarray):
        return values.astype(np.int32 if bits == 32 else np.int64)
    return values.int() if bits == 32 else values.long()
