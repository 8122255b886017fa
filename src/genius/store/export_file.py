"""The two forms of an export, read back: JSON lines, and a tar of plain members.

An export has no links, sparse files, extended headers or compression, so headers are read one by one and
any member that is not a plain file is refused.
"""

from __future__ import annotations

import json
import os
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from genius.data.images import MAX_BYTES
from genius.data.report import printable
from genius.errors import BadData, BadInput
from genius.store.exporting import DIGEST, END, HEAD, ITEMS
from genius.store.index import FILES

MAX_LINE = 8 << 20  # bytes; the longest text, meta and thumbnail together take less
_PIECE = 1 << 20
_BLOCK = tarfile.BLOCKSIZE


class ExportLine(NamedTuple):
    """A line that should hold an item."""

    place: str  # for messages
    data: bytes | None  # None if it is longer than any item


@contextmanager
def open_export(file: Path) -> Iterator[ExportFile]:
    """The export in `file`, of either form; pipes, devices and folders are refused."""
    if not file.is_file():
        raise BadInput(f"no file at {file}: give a .jsonl or .tar that `genius export` has written")
    with file.open("rb") as stream:
        lines = stream.read(1) == b"{"
        yield JsonExport(stream, str(file)) if lines else TarExport(stream, str(file))


class ExportFile(ABC):
    """An open export."""

    holds_files = False  # whether it is of the form that has images

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self.stream, self.name = stream, name
        self.size = os.fstat(stream.fileno()).st_size

    @abstractmethod
    def head(self) -> bytes:
        """The first line."""

    @abstractmethod
    def end(self) -> tuple[int, bytes] | None:
        """Where the end mark begins, and its line; None if there is none at the very end."""

    @abstractmethod
    def items(self) -> Iterator[ExportLine]:
        """The lines between head and end mark."""

    def has_file(self, name: str) -> bool:
        """Whether there is an image of that name."""
        return False

    def file(self, name: str) -> bytes:
        """The image of that name."""
        raise KeyError(name)

    def end_mark(self) -> dict[str, Any] | None:
        """What the end mark says; None if it is missing."""
        found = self.end()
        try:
            mark: dict[str, Any] | None = None if found is None else json.loads(found[1])["end"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return mark

    def digest(self) -> bytes:
        """The digest of everything before the end mark."""
        found = self.end()
        total = blake2b(digest_size=DIGEST)
        rest = self.size if found is None else found[0]
        self.stream.seek(0)
        while rest and (piece := self.stream.read(min(rest, _PIECE))):
            total.update(piece)
            rest -= len(piece)
        return total.digest()

    def _lines(self, start: int, stop: int, place: str) -> Iterator[ExportLine]:
        """The lines of a range of bytes; the stream may be moved meanwhile."""
        number = 0
        while start < stop:
            number += 1
            self.stream.seek(start)
            line = self.stream.readline(min(MAX_LINE, stop - start))
            if not line:
                return
            start += len(line)
            long = len(line) == MAX_LINE and not line.endswith(b"\n")
            while long and start < stop and not line.endswith(b"\n"):  # skip the rest of it
                line = self.stream.readline(min(MAX_LINE, stop - start))
                start += len(line) or stop
            yield ExportLine(f"{place}item {number}", None if long else line)


class JsonExport(ExportFile):
    """JSON lines."""

    def head(self) -> bytes:
        """The first line."""
        self.stream.seek(0)
        return self.stream.readline(MAX_LINE)

    def end(self) -> tuple[int, bytes] | None:
        """The last line, if it is one and says that it is the end."""
        self.stream.seek(max(0, self.size - 1024))
        *_, last, nothing = [b"", *self.stream.read(1024).split(b"\n")]
        if nothing or not last.startswith(b'{"end"'):
            return None
        return self.size - len(last) - 1, last

    def items(self) -> Iterator[ExportLine]:
        """The lines between head and end mark."""
        end = self.end()
        yield from self._lines(len(self.head()), self.size if end is None else end[0], "")


class TarExport(ExportFile):
    """A tar of plain members; those that no export has are refused at once."""

    holds_files = True

    def __init__(self, stream: IO[bytes], name: str) -> None:
        super().__init__(stream, name)
        self._members: dict[str, tuple[int, int]] = {}  # where the content begins, and its size
        self._closed = False  # whether it ends with two zero blocks and nothing after them
        self._read_members()

    def head(self) -> bytes:
        """The first member."""
        first = next(iter(self._members), None)
        return self._content(first, MAX_LINE) if first == HEAD else b""

    def end(self) -> tuple[int, bytes] | None:
        """The last member, if it is the end mark and the archive ends after it."""
        last = next(reversed(self._members), None)
        if last != END or not self._closed:
            return None
        return self._members[END][0] - _BLOCK, self._content(END, MAX_LINE)

    def items(self) -> Iterator[ExportLine]:
        """The lines of all members with items."""
        for name, (start, size) in self._members.items():
            if name.startswith(f"{ITEMS}/"):
                yield from self._lines(start, start + size, f"{name}, ")

    def has_file(self, name: str) -> bool:
        """Whether there is an image of that name."""
        return name.startswith(f"{FILES}/") and name in self._members

    def file(self, name: str) -> bytes:
        """The image of that name."""
        return self._content(name, MAX_BYTES)

    def _content(self, name: str, most: int) -> bytes:
        start, size = self._members[name]
        self.stream.seek(start)
        return self.stream.read(min(size, most))

    def _read_members(self) -> None:
        """All members up to the end or to where the file was cut."""
        position = 0
        while position + _BLOCK <= self.size:
            self.stream.seek(position)
            block = self.stream.read(_BLOCK)
            if block == bytes(_BLOCK):
                rest = self.stream.read(_BLOCK + 1)
                self._closed = rest == bytes(_BLOCK)
                return
            member = self._header(block)
            position += _BLOCK + -(-member.size // _BLOCK) * _BLOCK
            if position > self.size:
                return
            self._members[member.name] = (position - -(-member.size // _BLOCK) * _BLOCK, member.size)

    def _header(self, block: bytes) -> tarfile.TarInfo:
        """The header of a plain member with a name that an export can have."""
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.TarError, ValueError) as error:
            raise BadData(f"{self.name} is not an export of an index: {printable(error)}") from None
        parts = PurePosixPath(member.name).parts
        depth = {HEAD: 1, END: 1, ITEMS: 2, FILES: 2}
        expected = bool(parts) and depth.get(parts[0]) == len(parts) and parts[-1] not in ("..", ".")
        plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
        fits = 0 <= member.size <= (MAX_BYTES if parts and parts[0] == FILES else self.size)
        if not (plain and expected and fits) or "\\" in member.name or member.name in self._members:
            name = printable(member.name)
            raise BadData(f"{self.name} has the member {name!r}, which no export has: it is not imported")
        return member
