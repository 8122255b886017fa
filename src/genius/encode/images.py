"""Image files to pixels by a DataLoader: all at once, or ahead of each training step.

On a few cores threads decode faster than worker processes; on many, Python's lock holds threads back.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from genius.data.images import open_image
from genius.data.report import Report, printable
from genius.encode.base import Trainable
from genius.encode.preprocess import Preprocess
from genius.errors import BadData, BadImage

CHUNK = 16  # images that a worker decodes at a time; small, since containers have little shared memory
THREADED_CHUNK = 512  # images that threads decode at a time
MIN_FOR_WORKERS = 2000  # images from which on worker processes are worth their start
MANY_CORES = 8  # from which on worker processes decode more images a second than threads
MIN_FOR_BLAME = 4  # images that must all be unreadable before the data root is to blame
Sample = tuple[int, Tensor, str]  # row, uint8 pixels (3, side, side), why they are black ("" if they are not)
Chunk = tuple[list[int], Tensor, list[str]]  # the same of several images; pixels (n, 3, side, side)


class DecodedImages(NamedTuple):
    """Pixels (n, 3, side, side) of some files, and for those that cannot be read (black) row and reason."""

    pixels: NDArray[np.uint8]
    unreadable: list[tuple[int, str]]


class ImageFiles(Dataset[Sample]):
    """Image files as the encoder's preprocessing wants them; one that cannot be read is black."""

    def __init__(self, files: Sequence[Path], preprocess: Preprocess) -> None:
        self.files, self.preprocess = files, preprocess

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> Sample:
        file, side = self.files[row], self.preprocess.side
        try:
            # twice the side: a large JPEG is decoded small, as the engine does
            pixels = self.preprocess.pixels(open_image(file, at_least=2 * side))
        except BadImage as error:
            return row, torch.zeros(3, side, side, dtype=torch.uint8), _reason(error, file)
        return row, torch.from_numpy(pixels), ""

    def __getitems__(self, rows: list[int]) -> list[Sample]:
        """The samples of a chunk: by one thread in a worker process, by several in the main process."""
        if get_worker_info() is not None:
            return [self[row] for row in rows]
        with ThreadPoolExecutor(cores()) as threads:
            return list(threads.map(self.__getitem__, rows))

    def load(self, chunks: Iterable[list[int]], workers: int) -> Iterator[Chunk]:
        """The images of each chunk of rows, in order; decoded by threads if there are no workers."""
        context = multiprocessing.get_context("forkserver") if workers else None
        if context is not None:
            context.set_forkserver_preload([__name__])  # torch is imported once, not by every worker
        return iter(
            DataLoader(
                self,
                batch_sampler=_Chunks(chunks),
                num_workers=workers,
                collate_fn=_stacked,
                multiprocessing_context=context,
            )
        )


def decode(files: Sequence[Path], preprocess: Preprocess, workers: int | None = None) -> DecodedImages:
    """The pixels of `files`; an unreadable image is black and named. BadData if no file can be read.

    `workers` is the number of processes beside this one (default: see `available_workers`).
    """
    if workers is None:
        workers = available_workers() if len(files) >= MIN_FOR_WORKERS else 0
    chunks = _split(range(len(files)), CHUNK if workers else THREADED_CHUNK)
    pixels = np.empty((len(files), 3, preprocess.side, preprocess.side), dtype=np.uint8)
    unreadable: list[tuple[int, str]] = []
    for rows, images, reasons in ImageFiles(files, preprocess).load(chunks, workers):
        pixels[rows[0] : rows[-1] + 1] = images.numpy()
        unreadable += [(row, reason) for row, reason in zip(rows, reasons, strict=True) if reason]
    if len(unreadable) == len(files) >= MIN_FOR_BLAME:
        raise BadData(
            f"none of {len(files)} images can be read, {printable(files[0])} first ({unreadable[0][1]}): "
            "are they under the data root?"
        )
    return DecodedImages(pixels, unreadable)


class ImageTable:
    """Pixels of image files by row: all of them on the device if `resident`, else decoded when asked for.

    An image that cannot be read is black; `report` counts and names those.
    """

    def __init__(
        self,
        files: Sequence[Path],
        encoder: Trainable,
        device: torch.device,
        *,
        resident: bool,
        workers: int | None = None,
    ) -> None:
        self.device, self.report = device, Report()
        self.files = ImageFiles(files, encoder.preprocess)
        self.workers = available_workers() if workers is None else workers
        self._reported: set[int] = set()
        self._ahead: Iterator[Chunk] | None = None
        self.table: Tensor | None = None
        if resident:
            decoded = decode(files, encoder.preprocess, workers)
            for row, reason in decoded.unreadable:
                self._note(row, reason)
            self.table = torch.from_numpy(decoded.pixels).to(device)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def unreadable(self) -> list[int]:
        """The rows of the images that could not be read, of those that were decoded so far."""
        return sorted(self._reported)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """uint8 pixels (n, 3, side, side) on the device of the table."""
        if self.table is not None:
            return self.table[rows.to(self.device)]
        wanted = rows.tolist()
        ahead = self._ahead
        chunks = list(_split(wanted, THREADED_CHUNK if ahead is None else CHUNK))
        source = self.files.load(chunks, 0) if ahead is None else ahead
        side = self.files.preprocess.side
        pixels = torch.empty(len(wanted), 3, side, side, dtype=torch.uint8)
        done = 0
        for _ in chunks:
            found, images, reasons = next(source)
            assert found == wanted[done : done + len(found)], "asked for other images than announced"
            pixels[done : done + len(found)] = images
            done += len(found)
            for row, reason in zip(found, reasons, strict=True):
                self._note(row, reason)
        return pixels.to(self.device)

    def prefetch(self, batches: Iterable[Tensor]) -> None:
        """Announce the rows that will be asked for, call by call: workers decode some batches ahead."""
        if self.table is None and self.workers:
            chunks = (chunk for rows in batches for chunk in _split(rows.tolist(), CHUNK))
            self._ahead = self.files.load(chunks, self.workers)

    def _note(self, row: int, reason: str) -> None:
        if reason and row not in self._reported:
            self._reported.add(row)
            self.report.skip(self.files.files[row], reason)


class _Chunks:
    """Lists of rows as a DataLoader's `batch_sampler`; they are drawn in the main process."""

    def __init__(self, chunks: Iterable[list[int]]) -> None:
        self.chunks = chunks

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.chunks)


def available_workers() -> int:
    """Worker processes for this process: one for each core, none where threads are faster."""
    return cores() if cores() >= MANY_CORES else 0


def cores() -> int:
    """The cores of this process: its share of the machine's if torchrun started several."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, count // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _stacked(samples: list[Sample]) -> Chunk:
    """The samples as a chunk: one tensor leaves a worker much faster than one for each image."""
    rows, pixels, reasons = zip(*samples, strict=True)
    return list(rows), torch.stack(pixels), list(reasons)


def _split(rows: Sequence[int], size: int) -> Iterator[list[int]]:
    return (list(rows[start : start + size]) for start in range(0, len(rows), size))


def _reason(error: BadImage, file: Path) -> str:
    return str(error).removeprefix(f"{printable(file)}: ")
