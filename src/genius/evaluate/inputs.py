"""What is to be encoded, by content: items and queries as their distinct images and texts.

Files are hashed here and nothing is encoded, so the cost of a run is known before it starts.
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

Input = tuple[Path | None, str | None]  # image file, text
Record = tuple[str, int, Path | None, str | None]  # id, modality, image file, text
Progress = Callable[[str, int, int], None]  # label, done, total (0: unknown)
MODALITIES = tuple(Modality)
ABSENT = -1
READ_BATCH = 4096
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Inputs:
    """Items or queries over distinct encoder inputs: images and texts, or both in one if it fuses."""

    ids: list[str] = field(default_factory=list)
    modality: list[int] = field(default_factory=list)  # of an item; wanted, for a query
    image: list[int] = field(default_factory=list)  # index into `keys`, or ABSENT
    text: list[int] = field(default_factory=list)  # index into `keys`, or ABSENT
    broken: list[int] = field(default_factory=list)  # rows that are empty or whose image file is not readable
    content: list[Key] = field(default_factory=list)  # hash of each row: its inputs and its modality
    keys: list[Key] = field(default_factory=list)  # of the distinct inputs
    inputs: list[Input] = field(default_factory=list)
    _index: dict[Key, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def source(self, row: int) -> Input:
        """The image file and the text of a row."""
        image, text = self.image[row], self.text[row]
        file = self.inputs[image][0] if image != ABSENT else None
        both = image if text == ABSENT else text  # a fusing encoder keeps both in one input
        return file, self.inputs[both][1] if both != ABSENT else None

    def add(self, record: Record, digest: Key | None, *, fuses: bool) -> None:
        """One more row; `digest` is the hash of its image file, None where there is no readable one."""
        name, modality, file, text = record
        encoded = (text or "").encode(errors="surrogatepass")
        image_input = text_input = ABSENT
        if fuses:
            key = key_of(b"both", digest or b"", encoded)
            image_input = self._intern(key, (file if digest else None, text))
        else:
            if digest:
                image_input = self._intern(key_of(b"image", digest), (file, None))
            if text:
                text_input = self._intern(key_of(b"text", encoded), (None, text))
        if digest is None if file is not None else not text:
            self.broken.append(len(self))
        parts = [self.keys[index] if index != ABSENT else b"" for index in (image_input, text_input)]
        self.ids.append(name)
        self.modality.append(modality)
        self.image.append(image_input)
        self.text.append(text_input)
        self.content.append(key_of(*parts, bytes([modality])))

    def digest(self) -> str:
        """A hash of ids and content, the same for the same pool wherever it lies."""
        state = hashlib.blake2b(digest_size=16)
        for name, content in zip(self.ids, self.content, strict=True):
            state.update(f"{len(name)} {name}".encode(errors="surrogatepass") + content)
        return state.hexdigest()

    def _intern(self, key: Key, source: Input) -> int:
        index = self._index.setdefault(key, len(self.keys))
        if index == len(self.keys):
            self.keys.append(key)
            self.inputs.append(source)
        return index


def read_items(items: Iterable[Item], *, fuses: bool) -> Inputs:
    """The inputs of a pool; `fuses` if the encoder turns image and text into one embedding."""
    return _read(((i.id, MODALITIES.index(i.modality), _path(i.image), i.text) for i in items), fuses)


def read_queries(
    queries: Iterable[LabelledQuery], sentence: Callable[[LabelledQuery], str], *, fuses: bool
) -> Inputs:
    """The inputs of queries, each text behind the instruction that `sentence` gives."""

    def records() -> Iterator[Record]:
        for query in queries:
            text = query_text(sentence(query), query.text) if query.text or query.image else None
            yield query.id, MODALITIES.index(query.want), query.image, text

    return _read(records(), fuses)


def _read(records: Iterable[Record], fuses: bool) -> Inputs:
    inputs = Inputs()
    seen: set[str] = set()
    rest = iter(records)
    with ThreadPoolExecutor(max_workers=8) as threads:
        while batch := list(islice(rest, READ_BATCH)):
            files = {file for _, _, file, _ in batch if file is not None}
            digests = dict(zip(files, threads.map(_file_key, files), strict=True))
            for record in batch:
                name, _, file, _ = record
                if name in seen:
                    raise BadData(f"id {name} occurs twice: ids are unique within a pool or a row of queries")
                seen.add(name)
                inputs.add(record, None if file is None else digests[file], fuses=fuses)
    return inputs


def _path(image: object) -> Path | None:
    return image if image is None or isinstance(image, Path) else Path(str(image))


def _file_key(file: Path) -> Key | None:
    """Hash of a file's bytes, None where there is no readable file."""
    try:
        return key_of(file.read_bytes())
    except OSError as error:
        log.info("%s cannot be read: %s", file, error.strerror)
        return None
