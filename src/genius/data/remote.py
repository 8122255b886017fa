"""Files behind URIs, such as s3://bucket/items.jsonl: pyarrow's file systems, else what fsspec knows.

A `RemotePath` has as much of a `Path` as readers and writers need; requests that fail are repeated.
Images of the web are fetched only on demand: see `genius.data.urls`.
"""

from __future__ import annotations

import io
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, TypeVar

from genius.data.images import MAX_BYTES
from genius.data.report import printable
from genius.data.urls import NOT_FETCHED, fetch_image, is_url
from genius.errors import BadImage, BadInput, MissingExtra, MissingImage, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from genius.types import Item

SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "abfss", "hdfs", "local", "memory")
_URI = re.compile(r"([a-z][a-z0-9]*)://")
INSTALL = 'pip install "genius-search[cluster]"'
ATTEMPTS = 3  # at one request; the storage's own client has retried it by then
WAIT_S = 0.1  # before the second attempt; doubled before each further one
PIECE = 8 * 2**20  # bytes sent or read at a time
BUFFER = 2**20  # bytes of one request, when a file is read in lines or smaller pieces
T = TypeVar("T")


def is_uri(name: object) -> bool:
    """Whether `name` is a string that names a file in an object store."""
    found = _URI.match(name) if isinstance(name, str) else None
    return found is not None and found[1] in SCHEMES


def location(name: str | Path) -> Path | RemotePath:
    """The place that `name` names: a path of this machine (also as file://…), or one behind a URI."""
    if isinstance(name, Path):
        return name
    if name.startswith("file://"):
        return Path(name.removeprefix("file://"))
    if is_uri(name):
        return RemotePath(name)
    if _URI.match(name):
        raise BadInput(f"cannot read {printable(name)}: give a path, or a URI of {', '.join(SCHEMES)}")
    return Path(name)


def expanded(name: str) -> list[str]:
    """The places that `name` means: with a `*` in the last part of a URI, all files that match it."""
    if not is_uri(name) or "*" not in name:
        return [name]
    folder, pattern = RemotePath(name).parent, RemotePath(name).name
    here = next((names for place, names in folder.files() if place == folder), [])
    found = [str(folder / file) for file in here if fnmatchcase(file, pattern)]
    if not found:
        raise BadInput(f"nothing matches {printable(name)}: check the spelling")
    return found


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A file or folder behind a URI."""

    uri: str

    def __str__(self) -> str:
        return self.uri

    def __truediv__(self, name: str) -> RemotePath:
        if is_uri(name):
            return RemotePath(name)
        scheme, _, rest = self.uri.partition("://")
        return RemotePath(
            f"{scheme}:/{name}" if name.startswith("/") else f"{scheme}://{rest.rstrip('/')}/{name}"
        )

    @property
    def name(self) -> str:
        """The last part."""
        return PurePosixPath(self.uri).name

    @property
    def suffix(self) -> str:
        """What the name ends in, with its dot."""
        return PurePosixPath(self.uri).suffix

    @property
    def parent(self) -> RemotePath:
        """The folder it is in."""
        return RemotePath(self.uri.rstrip("/").rpartition("/")[0])

    def relative_to(self, root: RemotePath) -> str:
        """The way here from `root`."""
        return self.uri.removeprefix(root.uri.rstrip("/") + "/")

    def is_file(self) -> bool:
        """True: whether it is there is seen when it is read, which saves a request."""
        return True

    def is_dir(self) -> bool:
        """Whether it is a folder; raises BadInput if nothing is there."""
        from pyarrow.fs import FileType

        files, path = self.place()
        with _refusals(self.uri, "read"):
            kind = _retry(lambda: files.get_file_info(path)).type
        if kind == FileType.NotFound:
            raise BadInput(f"no folder or file at {printable(self.uri)}: check the spelling")
        return bool(kind == FileType.Directory)

    def open(self, mode: str = "r", **text: Any) -> IO[Any]:
        """The file, opened for reading; `mode` is r or rb, `text` as for `Path.open`."""
        files, path = self.place()
        with _storage_errors(self.uri):
            stream = io.BufferedReader(_RetryingFile(self.uri, files, path), BUFFER)  # which has lines
        return stream if mode == "rb" else io.TextIOWrapper(stream, **text)

    def files(self, exclude: Sequence[str] = ()) -> Iterator[tuple[RemotePath, list[str]]]:
        """Each folder under this one with the names of its files, in the same order on every run."""
        from pyarrow.fs import FileSelector, FileType

        files, path = self.place()
        with _refusals(self.uri, "read"):
            found = _retry(lambda: files.get_file_info(FileSelector(path, recursive=True)))
        folders: dict[str, list[str]] = {}
        for entry in found:
            below = entry.path.removeprefix(path.rstrip("/") + "/")
            parts = below.split("/")
            hidden = any(part.startswith(".") for part in parts)
            left_out = any(fnmatchcase(below, p) or any(fnmatchcase(x, p) for x in parts) for p in exclude)
            if entry.type == FileType.File and not hidden and not left_out:
                folders.setdefault("/".join(parts[:-1]), []).append(parts[-1])
        for folder in sorted(folders):
            yield (self / folder if folder else self), sorted(folders[folder])

    def write(self, chunks: Callable[[], Iterable[bytes]]) -> None:
        """Store what `chunks` gives under this name, whole or not at all; raises StorageError."""
        files, path = self.place()

        def upload() -> None:
            size = 0
            with files.open_output_stream(path) as stream:  # object stores show a file when it is closed
                for chunk in chunks():
                    stream.write(chunk)
                    size += len(chunk)
            if files.get_file_info(path).size != size:
                raise OSError(5, "the store kept only a part of it", self.uri)

        with _refusals(self.uri, "write"):
            _retry(upload)

    def upload(self, file: Path) -> None:
        """Store a copy of `file` under this name; raises StorageError."""
        self.write(lambda: _pieces(file))

    def download(self, file: Path) -> None:
        """Copy what is stored here to `file`, which is new; raises StorageError."""
        with _refusals(self.uri, "read"), self.open("rb") as stored, file.open("xb") as copy:
            shutil.copyfileobj(stored, copy, PIECE)

    def delete(self) -> None:
        """Remove this file, if it is there; raises StorageError."""
        files, path = self.place()
        with _refusals(self.uri, "write"):
            _retry(lambda: _delete(files, path))

    def mkdir(self) -> None:
        """Make this folder, in stores that have folders; raises StorageError."""
        files, path = self.place()
        with _refusals(self.uri, "write"):
            _retry(lambda: files.create_dir(path, recursive=True))

    def place(self) -> tuple[Any, str]:
        """The file system of pyarrow that has it, and the path there."""
        try:
            from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem
            from pyarrow.lib import ArrowInvalid
        except ModuleNotFoundError as error:
            raise MissingExtra(f"reading {printable(self.uri)} needs {error.name}: {INSTALL}") from None
        try:
            with _storage_errors(self.uri):
                files, path = FileSystem.from_uri(self.uri)
                return files, path
        except ArrowInvalid:  # a scheme that pyarrow does not know
            from fsspec.core import url_to_fs

            try:
                own, path = url_to_fs(self.uri)
            except (ImportError, ValueError) as error:
                raise BadInput(f"cannot read {printable(self.uri)}: {printable(error)}") from None
            return PyFileSystem(FSSpecHandler(own)), path


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        yield from iter(lambda: stream.read(PIECE), b"")


def _delete(files: Any, path: str) -> None:
    with suppress(FileNotFoundError):
        files.delete_file(path)


@contextmanager
def _refusals(uri: str, verb: str) -> Iterator[None]:
    """Turn what is left of an OSError after all attempts into StorageError with the cure."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot {verb} {printable(uri)}: {printable(error.strerror or error)}; check the network, the "
            "credentials and the name, then run the same command again"
        ) from None


