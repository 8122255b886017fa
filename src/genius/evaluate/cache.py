"""Rows of numbers on disk under the content they were computed from: vectors and codes that outlive a run.

A cache belongs to a model's fingerprint; a row's key is a hash of what was encoded. So a changed image, text
or model is another key and is computed anew, a copied or renamed file is found again, and pools that share
items share rows. Rows come in segments, each published whole: a run that was stopped goes on where it was.
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
    """The key of content that is made of these parts; where one part ends matters."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


class RowCache:
    """Rows of one width and type in `folder`, found by key. One process writes at a time; many may read."""

    def __init__(self, folder: Path, fingerprint: str, width: int, dtype: str) -> None:
        self._marks = {"fingerprint": fingerprint, "width": str(width), "dtype": dtype}
        self._folder = folder / key_of(*(mark.encode() for mark in self._marks.values())).hex()
        self._width, self._dtype = width, np.dtype(dtype)
        with storage_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        self._segments: list[Path] = []
        self._where: dict[Key, tuple[int, int]] = {}  # key -> segment, row
        for file in sorted(self._folder.glob("*.safetensors")):
            self._take(file)

    def __len__(self) -> int:
        return len(self._where)

    def missing(self, keys: Sequence[Key]) -> list[int]:
        """Positions in `keys` of rows that are not here, each key once."""
        seen: set[Key] = set()
        found = []
        for position, key in enumerate(keys):
            if key not in self._where and key not in seen:
                seen.add(key)
                found.append(position)
        return found

    def add(self, keys: Sequence[Key], rows: NDArray[np.generic]) -> None:
        """Keep `rows` (n, width) under `keys`; they are on disk when this returns."""
        if rows.shape != (len(keys), self._width) or rows.dtype != self._dtype:
            raise BadInput(f"{rows.dtype} rows of shape {rows.shape} do not fit {len(keys)} keys here")
        if not len(keys):
            return
        packed = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), KEY_BYTES)
        tensors = {"keys": packed, "rows": np.ascontiguousarray(rows)}
        file = self._folder / f"{len(self._segments):06d}-{keys[0].hex()}.safetensors"
        write_file(file, [save(tensors, metadata=self._marks | {"sum": _sum(tensors)})])
        self._enter(file, keys)

    def gather(self, keys: Sequence[Key]) -> NDArray[np.generic]:
        """The rows of `keys`, (n, width); every key must be here."""
        out = np.zeros((len(keys), self._width), dtype=self._dtype)
        self.gather_into(out, keys)
        return out

    def gather_into(self, out: NDArray[np.generic], keys: Sequence[Key]) -> None:
        """Write the rows of `keys` to `out` (n, width), reading each segment once."""
        places = np.array([self._where[key] for key in keys], dtype=np.int64).reshape(-1, 2)
        order = np.argsort(places[:, 0], kind="stable")
        cuts = np.flatnonzero(np.diff(places[order, 0])) + 1
        for group in np.split(order, cuts):
            if len(group):
                with safe_open(self._segments[places[group[0], 0]], framework="numpy") as segment:
                    out[group] = segment.get_tensor("rows")[places[group, 1]]

    def _take(self, file: Path) -> None:
        """Enter a segment of an earlier run; a damaged one is set aside and its rows are computed again."""
        try:
            with safe_open(file, framework="numpy") as segment:
                marks = segment.metadata() or {}
                tensors = {name: segment.get_tensor(name) for name in ("keys", "rows")}
            whole = marks == self._marks | {"sum": _sum(tensors)}
        except (SafetensorError, OSError, ValueError):
            whole = False
        if not whole:
            log.warning("%s is damaged: its rows are computed again", file)
            with storage_errors(file):
                file.rename(file.with_suffix(".damaged"))
            return
        self._enter(file, [row.tobytes() for row in tensors["keys"]])

    def _enter(self, file: Path, keys: Sequence[Key]) -> None:
        number = len(self._segments)
        self._segments.append(file)
        self._where.update((key, (number, row)) for row, key in enumerate(keys))


def _sum(tensors: dict[str, NDArray[np.generic]]) -> str:
    return key_of(*(tensors[name].tobytes() for name in sorted(tensors))).hex()
