"""Parts: what a worker has encoded and the driver has not committed yet, one file each.

A part is called by its place in its source, so whoever does the same work again finds what is done. It is
there whole or not at all, and goes once it is committed.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import Path

from genius import files
from genius.cluster.wire import DamagedPart, is_part, unpack_batches
from genius.data.remote import location
from genius.store.records import Amendment, Record

FOLDER = "parts"  # in the index
SUFFIX, BEGUN = ".part", ".begun"
_MARK = b"x"

_NAME = re.compile(
    rf"[0-9a-f]{{16}}-[0-9]{{8}}{re.escape(SUFFIX)}({re.escape(BEGUN)}|{re.escape(files.TEMPORARY)})?"
)

Batches = list[tuple[list[Record], list[Amendment]]]


def part_name(source: str, number: int, fingerprint: str, vectors: bool) -> str:
    """The name of part `number` of a source, encoded by the model of that fingerprint."""
    digest = blake2b(f"{fingerprint}\0{vectors}\0{source}".encode(errors="surrogatepass"), digest_size=8)
    return f"{digest.hexdigest()}-{number:08d}{SUFFIX}"


class PartStore:
    """A folder of parts, on a disk that all workers share or in an object store."""

    def __init__(self, place: str, *, owned: bool = False) -> None:
        """`owned`: the folder is there for parts alone, and goes when it is empty."""
        self.place, self.owned = location(place), owned
        if isinstance(self.place, Path):
            with files.storage_errors(self.place):
                self.place.mkdir(parents=True, exist_ok=True)
        else:
            self.place.mkdir()

    def write(self, name: str, data: bytes) -> None:
        """Keep a part, in the place of an older one of that name."""
        if isinstance(self.place, Path):
            files.write_file(self.place / name, [data])
            return
        (self.place / name).write(lambda: [data])

    def read(self, name: str) -> Batches | None:
        """The batches of a part; None if it is not there, or not whole."""
        try:
            with (self.place / name).open("rb") as stream:
                return unpack_batches(stream.read())
        except (OSError, DamagedPart):
            return None

    def delete(self, name: str) -> None:
        """Let go of a part."""
        if isinstance(self.place, Path):
            (self.place / name).unlink(missing_ok=True)
            return
        (self.place / name).delete()

    def begin(self, name: str) -> int:
        """How often this part was begun before and not ended; object stores do not count."""
        if not isinstance(self.place, Path):
            return 0
        with (self.place / (name + BEGUN)).open("ab") as marks:
            before = marks.tell()
            marks.write(_MARK)
        return before

    def end(self, name: str) -> None:
        """The part was not the end of its worker."""
        if isinstance(self.place, Path):
            (self.place / (name + BEGUN)).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove what earlier runs may have left; only files that are surely parts."""
        if isinstance(self.place, Path):
            for file in self.place.iterdir():
                if _is_ours(file):
                    file.unlink(missing_ok=True)
            if self.owned and not any(self.place.iterdir()):
                self.place.rmdir()


def _is_ours(file: Path) -> bool:
    """Whether a file is a part, a part that was being written, or a mark of one: by its name and content."""
    named = _NAME.fullmatch(file.name)
    if named is None or file.is_symlink() or not file.is_file():
        return False
    ending = named[1]
    with file.open("rb") as stream:
        if ending == BEGUN:
            return not stream.read(1 << 10).strip(_MARK)
        return is_part(stream, whole=ending != files.TEMPORARY)
