"""Prepared pictures by row, decoded once or ahead of their use."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from genius.data.report import Report
from genius.encode.base import Trainable
from genius.encode.decoding import Decoded, decode


class Pictures:
    """Pixels of picture files: all of them on the device when `resident`, else decoded when asked for.

    A picture that cannot be read is black; `report` counts and names those.
    """

    def __init__(
        self, files: Sequence[Path], encoder: Trainable, device: torch.device, *, resident: bool
    ) -> None:
        self.files, self.device = files, device
        self.report = Report()
        self._unread: set[int] = set()
        self._preprocess = encoder.preprocess
        self._pool = ThreadPoolExecutor(1)
        self._ahead: tuple[list[int], Future[Decoded]] | None = None
        everything = list(range(len(files)))
        self.table = self._taken(everything, self._decode(everything)) if resident else None

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """uint8 pixels (n, 3, side, side) on the device of the pictures."""
        if self.table is not None:
            return self.table[rows.to(self.device)]
        wanted = rows.tolist()
        if self._ahead is not None and self._ahead[0] == wanted:
            return self._taken(wanted, self._ahead[1].result())
        return self._taken(wanted, self._decode(wanted))

    def expect(self, rows: Tensor) -> None:
        """Begin to decode what will be asked for next."""
        if self.table is None:
            wanted = rows.tolist()
            self._ahead = (wanted, self._pool.submit(self._decode, wanted))

    def _decode(self, rows: list[int]) -> Decoded:
        return decode([self.files[row] for row in rows], self._preprocess)

    def _taken(self, rows: list[int], decoded: Decoded) -> Tensor:
        for place, reason in decoded.unread:
            row = rows[place]
            if row not in self._unread:
                self._unread.add(row)
                self.report.skip(self.files[row], reason)
        return torch.from_numpy(decoded.pixels).to(self.device)
