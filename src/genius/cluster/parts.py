"""Parts: what a worker has encoded and the driver has not committed yet, one file each.

A part is called by its place in its source, so whoever does the same work again finds what is done. It is
there whole or not at all, and goes once it is committed.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from genius import files
from genius.cluster.wire import DamagedPart, unpack_batches
from genius.data.remote import location
from genius.store.records import Amendment, Record

FOLDER = "parts"  # in the index
SUFFIX, BEGUN = ".part", ".begun"

Batches = list[tuple[list[Record], list[Amendment]]]


def part_name(source: str, number: int, fingerprint: str, vectors: bool) -> str:
    """The name of part `number` of a source, encoded by the model of that fingerprint."""
    digest = blake2b(f"{fingerprint}\0{vectors}\0{source}".encode(errors="surrogatepass"), digest_size=8)
    return f"{digest.hexdigest()}-{number:08d}{SUFFIX}"


class PartStore:
    """A folder of parts, on a disk that all workers share or in an object store."""

    def __init__(self, place: str) -> None:
        self.place = location(place)
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
            marks.write(b"x")
        return before

    def end(self, name: str) -> None:
        """The part was not the end of its worker."""
        if isinstance(self.place, Path):
            (self.place / (name + BEGUN)).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove what earlier runs may have left, and a folder of our own with it."""
        if isinstance(self.place, Path):
            for left in self.place.glob(f"*{SUFFIX}*"):
                left.unlink(missing_ok=True)
            if not any(self.place.iterdir()):
                self.place.rmdir()
