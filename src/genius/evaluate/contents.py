"""What is to be encoded, by content: items and queries over their distinct images and texts.

Files are hashed here and nothing is encoded, so what a run will cost is known before it starts.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from genius.data.base import LabelledQuery
from genius.data.instructions import query_text
from genius.errors import BadData
from genius.evaluate.cache import Key, key_of
from genius.types import Item, Modality

Source = tuple[Path | None, str | None]  # image file, text
Thing = tuple[str, int, Path | None, str | None]  # id, modality, image file, text
Progress = Callable[[str, int, int], None]  # what, done, of how many (0: not known)
MODALITIES = tuple(Modality)
ABSENT = -1
READ_AT_ONCE = 4096
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Contents:
    """Items or queries over their distinct units: images and texts, or both in one for a fusing encoder."""

    ids: list[str] = field(default_factory=list)
    modality: list[int] = field(default_factory=list)  # of an item; wanted, for a query
    image: list[int] = field(default_factory=list)  # unit, or ABSENT
    text: list[int] = field(default_factory=list)  # unit, or ABSENT
    broken: list[int] = field(default_factory=list)  # rows that are empty or whose image file is not readable
    content: list[Key] = field(default_factory=list)  # key of each row: its units and its modality
    keys: list[Key] = field(default_factory=list)  # of the units
    sources: list[Source] = field(default_factory=list)  # of the units
    _rows: dict[Key, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def unit(self, key: Key, image: Path | None, text: str | None) -> int:
        """The number of the unit under `key`, new or known."""
        row = self._rows.setdefault(key, len(self.keys))
        if row == len(self.keys):
            self.keys.append(key)
            self.sources.append((image, text))
        return row

    def add(self, thing: Thing, image: int, text: int, *, broken: bool) -> None:
        """One more row, whose parts are these units."""
        name, modality, _, _ = thing
        if broken:
            self.broken.append(len(self))
        units = [self.keys[unit] if unit != ABSENT else b"" for unit in (image, text)]
        self.ids.append(name)
        self.modality.append(modality)
        self.image.append(image)
        self.text.append(text)
        self.content.append(key_of(*units, bytes([modality])))

    def digest(self) -> str:
        """A hash of ids and content, the same for the same pool wherever it lies."""
        state = hashlib.blake2b(digest_size=16)
        for name, content in zip(self.ids, self.content, strict=True):
            state.update(f"{len(name)} {name}".encode(errors="surrogatepass") + content)
        return state.hexdigest()


def read_items(items: Iterable[Item], *, fuses: bool, progress: Progress | None = None) -> Contents:
    """The contents of a pool; `fuses` if the encoder turns image and text into one vector."""
    things = ((i.id, MODALITIES.index(i.modality), _path(i.image), i.text) for i in items)
    return _read(things, fuses, progress)


def read_queries(
    queries: Iterable[LabelledQuery], sentence: Callable[[LabelledQuery], str], *, fuses: bool
) -> Contents:
    """The contents of queries, each text behind the instruction that `sentence` gives."""

    def things() -> Iterator[Thing]:
        for query in queries:
            text = query_text(sentence(query), query.text) if query.text or query.image else None
            yield query.id, MODALITIES.index(query.want), query.image, text

    return _read(things(), fuses, None)


def _read(things: Iterable[Thing], fuses: bool, progress: Progress | None) -> Contents:
    found = Contents()
    seen: set[str] = set()
    rest = iter(things)
    with ThreadPoolExecutor(max_workers=8) as threads:
        while batch := list(islice(rest, READ_AT_ONCE)):
            files = {file for _, _, file, _ in batch if file is not None}
            digests = dict(zip(files, threads.map(_file_key, files), strict=True))
            for thing in batch:
                name, _, file, text = thing
                if name in seen:
                    raise BadData(f"id {name} occurs twice: ids are unique within a pool or a row of queries")
                seen.add(name)
                digest = None if file is None else digests[file]
                image_unit, text_unit = _units(found, file, digest, text, fuses)
                broken = digest is None if file is not None else not text
                found.add(thing, image_unit, text_unit, broken=broken)
            if progress is not None:
                progress("reading items", len(found), 0)
    return found


def _units(
    found: Contents, file: Path | None, digest: Key | None, text: str | None, fuses: bool
) -> tuple[int, int]:
    words = (text or "").encode(errors="surrogatepass")
    if fuses:
        key = key_of(b"both", digest or b"", words)
        return found.unit(key, file if digest else None, text), ABSENT
    return (
        found.unit(key_of(b"image", digest), file, None) if digest else ABSENT,
        found.unit(key_of(b"text", words), None, text) if text else ABSENT,
    )


def _path(image: object) -> Path | None:
    if image is None or isinstance(image, Path):
        return image
    return Path(str(image))


def _file_key(file: Path) -> Key | None:
    """Key of a file's bytes, None where there is no readable file."""
    try:
        return key_of(file.read_bytes())
    except OSError as error:
        log.info("%s cannot be read: %s", file, error.strerror)
        return None
