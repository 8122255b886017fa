"""Pools and queries as vectors and codes; each distinct image and text is encoded once, ever, per encoder.

Vectors are cached under the encoder's fingerprint, codes under the model's (see cache.py), so a new quantizer
costs no encoding and a stopped run goes on. A pool larger than memory lives in a mapped file.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from genius.data.images import open_image
from genius.encode.base import Encoder, FusingEncoder, Parts, encode_parts
from genius.errors import BadData, BadImage
from genius.evaluate.cache import Key, RowCache
from genius.evaluate.contents import ABSENT, MODALITIES, Contents, Progress, Source
from genius.evaluate.estimate import available_memory
from genius.types import Modality

if TYPE_CHECKING:
    from PIL.Image import Image

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
CHUNK = 4096  # things whose vectors are put together at once
AT_LEAST = 448  # pixels of a side; a larger JPEG may be decoded at a half of its size, as the engine does
BATCH = 256  # images or texts that are encoded and saved at once
log = logging.getLogger(__name__)


class Embedding(Protocol):
    """What the bench needs of a model to turn content into vectors and codes."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the same item could get other codes."""

    @property
    def sizes(self) -> Sequence[int]:
        """Codes per level."""

    @property
    def encoder(self) -> Encoder | FusingEncoder:
        """Images and texts to vectors."""

    def phi(self, parts: Parts) -> Floats:
        """The fused embedding, (n, dim)."""

    def z(self, parts: Parts) -> Floats:
        """The embedding after fusion, (n, dim)."""

    def codes(self, parts: Parts, modalities: Sequence[Modality]) -> NDArray[np.uint16]:
        """Codes of items, (n, levels)."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Items that can be searched, as vectors and codes."""

    ids: Sequence[str]
    modality: NDArray[np.uint8]  # (n,), in the order of Modality
    phi: Floats  # (n, dim); may be a mapped file
    codes: NDArray[np.uint16]  # (n, levels)
    digest: str
    unreadable: Sequence[str]  # ids of items that were left out
    parts: Callable[[Ints], Parts]  # the image and text vectors of some rows

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Questions:
    """Queries as vectors; one that cannot be asked has zero vectors and is not `askable`."""

    ids: Sequence[str]
    want: NDArray[np.uint8]  # (n,), in the order of Modality; systems read it off the instruction instead
    phi: Floats  # (n, dim)
    z: Floats  # (n, dim)
    askable: NDArray[np.bool_]  # (n,)
    digest: str

    def __len__(self) -> int:
        return len(self.ids)


def joined(parts: Sequence[Questions]) -> Questions:
    """Several sets of queries as one, one after the other."""
    return Questions(
        [name for part in parts for name in part.ids],
        np.concatenate([part.want for part in parts]),
        np.concatenate([part.phi for part in parts]),
        np.concatenate([part.z for part in parts]),
        np.concatenate([part.askable for part in parts]),
        " ".join(part.digest for part in parts),
    )


def taken(questions: Questions, rows: Ints) -> Questions:
    """Some of the queries."""
    return Questions(
        [questions.ids[row] for row in rows.tolist()],
        questions.want[rows],
        questions.phi[rows],
        questions.z[rows],
        questions.askable[rows],
        questions.digest,
    )