def _retry(request: Callable[[], T]) -> T:
    """What `request` returns, sent again after an OSError: transfers break, and busy stores refuse."""
    for attempt in range(ATTEMPTS - 1):
        try:
            return request()
        except FileNotFoundError:
            raise
        except OSError:
            time.sleep(WAIT_S * 2**attempt)
    return request()


class _RetryingFile(io.RawIOBase):
    """A file of an object store; a read whose transfer breaks is repeated from where it began."""

    def __init__(self, uri: str, files: Any, path: str) -> None:
        self._uri = uri
        self._file = _retry(lambda: files.open_input_file(path))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        start = self._file.tell()

        def read() -> bytes:
            self._file.seek(start)
            return bytes(self._file.read(len(buffer)))

        with _storage_errors(self._uri):
            data = _retry(read)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _storage_errors:  # noqa: N801 (used as a statement)
    """Turns an OSError without a reason into one with it, so that readers can say why."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError) and not error.strerror:
            raise OSError(error.errno or 5, printable(error) or "no such file", self.uri) from None


def fetched(item: Item, allow_urls: bool = False) -> Item:
    """The item with the bytes of its image, if that is behind a URI; the URI is kept in its meta.

    Raises BadImage if it cannot be read, MissingImage for an address of the web unless that may be fetched.
    """
    if is_url(item.image):
        url = str(item.image)
        if not allow_urls:
            raise MissingImage(f"{printable(url)}: {NOT_FETCHED}")
        return replace(item, image=fetch_image(url), meta={"uri": url, **item.meta})
    if not is_uri(item.image):
        return item
    uri = str(item.image)
    try:
        with RemotePath(uri).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise MissingImage(f"no image at {printable(uri)}") from None
    except OSError as error:
        raise BadImage(f"{printable(uri)}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise BadImage(f"{printable(uri)}: more than {MAX_BYTES >> 20} MB")
    return replace(item, image=data, meta={"uri": uri, **item.meta})
