"""Atomic, durable writes of files and folders: temporary name, fsync, rename, fsync of the parent folder."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from genius.errors import StorageError
from genius.failpoints import failpoint

Bytes = bytes | memoryview
TEMPORARY = ".partial"  # ending of names that are not published yet


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into StorageError naming `path` and the cure."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"cannot write {path}: {reason}; nothing was published: make room or mend the permissions, "
            "then run again"
        ) from error


def temporary_name(path: Path) -> Path:
    """A name beside `path` that no other writer uses."""
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")


def make_folder(folder: Path) -> None:
    """Make `folder` and its parents where they are missing; the new names are on disk when it returns."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in missing:
            _sync_path(path.parent)


def write_file(path: Path, chunks: Iterable[Bytes]) -> None:
    """Publish `chunks` as the file `path`: temporary name, fsync, rename, fsync of the folder."""
    partial = temporary_name(path)
    with storage_errors(path):
        try:
            write_durably(partial, chunks)
            _rename(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        _sync_path(path.parent)


def write_durably(path: Path, chunks: Iterable[Bytes]) -> None:
    """Write a file under its final name and fsync it; for files inside a folder that is not published yet."""
    with storage_errors(path):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            for chunk in chunks:
                rest = memoryview(chunk).cast("B")
                while rest:
                    rest = rest[_write(handle, rest) :]
            _sync(handle)
        finally:
            os.close(handle)


def new_folder(path: Path) -> Path:
    """An empty folder to fill before `publish` gives it the name `path`."""
    partial = temporary_name(path)
    with storage_errors(partial):
        partial.mkdir()
    return partial


def publish(partial: Path, path: Path) -> None:
    """Give the filled `partial` (file or folder) its name `path`, durably."""
    with storage_errors(path):
        _sync_path(partial)
        failpoint("before-rename")
        _rename(partial, path)
        failpoint("after-rename")
        _sync_path(path.parent)


@contextmanager
def write_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to fill; on leaving, its files appear in `folder` whole, on an error not at all.

    A new `folder` appears at once; in an existing one files are replaced one by one and all others stay.
    """
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    with storage_errors(folder):
        try:
            partial.mkdir(parents=True)
            yield partial
            written = sorted(file for file in partial.rglob("*") if file.is_file())
            for file in written:
                _sync_path(file)
            if not folder.exists():
                publish(partial, folder)
                return
            for file in written:
                target = folder / file.relative_to(partial)
                target.parent.mkdir(parents=True, exist_ok=True)
                publish(file, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _write(handle: int, data: memoryview) -> int:
    return os.write(handle, data)


def _sync(handle: int) -> None:
    os.fsync(handle)


def _rename(source: Path, target: Path) -> None:
    source.replace(target)


def _sync_path(path: Path) -> None:
    """fsync a file, or the names inside a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        _sync(handle)
    finally:
        os.close(handle)


def read_regular_file(path: Path, most: int) -> bytes:
    """The content of a plain file of at most `most` bytes; OSError for anything else, without waiting for it.

    A pipe or a device that lies where a file was once is not read, however long that would take.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            raise OSError(errno.EINVAL, "not a plain file, or too large", str(path))
        with open(handle, "rb", closefd=False) as stream:
            return stream.read(most)
    finally:
        os.close(handle)