class Encoding:
    """Turns contents into vectors and codes through the caches in `folder`."""

    def __init__(self, model: Embedding, folder: Path, progress: Progress | None = None) -> None:
        self.fuses = isinstance(model.encoder, FusingEncoder)
        self._model, self._folder = model, folder
        self._progress = progress or (lambda what, done, of: None)
        self._vectors = RowCache(folder / "vectors", model.encoder.fingerprint, model.encoder.dim, "float32")
        self._codes = RowCache(folder / "codes", model.fingerprint, len(model.sizes), "uint16")
        self._bad: set[Key] = set()  # images that do not decode

    def to_encode(self, contents: Sequence[Contents]) -> tuple[int, int]:
        """How many images and texts are not cached yet; a fused pair counts as an image."""
        _, sources = self._missing(contents)
        images = sum(image is not None for image, _ in sources)
        return images, len(sources) - images

    def seconds_to_encode(self, contents: Sequence[Contents], sample: int = 16) -> float:
        """A guess from encoding (and keeping) a few of the images and texts that are missing."""
        keys, sources = self._missing(contents)
        total = 0.0
        for has_image in (True, False):
            rows = [row for row, (image, _) in enumerate(sources) if (image is not None) == has_image]
            if len(rows) <= sample:
                continue
            self._encode([keys[row] for row in rows[:2]], [sources[row] for row in rows[:2]])  # warm up
            start = time.perf_counter()
            timed = rows[2:sample]
            self._encode([keys[row] for row in timed], [sources[row] for row in timed])
            total += (time.perf_counter() - start) / len(timed) * (len(rows) - sample)
        return total

    def encode(self, contents: Sequence[Contents]) -> None:
        """Encode whatever is not cached; every batch is on disk before the next begins."""
        keys, sources = self._missing(contents)
        for start in range(0, len(keys), BATCH):
            self._progress("encoding", start, len(keys))
            self._encode(keys[start : start + BATCH], sources[start : start + BATCH])
        if keys:
            self._progress("encoding", len(keys), len(keys))

    def pool(self, contents: Contents) -> Pool:
        """The pool of `contents`, encoded; items whose image cannot be read are left out and named."""
        self.encode([contents])
        usable = self._usable(contents)
        kept = np.flatnonzero(usable)
        if len(contents) and not len(kept):
            raise BadData(
                f"none of the {len(contents)} items can be read: are the images under the data root?"
            )
        modality = np.array(contents.modality, dtype=np.uint8)[kept]

        def parts(rows: Ints) -> Parts:
            return self._parts(contents, kept[rows])

        phi = self._array(len(kept))
        for rows in _chunks(len(kept)):
            phi[rows] = self._model.phi(parts(rows))
        keys = [contents.content[row] for row in kept.tolist()]
        return Pool(
            ids=[contents.ids[row] for row in kept],
            modality=modality,
            phi=phi,
            codes=self._pool_codes(keys, modality, parts),
            digest=contents.digest(),
            unreadable=[contents.ids[row] for row in np.flatnonzero(~usable)],
            parts=parts,
        )

    def questions(self, contents: Contents) -> Questions:
        """The queries of `contents`, encoded."""
        self.encode([contents])
        askable = self._usable(contents)
        rows = np.flatnonzero(askable)
        shape = (len(contents), self._model.encoder.dim)
        phi, z = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        for chunk in _chunks(len(rows)):
            parts = self._parts(contents, rows[chunk])
            phi[rows[chunk]], z[rows[chunk]] = self._model.phi(parts), self._model.z(parts)
        want = np.array(contents.modality, dtype=np.uint8)
        return Questions(contents.ids, want, phi, z, askable, contents.digest())

    def _missing(self, contents: Sequence[Contents]) -> tuple[list[Key], list[Source]]:
        keys = [key for content in contents for key in content.keys]
        sources = [source for content in contents for source in content.sources]
        rows = [row for row in self._vectors.missing(keys) if keys[row] not in self._bad]
        return [keys[row] for row in rows], [sources[row] for row in rows]

    def _encode(self, keys: Sequence[Key], sources: Sequence[Source]) -> None:
        images = [open_or_none(file) for file, _ in sources]
        bad = {row for row, (file, _) in enumerate(sources) if file is not None and images[row] is None}
        self._bad.update(keys[row] for row in bad)
        good = [row for row in range(len(keys)) if row not in bad]
        parts = encode_parts(
            self._model.encoder, [images[row] for row in good], [sources[row][1] for row in good]
        )
        vectors = parts.image + parts.text  # one of them is zero
        if not np.isfinite(vectors).all():
            raise BadData("the encoder gives NaN or infinite vectors: its weights are damaged")
        self._vectors.add([keys[row] for row in good], vectors)

    def _usable(self, contents: Contents) -> NDArray[np.bool_]:
        usable = np.ones(len(contents), dtype=bool)
        usable[contents.broken] = False
        bad = [row for row, key in enumerate(contents.keys) if key in self._bad]
        return usable & ~np.isin(contents.image, bad)

    def _parts(self, contents: Contents, rows: Ints) -> Parts:
        return Parts(*(self._gather(contents.keys, c, rows) for c in (contents.image, contents.text)))

    def _gather(self, keys: Sequence[Key], column: Sequence[int], rows: Ints) -> Floats:
        units = np.array([column[row] for row in rows], dtype=np.int64)
        out = np.zeros((len(rows), self._model.encoder.dim), dtype=np.float32)
        there = np.flatnonzero(units != ABSENT)
        out[there] = self._vectors.gather([keys[unit] for unit in units[there]])
        return out

    def _pool_codes(
        self, keys: Sequence[Key], modality: NDArray[np.uint8], parts: Callable[[Ints], Parts]
    ) -> NDArray[np.uint16]:
        missing = np.array(self._codes.missing(keys), dtype=np.int64)
        for chunk in _chunks(len(missing)):
            self._progress("quantizing", int(chunk[0]), len(missing))
            rows = missing[chunk]
            codes = self._model.codes(parts(rows), [MODALITIES[m] for m in modality[rows]])
            self._codes.add([keys[row] for row in rows], np.asarray(codes, dtype=np.uint16))
        return np.asarray(self._codes.gather(keys), dtype=np.uint16)

    def _array(self, rows: int) -> Floats:
        """Room for `rows` vectors: in memory, or in a mapped file that vanishes with the process."""
        shape = (rows, self._model.encoder.dim)
        if 4 * rows * shape[1] < available_memory() // 2:
            return np.empty(shape, dtype=np.float32)
        with tempfile.TemporaryFile(dir=self._folder) as file:
            return np.memmap(file, dtype=np.float32, mode="w+", shape=shape)


def open_or_none(file: Path | None) -> Image | None:
    """The picture in `file`; None where there is none or it cannot be read."""
    if file is None:
        return None
    try:
        return open_image(file, at_least=AT_LEAST)
    except BadImage as error:
        log.info("%s", error)
        return None


def _chunks(count: int) -> list[Ints]:
    return [np.arange(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]
