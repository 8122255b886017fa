"""What is to be encoded, by content, and what was: items and queries as their distinct images and texts,
and arrays on disk under a hash of what they were computed from.

Files are hashed here and nothing is encoded, so the cost of a run is known before it starts. A cache belongs
to a model's fingerprint and its environment (environment.py); a row's key is a hash of what was encoded. So a
changed image, text or model is computed again, a copied or renamed file is found, and pools that share items
share rows. Each batch of rows is a file, written atomically: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from genius.data.base import LabelledQuery
from genius.data.instructions import query_text
from genius.errors import BadData, BadInput
from genius.files import storage_errors, write_file
from genius.types import Item, Modality

Key = bytes
KEY_BYTES = 16
Input = tuple[Path | None, str | None]  # image file, text
Record = tuple[str, int, Path | None, str | None]  # id, modality, image file, text
Progress = Callable[[str, int, int], None]  # label, done, total (0: unknown)
MODALITIES = tuple(Modality)
ABSENT = -1
READ_BATCH = 4096
log = logging.getLogger(__name__)


def key_of(*parts: bytes) -> Key:
    """A hash of these parts; where one part ends matters."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


@dataclass(slots=True)
class Inputs:
    """Items or queries over distinct encoder inputs: images and texts, or both in one if it fuses."""

    ids: list[str] = field(default_factory=list)
    modality: list[int] = field(default_factory=list)  # of an item; wanted, for a query
    image: list[int] = field(default_factory=list)  # index into `keys`, or ABSENT
    text: list[int] = field(default_factory=list)  # index into `keys`, or ABSENT
    broken: list[int] = field(default_factory=list)  # rows that are empty or whose image file is not readable
    content: list[Key] = field(default_factory=list)  # hash of each row: its inputs and its modality
    pictures: list[Key | None] = field(default_factory=list)  # hash of each row's image file
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
        self.pictures.append(digest)
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


class ArrayCache:
    """Rows of one width and dtype in `folder`, found by key; what others write there is seen, too."""

    def __init__(self, folder: Path, fingerprint: str, width: int, dtype: str) -> None:
        self._metadata = {"fingerprint": fingerprint, "width": str(width), "dtype": dtype}
        self._folder = folder / key_of(*(value.encode() for value in self._metadata.values())).hex()
        self._width, self._dtype = width, np.dtype(dtype)
        with storage_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        self._files: list[Path] = []
        self._location: dict[Key, tuple[int, int]] = {}  # key -> file, row
        self._read_new_files()

    def __len__(self) -> int:
        return len(self._location)

    def missing(self, keys: Sequence[Key]) -> list[int]:
        """Positions in `keys` of rows that are not cached, each key once."""
        self._read_new_files()
        first = {key: position for position, key in reversed(list(enumerate(keys)))}
        return sorted(position for key, position in first.items() if key not in self._location)

    def add(self, keys: Sequence[Key], rows: NDArray[np.generic]) -> None:
        """Store `rows` (n, width) under `keys`; they are on disk when this returns."""
        if rows.shape != (len(keys), self._width) or rows.dtype != self._dtype:
            raise BadInput(f"{rows.dtype} rows of shape {rows.shape} do not fit {len(keys)} keys here")
        if not len(keys):
            return
        packed = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), KEY_BYTES)
        tensors = {"keys": packed, "rows": np.ascontiguousarray(rows)}
        file = self._folder / f"{len(self._files):06d}-{key_of(*keys).hex()}.safetensors"
        write_file(file, [save(tensors, metadata=self._metadata | {"sum": _checksum(tensors)})])
        self._register(file, keys)

    def gather(self, keys: Sequence[Key]) -> NDArray[np.generic]:
        """The rows of `keys`, (n, width); every key must be cached. Each file is read once."""
        out = np.zeros((len(keys), self._width), dtype=self._dtype)
        located = np.array([self._location[key] for key in keys], dtype=np.int64).reshape(-1, 2)
        order = np.argsort(located[:, 0], kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(located[order, 0])) + 1):
            if len(group):
                with safe_open(self._files[located[group[0], 0]], framework="numpy") as stored:
                    out[group] = stored.get_tensor("rows")[located[group, 1]]
        return out

    def _read_new_files(self) -> None:
        known = set(self._files)
        for file in sorted(self._folder.glob("*.safetensors")):
            if file not in known:
                self._load(file)

    def _load(self, file: Path) -> None:
        """Read a file of an earlier run; a damaged one is set aside and its rows are computed again."""
        try:
            with safe_open(file, framework="numpy") as stored:
                metadata = stored.metadata() or {}
                tensors = {name: stored.get_tensor(name) for name in ("keys", "rows")}
            intact = metadata == self._metadata | {"sum": _checksum(tensors)}
        except (SafetensorError, OSError, ValueError):
            intact = False
        if not intact:
            log.warning("%s is damaged: its rows are computed again", file)
            with storage_errors(file):
                file.rename(file.with_suffix(".damaged"))
            return
        self._register(file, [row.tobytes() for row in tensors["keys"]])

    def _register(self, file: Path, keys: Sequence[Key]) -> None:
        number = len(self._files)
        self._files.append(file)
        self._location.update((key, (number, row)) for row, key in enumerate(keys))


def _checksum(tensors: dict[str, NDArray[np.generic]]) -> str:
    return key_of(*(tensors[name].tobytes() for name in sorted(tensors))).hex()
