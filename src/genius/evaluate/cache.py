"""Arrays on disk by the content they were computed from: embeddings and codes that outlive a run.

A cache belongs to a model's fingerprint; a row's key is a hash of what was encoded. So a changed image, text
or model is computed again, a copied or renamed file is found, and pools that share items share rows. Each
batch of rows is a file, written atomically: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from genius.errors import BadInput
from genius.files import storage_errors, write_file

Key = bytes
KEY_BYTES = 16
log = logging.getLogger(__name__)


def key_of(*parts: bytes) -> Key:
    """A hash of these parts; where one part ends matters."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


class ArrayCache:
    """Rows of one width and dtype in `folder`, found by key. One process writes at a time; many may read."""

    def __init__(self, folder: Path, fingerprint: str, width: int, dtype: str) -> None:
        self._metadata = {"fingerprint": fingerprint, "width": str(width), "dtype": dtype}
        self._folder = folder / key_of(*(value.encode() for value in self._metadata.values())).hex()
        self._width, self._dtype = width, np.dtype(dtype)
        with storage_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        self._files: list[Path] = []
        self._location: dict[Key, tuple[int, int]] = {}  # key -> file, row
        for file in sorted(self._folder.glob("*.safetensors")):
            self._load(file)

    def __len__(self) -> int:
        return len(self._location)

    def missing(self, keys: Sequence[Key]) -> list[int]:
        """Positions in `keys` of rows that are not cached, each key once."""
        first = {key: position for position, key in reversed(list(enumerate(keys)))}
        return sorted(position for key, position in first.items() if key not in self._location)

    def add(self, keys: Sequence[Key], rows: NDArray[np.generic]) -> None:
        """Store `rows` (n, width) under `keys`; they are on disk when this returns."""
        if rows.shape != (len(keys), self._width) or rows.dtype != self._dtype:
            raise BadInput(f"{rows.dtype} rows of shape {rows.shape} do not fit {len(keys)} keys here")
        if not len(keys):
            return
        packed = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), KEY_BYTES)
        tensors = {"keys": packed, "rows": np.ascontiguousarray(rows)}
        file = self._folder / f"{len(self._files):06d}-{keys[0].hex()}.safetensors"
        write_file(file, [save(tensors, metadata=self._metadata | {"sum": _checksum(tensors)})])
        self._register(file, keys)

    def gather(self, keys: Sequence[Key]) -> NDArray[np.generic]:
        """The rows of `keys`, (n, width); every key must be cached. Each file is read once."""
        out = np.zeros((len(keys), self._width), dtype=self._dtype)
        located = np.array([self._location[key] for key in keys], dtype=np.int64).reshape(-1, 2)
        order = np.argsort(located[:, 0], kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(located[order, 0])) + 1):
            if len(group):
                with safe_open(self._files[located[group[0], 0]], framework="numpy") as stored:
                    out[group] = stored.get_tensor("rows")[located[group, 1]]
        return out

    def _load(self, file: Path) -> None:
        """Read a file of an earlier run; a damaged one is set aside and its rows are computed again."""
        try:
            with safe_open(file, framework="numpy") as stored:
                metadata = stored.metadata() or {}
                tensors = {name: stored.get_tensor(name) for name in ("keys", "rows")}
            intact = metadata == self._metadata | {"sum": _checksum(tensors)}
        except (SafetensorError, OSError, ValueError):
            intact = False
        if not intact:
            log.warning("%s is damaged: its rows are computed again", file)
            with storage_errors(file):
                file.rename(file.with_suffix(".damaged"))
            return
        self._register(file, [row.tobytes() for row in tensors["keys"]])

    def _register(self, file: Path, keys: Sequence[Key]) -> None:
        number = len(self._files)
        self._files.append(file)
        self._location.update((key, (number, row)) for row, key in enumerate(keys))


def _checksum(tensors: dict[str, NDArray[np.generic]]) -> str:
    return key_of(*(tensors[name].tobytes() for name in sorted(tensors))).hex()
