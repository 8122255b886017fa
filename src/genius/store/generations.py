"""Generations: numbered folders of arrays, published whole and checked against their checksums.

The manifest of a generation holds the checksums of its arrays and the truth the digest of the manifest, so
any other byte is noticed. Arrays are read and checked when opened; large ones (vectors) block by block when
used. No file is mapped into memory: one that is cut short would end the process by a signal.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius import files
from genius.failpoints import failpoint
from genius.files import write_durably
from genius.store.large_array import BLOCK, OLDER_BLOCK, CacheDamaged, LargeArray

AnyArray = NDArray[Any]
MANIFEST = "manifest.json"
_FOLDER = re.compile(r"generation-(\d{6,})")


@dataclass(frozen=True, slots=True)
class Stream:
    """A large array that is written piece by piece; its pieces are along the first axis."""

    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[AnyArray]


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
        fcntl.flock(pin, fcntl.LOCK_SH)  # keeps the writer from deleting what we are about to read
        manifest = _manifest(home, digest, layout)
        entries = manifest["arrays"]
        read = {
            name: _read(home / f"{name}.bin", entry) for name, entry in entries.items() if "crc32" in entry
        }
        large = {
            name: LargeArray(
                home / f"{name}.bin",
                entry["dtype"],
                entry["shape"],
                read.pop(f"{name}.sums"),
                entry.get("block", OLDER_BLOCK),
            )
            for name, entry in entries.items()
            if "crc32" not in entry
        }
    except OSError as error:
        os.close(pin)
        raise CacheDamaged(f"{home} cannot be read: {error}") from None
    except BaseException:
        os.close(pin)
        raise
    return Generation(number, manifest["last_row"], read, dict(large), pin)


def verify(generation: Generation) -> None:
    """Read every block of the large arrays; raises CacheDamaged."""
    for array in generation.large.values():
        if isinstance(array, LargeArray):
            array.verify()


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
        entries[name] = _entry(stream.dtype, stream.shape) | {"block": BLOCK}
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


def _read(file: Path, entry: Mapping[str, Any]) -> AnyArray:
    """The array in `file`, its size and its checksum verified."""
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if file.stat().st_size != size:
        raise CacheDamaged(f"{file} has {file.stat().st_size} bytes instead of {size}")
    array = np.fromfile(file, dtype=dtype)
    if array.nbytes != size or zlib.crc32(_bytes(array)) != entry["crc32"]:
        raise CacheDamaged(f"{file} fails its checksum")
    array.flags.writeable = False
    return array.reshape(shape)


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
