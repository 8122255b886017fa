"""Generations: numbered folders of memory-mapped arrays, published whole and checked against their checksums.

The manifest of a generation holds the checksums of its arrays and the truth the digest of the manifest, so
any other byte is noticed. Arrays are checked when opened; large ones (vectors) block by block when used.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius import files
from genius.failpoints import failpoint
from genius.files import write_durably

AnyArray = NDArray[Any]
BLOCK = 1 << 16  # bytes per checksum of a large array
MANIFEST = "manifest.json"
_FOLDER = re.compile(r"generation-(\d{6,})")


class CacheDamaged(Exception):
    """A generation is missing or not what was published. Never shown to users: the cache is built anew."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A large array that is written piece by piece; its pieces are along the first axis."""

    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[AnyArray]


@dataclass(slots=True)
class LargeArray:
    """A memory-mapped array whose blocks are checked the first time a row of them is read."""

    data: AnyArray  # (n, d)
    sums: NDArray[np.uint32]  # CRC-32 of each block
    _checked: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self._checked = np.zeros(len(self.sums), dtype=bool)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole."""
        return self.data.shape

    def __getitem__(self, rows: slice | AnyArray) -> AnyArray:
        """The rows (places or a slice), checked; raises CacheDamaged when a block is not what was written."""
        places = np.arange(len(self.data))[rows] if isinstance(rows, slice) else np.asarray(rows).ravel()
        if len(places):
            self._check(places.astype(np.int64))
        return np.asarray(self.data[rows])

    def _check(self, rows: NDArray[np.int64]) -> None:
        width = self.data.nbytes // len(self.data)
        first, last = rows * width // BLOCK, (rows * width + width - 1) // BLOCK
        steps = np.arange(int((last - first).max()) + 1)
        touched = np.unique(np.minimum(first[:, None] + steps, last[:, None]))
        flat = self.data.reshape(-1).view(np.uint8)
        for block in touched[~self._checked[touched]]:
            if zlib.crc32(flat[block * BLOCK : (block + 1) * BLOCK].data) != int(self.sums[block]):
                raise CacheDamaged(f"block {block} of a large array fails its checksum")
            self._checked[block] = True


@dataclass(slots=True)
class Generation:
    """The arrays of one generation; `number` 0 means that it is in memory only."""

    number: int
    last_row: int  # every item up to this row that lived at the time is in it
    arrays: dict[str, AnyArray]
    large: dict[str, LargeArray | AnyArray]
    _pin: int | None = None

    def close(self) -> None:
        """Let go of the files, so that the writer may delete them."""
        if self._pin is not None:
            os.close(self._pin)
            self._pin = None


def publish(
    folder: Path,
    number: int,
    facts: Mapping[str, Any],
    arrays: Mapping[str, AnyArray],
    large: Mapping[str, Stream],
) -> str:
    """Write generation `number` into `folder` and give it its name; the digest of its manifest."""
    final = generation_folder(folder, number)
    partial = files.new_folder(final)
    try:
        manifest = _fill(partial, {"generation": number, **facts}, arrays, large)
        failpoint("after-cache-write")
        files.publish(partial, final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return hashlib.sha256(manifest).hexdigest()


def load(folder: Path, number: int, digest: str, layout: str) -> Generation:
    """Open generation `number`, checked; raises CacheDamaged when it is not exactly what was published."""
    home = generation_folder(folder, number)
    try:
        pin = os.open(home / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CacheDamaged(f"{home} has no manifest: {error}") from None
    try:
        fcntl.flock(pin, fcntl.LOCK_SH)  # keeps the writer from deleting what we are about to map
        manifest = _manifest(home, digest, layout)
        mapped = {name: _map(home / f"{name}.bin", entry) for name, entry in manifest["arrays"].items()}
    except OSError as error:
        os.close(pin)
        raise CacheDamaged(f"{home} cannot be read: {error}") from None
    except BaseException:
        os.close(pin)
        raise
    large = {
        name: LargeArray(mapped[name], mapped[f"{name}.sums"])
        for name, entry in manifest["arrays"].items()
        if "crc32" not in entry
    }
    arrays = {name: array for name, array in mapped.items() if name.removesuffix(".sums") not in large}
    return Generation(number, manifest["last_row"], arrays, dict(large), pin)


def verify(generation: Generation) -> None:
    """Read every block of the large arrays; raises CacheDamaged."""
    for array in generation.large.values():
        for start in range(0, len(array), 1 << 14):
            array[start : start + (1 << 14)]


def numbers(folder: Path) -> list[int]:
    """Numbers of the generations that have a folder, ascending."""
    return sorted(int(found[1]) for entry in folder.iterdir() if (found := _FOLDER.fullmatch(entry.name)))


def delete_others(folder: Path, keep: int) -> None:
    """Delete every generation but `keep`, except those a reader still holds; leftovers of crashes go too."""
    for entry in folder.iterdir():
        if entry.name.startswith("generation-") and entry.name.endswith(files.TEMPORARY):
            shutil.rmtree(entry, ignore_errors=True)
    for number in numbers(folder):
        if number == keep:
            continue
        home = generation_folder(folder, number)
        try:
            pin = os.open(home / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            shutil.rmtree(home, ignore_errors=True)
            continue
        try:
            fcntl.flock(pin, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(home, ignore_errors=True)
        except BlockingIOError:
            pass  # a reader is using it; a later compaction deletes it
        finally:
            os.close(pin)


def generation_folder(folder: Path, number: int) -> Path:
    """Where generation `number` lies."""
    return folder / f"generation-{number:06d}"


def _fill(
    home: Path, facts: Mapping[str, Any], arrays: Mapping[str, AnyArray], large: Mapping[str, Stream]
) -> bytes:
    """Write all files of a generation into `home`; the manifest."""
    entries = {}
    sums: dict[str, AnyArray] = {}
    for name, stream in large.items():
        blocks = _Blocks()
        write_durably(home / f"{name}.bin", blocks.passing(_bytes(piece) for piece in stream.pieces))
        entries[name] = _entry(stream.dtype, stream.shape)
        sums[f"{name}.sums"] = np.array(blocks.finish(), dtype=np.uint32)
    for name, array in {**arrays, **sums}.items():
        data = _bytes(array)
        write_durably(home / f"{name}.bin", [data])
        entries[name] = _entry(array.dtype.str, array.shape) | {"crc32": zlib.crc32(data)}
    manifest = json.dumps({**facts, "arrays": entries}, sort_keys=True).encode()
    write_durably(home / MANIFEST, [manifest])
    return manifest


def _entry(dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape)}


def _manifest(home: Path, digest: str, layout: str) -> dict[str, Any]:
    raw = (home / MANIFEST).read_bytes()
    if hashlib.sha256(raw).hexdigest() != digest:
        raise CacheDamaged(f"the manifest of {home} is not the published one")
    manifest: dict[str, Any] = json.loads(raw)
    if manifest["layout"] != layout:
        raise CacheDamaged(f"{home} has the layout {manifest['layout']!r}, not {layout!r}")
    return manifest


def _bytes(array: AnyArray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _map(file: Path, entry: Mapping[str, Any]) -> AnyArray:
    """The array in `file`, memory-mapped, its size and (unless it is a large one) its checksum verified."""
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if file.stat().st_size != size:
        raise CacheDamaged(f"{file} has {file.stat().st_size} bytes instead of {size}")
    if size == 0:
        return np.zeros(shape, dtype)
    array = np.memmap(file, dtype=dtype, mode="r", shape=shape)
    if "crc32" in entry and zlib.crc32(_bytes(array)) != entry["crc32"]:
        raise CacheDamaged(f"{file} fails its checksum")
    return array


class _Blocks:
    """Checksums of the blocks of a stream that passes by."""

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._open = 0  # bytes in the unfinished block
        self._sum = 0

    def passing(self, pieces: Iterable[memoryview]) -> Iterator[memoryview]:
        for piece in pieces:
            rest = piece
            while rest:
                head, rest = rest[: BLOCK - self._open], rest[BLOCK - self._open :]
                self._sum = zlib.crc32(head, self._sum)
                self._open += len(head)
                if self._open == BLOCK:
                    self._sums.append(self._sum)
                    self._open = self._sum = 0
            yield piece

    def finish(self) -> list[int]:
        return [*self._sums, self._sum] if self._open else self._sums
