"""Embeddings of all images and texts of a training set, computed once and cached on disk by content."""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from genius.data.images import open_image
from genius.data.report import Report
from genius.data.training_set import TrainingSet
from genius.encode.base import Array, Encoder, TrainableEncoder
from genius.encode.images import decode
from genius.encode.preprocess import Preprocess
from genius.errors import BadImage, TrainingStopped
from genius.files import write_file
from genius.training import distributed

IMAGES_AT_ONCE, TEXTS_AT_ONCE = 4096, 16_384  # of one file
TOWER_BATCH = 256
PATIENCE_S = 3600.0  # without a new file of any other process

HalfArray = NDArray[np.float16]

console = Console(stderr=True)


def encode_set(
    encoder: Encoder, data: TrainingSet, folder: Path, report: Report | None = None
) -> tuple[HalfArray, HalfArray]:
    """Vectors of `data.images` and `data.texts`, cached in `folder`; a run that was stopped is resumed.

    Several processes share the work. An image that cannot be read has a zero vector and is named in the
    report.
    """
    report = report or Report()
    named = [file_state(file) for file in data.images]
    images = cached(
        folder / content_name("images", encoder.fingerprint, named), data.images, IMAGES_AT_ONCE,
        lambda files: image_vectors(encoder, files, report), encoder.dim,
    )  # fmt: skip
    texts = cached(
        folder / content_name("texts", encoder.fingerprint, data.texts), data.texts, TEXTS_AT_ONCE,
        encoder.encode_texts, encoder.dim,
    )  # fmt: skip
    return images, texts


@torch.inference_mode()
def image_vectors(encoder: Encoder, files: Sequence[Path], report: Report) -> Array:
    """Vectors of image files, (n, dim); zeros, and a line in the report, for one that cannot be read."""
    vectors = np.zeros((len(files), encoder.dim), dtype=np.float32)
    if isinstance(encoder, TrainableEncoder):  # its images are decoded by a DataLoader
        encoder.module.eval()
        pixels, unreadable = decode(files, encoder.preprocess)
        for start in range(0, len(files), TOWER_BATCH):
            part = torch.from_numpy(pixels[start : start + TOWER_BATCH])
            vectors[start : start + len(part)] = encoder.image_vectors(part).float().cpu().numpy()
        for row, reason in unreadable:
            vectors[row] = 0
            report.skip(files[row], reason)
        return vectors
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(files), TOWER_BATCH):
            opened = list(pool.map(_open, files[start : start + TOWER_BATCH]))
            good = [row for row, image in enumerate(opened) if not isinstance(image, BadImage)]
            vectors[start + np.array(good, dtype=int)] = encoder.encode_images([opened[row] for row in good])
            for row, image in enumerate(opened):
                if isinstance(image, BadImage):
                    report.skip(files[start + row], image)
    return vectors


def unreadable_images(files: Sequence[Path], preprocess: Preprocess, folder: Path) -> list[int]:
    """Rows of the image files that cannot be read.

    All are decoded once, by several processes together, and what was found is kept in `folder`.
    """

    def unreadable(part: Sequence[Path]) -> Array:
        marks = np.zeros((len(part), 1), dtype=np.float32)
        for row, _ in decode(part, preprocess).unreadable:
            marks[row] = 1
        return marks

    name = content_name("unreadable", "", [file_state(file) for file in files])
    return np.flatnonzero(cached(folder / name, files, IMAGES_AT_ONCE, unreadable, 1)).tolist()


def _open(file: Path) -> Any:
    """The image, or the error that reading it raised."""
    try:
        return open_image(file)
    except BadImage as error:
        return error


def cached(
    folder: Path, inputs: Sequence[Any], size: int, encode: Callable[[Any], Array], dim: int
) -> HalfArray:
    """Vectors (n, dim) of `inputs` out of `folder`, `size` to a file; missing files are computed.

    Several processes share the missing files. One that has finished its own waits as long as others go on.
    """
    starts = list(range(0, len(inputs), size))
    missing = [start for start in starts if not _file(folder, start).exists()]
    distributed.barrier()  # every process has listed the same files before the first is written
    mine = missing[distributed.rank() :: distributed.world_size()]
    folder.mkdir(parents=True, exist_ok=True)
    for start in track(mine, f"encode {folder.name}", console=console, disable=not distributed.is_main()):
        stored = io.BytesIO()
        np.save(stored, encode(inputs[start : start + size]).astype(np.float16), allow_pickle=False)
        write_file(_file(folder, start), [stored.getbuffer()])
    wait_for([_file(folder, start) for start in missing])
    distributed.barrier()
    table = np.empty((len(inputs), dim), dtype=np.float16)
    for start in starts:
        table[start : start + size] = np.load(_file(folder, start), allow_pickle=False)
    return table


def wait_for(files: Sequence[Path], patience: float = PATIENCE_S, pause: float = 0.5) -> None:
    """Wait until other processes have written `files`.

    A collective operation would give up after the time limit of the process group, however busy the others
    are; this raises TrainingStopped only if no file appears for `patience` seconds.
    """
    left, since = [file for file in files if not file.exists()], time.monotonic()
    while left:
        time.sleep(pause)
        missing = [file for file in left if not file.exists()]
        if len(missing) < len(left):
            left, since = missing, time.monotonic()
        elif time.monotonic() - since > patience:
            raise TrainingStopped(
                f"{len(left)} files that other processes should write are not there after {patience:.0f} s, "
                f"{left[0]} first: give --to (or data.features) a folder that all machines share"
            )


def file_state(file: Path) -> str:
    """A file's path with its size and time: another file under the same name has another state."""
    try:
        status = file.stat()
    except OSError:
        return f"{file}\0"
    return f"{file}\0{status.st_size} {status.st_mtime_ns}"


def content_name(kind: str, fingerprint: str, names: Sequence[str]) -> str:
    """The name of a folder of cached vectors; it depends on the encoder's fingerprint and on all inputs."""
    digest = hashlib.blake2b(fingerprint.encode(), digest_size=8)
    for name in names:
        digest.update(b"\0" + name.encode(errors="surrogatepass"))
    return f"{kind}-{digest.hexdigest()}"


def _file(folder: Path, start: int) -> Path:
    return folder / f"{start:09d}.npy"
