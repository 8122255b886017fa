"""Vectors of all images and texts of a training set, encoded once and kept by content."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from genius.data.images import open_image
from genius.data.training_set import TrainingSet
from genius.encode.base import Array, Encoder
from genius.store.atomic import write_file

IMAGES_AT_ONCE, TEXTS_AT_ONCE = 256, 4096


def encode_set(encoder: Encoder, data: TrainingSet, folder: Path) -> tuple[Array, Array]:
    """Vectors of `data.images` and `data.texts`, kept in `folder` under a name of encoder and content."""

    def images(part: Sequence[Any]) -> Array:
        with ThreadPoolExecutor() as pool:
            return encoder.encode_images(list(pool.map(open_image, part)))

    return (
        _kept(folder, "images", encoder, data.images, images, IMAGES_AT_ONCE),
        _kept(folder, "texts", encoder, data.texts, encoder.encode_texts, TEXTS_AT_ONCE),
    )


def vector_file(folder: Path, kind: str, fingerprint: str, names: Sequence[Any]) -> Path:
    """Where the vectors of these things are kept: another encoder or another list is another file."""
    digest = hashlib.blake2b(fingerprint.encode(), digest_size=8)
    for name in names:
        digest.update(b"\0" + str(name).encode(errors="surrogatepass"))
    return folder / f"{kind}-{digest.hexdigest()}.npy"


def _kept(
    folder: Path, kind: str, encoder: Encoder, names: Sequence[Any], encode: Callable[[Any], Array], size: int
) -> Array:
    file = vector_file(folder, kind, encoder.fingerprint, names)
    if not file.exists():
        parts = [encode(part) for part in track(list(_parts(names, size)), f"encode {kind}")]
        encoded = np.concatenate(parts) if parts else np.empty((0, encoder.dim), np.float32)
        stored = io.BytesIO()
        np.save(stored, encoded.astype(np.float16), allow_pickle=False)
        folder.mkdir(parents=True, exist_ok=True)
        write_file(file, [stored.getbuffer()])
    table: Array = np.load(file, allow_pickle=False).astype(np.float32)
    return table


def _parts(names: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (names[start : start + size] for start in range(0, len(names), size))
