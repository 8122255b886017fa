"""Pools and queries as embeddings and codes; each distinct image and text is encoded once per encoder.

Embeddings are cached under the encoder's fingerprint, codes under the model's (see cache.py), both together
with the environment (environment.py), so a new quantizer costs no encoding and a stopped run goes on. A pool
larger than memory is memory-mapped.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from genius.data.images import open_image
from genius.encode.base import Encoder, FusingEncoder, Parts, encode_parts
from genius.encode.images import cores
from genius.errors import BadData, BadImage
from genius.evaluate.cache import ABSENT, MODALITIES, ArrayCache, Input, Inputs, Key, Progress
from genius.evaluate.environment import CODE_SOURCES, VECTOR_SOURCES, environment
from genius.types import Modality

if TYPE_CHECKING:
    from PIL.Image import Image

    from genius.model import Model

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
CHUNK = 4096  # rows that are fused at once
AT_LEAST = 448  # pixels of a side; a larger JPEG may be decoded at half its size, as the engine does
BATCH = 256  # images or texts that are encoded and saved at once
log = logging.getLogger(__name__)


class EncoderOnly:
    """An encoder in place of a model, for exact search on its embeddings; all items have the same code."""

    sizes = (1,)

    def __init__(self, encoder: Encoder | FusingEncoder) -> None:
        self.encoder = encoder
        self.fingerprint = encoder.fingerprint

    def phi(self, parts: Parts) -> Floats:
        """Image and text embeddings added up, unit length."""
        return parts.phi()

    z = phi

    def codes(self, parts: Parts, modalities: Sequence[Modality]) -> NDArray[np.uint16]:
        """One code for all."""
        return np.zeros((len(modalities), 1), dtype=np.uint16)


@dataclass(frozen=True, slots=True)
class EncodedPool:
    """Items that can be searched, as embeddings and codes."""

    ids: Sequence[str]
    modality: NDArray[np.uint8]  # (n,), in the order of Modality
    phi: Floats  # (n, dim); may be memory-mapped
    codes: NDArray[np.uint16]  # (n, levels)
    digest: str
    unreadable: Sequence[str]  # ids of items that were left out
    parts: Callable[[Ints], Parts]  # the image and text embeddings of some rows

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class EncodedQueries:
    """Queries as embeddings; one that cannot be encoded has zeros and is not `valid`."""

    ids: Sequence[str]
    want: NDArray[np.uint8]  # (n,), in the order of Modality; systems read it off the instruction instead
    phi: Floats  # (n, dim)
    z: Floats  # (n, dim)
    valid: NDArray[np.bool_]  # (n,)
    digest: str

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def concat(cls, parts: Sequence[EncodedQueries]) -> EncodedQueries:
        """Several sets of queries as one, one after the other."""
        return cls(
            [name for part in parts for name in part.ids],
            np.concatenate([part.want for part in parts]),
            np.concatenate([part.phi for part in parts]),
            np.concatenate([part.z for part in parts]),
            np.concatenate([part.valid for part in parts]),
            " ".join(part.digest for part in parts),
        )

    def take(self, rows: Ints) -> EncodedQueries:
        """Some of the queries."""
        ids = [self.ids[row] for row in rows.tolist()]
        arrays = self.want[rows], self.phi[rows], self.z[rows], self.valid[rows]
        return EncodedQueries(ids, *arrays, self.digest)


class Embedder:
    """Encodes pools and queries through the caches in `folder`."""

    def __init__(self, model: Model | EncoderOnly, folder: Path, progress: Progress | None = None) -> None:
        self.fuses = isinstance(model.encoder, FusingEncoder)
        self._model, self._folder = model, folder
        self._progress = progress or (lambda label, done, total: None)
        self.device = getattr(model.encoder, "device", "cpu")
        encoder = f"{model.encoder.fingerprint}, {environment(self.device, *VECTOR_SOURCES)}"
        quantizer = f"{model.fingerprint}, {environment(self.device, *CODE_SOURCES)}"
        self._embeddings = ArrayCache(folder / "vectors", encoder, model.encoder.dim, "float32")
        self._codes = ArrayCache(folder / "codes", quantizer, len(model.sizes), "uint16")
        self._bad: set[Key] = set()  # images that do not decode

    def count_missing(self, inputs: Sequence[Inputs]) -> tuple[int, int]:
        """How many images and texts are not cached yet; a fused pair counts as an image."""
        _, sources = self._missing(inputs)
        images = sum(image is not None for image, _ in sources)
        return images, len(sources) - images

    def encode(self, inputs: Sequence[Inputs]) -> None:
        """Encode whatever is not cached; every batch is on disk before the next begins."""
        keys, sources = self._missing(inputs)
        starts = range(0, len(keys), BATCH)
        batches = [sources[start : start + BATCH] for start in starts]
        for start, batch, images in zip(starts, batches, _opened(batches), strict=True):
            self._progress("encoding", start, len(keys))
            self._encode(keys[start : start + BATCH], batch, images)
        if keys:
            self._progress("encoding", len(keys), len(keys))

    def pool(self, inputs: Inputs) -> EncodedPool:
        """The pool of `inputs`, encoded; items whose image cannot be read are left out and named."""
        self.encode([inputs])
        usable = self._usable(inputs)
        kept = np.flatnonzero(usable)
        if len(inputs) and not len(kept):
            raise BadData(f"none of the {len(inputs)} items can be read: are the images under the data root?")
        modality = np.array(inputs.modality, dtype=np.uint8)[kept]

        def parts(rows: Ints) -> Parts:
            return self._parts(inputs, kept[rows])

        phi = self._array(len(kept))
        for rows in _chunks(len(kept)):
            phi[rows] = self._model.phi(parts(rows))
        keys = [inputs.content[row] for row in kept.tolist()]
        return EncodedPool(
            ids=[inputs.ids[row] for row in kept],
            modality=modality,
            phi=phi,
            codes=self._pool_codes(keys, modality, parts),
            digest=inputs.digest(),
            unreadable=[inputs.ids[row] for row in np.flatnonzero(~usable)],
            parts=parts,
        )

    def queries(self, inputs: Inputs) -> EncodedQueries:
        """The queries of `inputs`, encoded."""
        self.encode([inputs])
        valid = self._usable(inputs)
        rows = np.flatnonzero(valid)
        shape = (len(inputs), self._model.encoder.dim)
        phi, z = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        for chunk in _chunks(len(rows)):
            parts = self._parts(inputs, rows[chunk])
            phi[rows[chunk]], z[rows[chunk]] = self._model.phi(parts), self._model.z(parts)
        want = np.array(inputs.modality, dtype=np.uint8)
        return EncodedQueries(inputs.ids, want, phi, z, valid, inputs.digest())

    def _missing(self, inputs: Sequence[Inputs]) -> tuple[list[Key], list[Input]]:
        keys = [key for each in inputs for key in each.keys]
        sources = [source for each in inputs for source in each.inputs]
        rows = [row for row in self._embeddings.missing(keys) if keys[row] not in self._bad]
        return [keys[row] for row in rows], [sources[row] for row in rows]

    def _encode(self, keys: Sequence[Key], sources: Sequence[Input], images: Sequence[Image | None]) -> None:
        bad = {row for row, (file, _) in enumerate(sources) if file is not None and images[row] is None}
        self._bad.update(keys[row] for row in bad)
        good = [row for row in range(len(keys)) if row not in bad]
        parts = encode_parts(
            self._model.encoder, [images[row] for row in good], [sources[row][1] for row in good]
        )
        embeddings = parts.image + parts.text  # one of them is zero
        if not np.isfinite(embeddings).all():
            raise BadData("the encoder gives NaN or infinite embeddings: its weights are damaged")
        self._embeddings.add([keys[row] for row in good], embeddings)

    def _usable(self, inputs: Inputs) -> NDArray[np.bool_]:
        usable = np.ones(len(inputs), dtype=bool)
        usable[inputs.broken] = False
        bad = [row for row, key in enumerate(inputs.keys) if key in self._bad]
        return usable & ~np.isin(inputs.image, bad)

    def _parts(self, inputs: Inputs, rows: Ints) -> Parts:
        return Parts(*(self._gather(inputs.keys, c, rows) for c in (inputs.image, inputs.text)))

    def _gather(self, keys: Sequence[Key], column: Sequence[int], rows: Ints) -> Floats:
        index = np.array([column[row] for row in rows], dtype=np.int64)
        out = np.zeros((len(rows), self._model.encoder.dim), dtype=np.float32)
        present = np.flatnonzero(index != ABSENT)
        out[present] = self._embeddings.gather([keys[i] for i in index[present]])
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
        """An array of `rows` embeddings: in memory, or memory-mapped in a file that is deleted at exit."""
        shape = (rows, self._model.encoder.dim)
        if 4 * rows * shape[1] < available_memory() // 2:
            return np.empty(shape, dtype=np.float32)
        with tempfile.TemporaryFile(dir=self._folder) as file:
            return np.memmap(file, dtype=np.float32, mode="w+", shape=shape)


def _opened(batches: Sequence[Sequence[Input]]) -> Iterator[list[Image | None]]:
    """The images of each batch; threads decode those of the next one while a batch is encoded."""
    with ThreadPoolExecutor(cores()) as threads:
        ahead: Iterator[Image | None] = iter(())
        for number, batch in enumerate(batches):
            now, ahead = ahead, threads.map(open_or_none, [file for file, _ in batch])
            if number:
                yield list(now)
        if batches:
            yield list(ahead)


def open_or_none(file: Path | None) -> Image | None:
    """The image in `file`; None where there is none or it cannot be read."""
    if file is None:
        return None
    try:
        return open_image(file, at_least=AT_LEAST)
    except BadImage as error:
        log.info("%s", error)
        return None


def _chunks(count: int) -> list[Ints]:
    return [np.arange(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]


def available_memory() -> int:
    """Bytes of memory that a process can still take without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
