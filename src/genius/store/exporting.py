"""An index as one file: JSON lines with everything that is stored, or a tar that holds the images as well.

The first line (or member) is the head: format, model and sizes. An item is one object: `id`, `modality`,
`codes`, and where there are any `path`, `text`, `source`, `meta`, `vector` (float16, base64), `thumbnail`
(JPEG, base64) and, in a tar, `file`, the member with its image.
"""

from __future__ import annotations

import base64
import json
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from genius.errors import BadData
from genius.store.index import SETTINGS, Index
from genius.store.records import Record, Stamp
from genius.types import Modality

FORMAT = "genius-items-1"
_KINDS = {"model": str, "fingerprint": str, "sizes": list, "dim": int, "vectors": bool, "notes": dict}
HEAD, ITEMS, FILES = "index.json", "items", "files"


def head_of(index: Index, vectors: bool) -> dict[str, Any]:
    """What an importer must know before the items."""
    settings = {key: index.settings[key] for key in SETTINGS}
    return {"format": FORMAT, **settings, "vectors": vectors and index.dim is not None}


def export_lines(index: Index, vectors: bool = True) -> Iterator[bytes]:
    """The index as JSON lines, the head first."""
    yield _line(head_of(index, vectors))
    for records in _stored(index, vectors):
        for record in records:
            yield _line(_fields(record))


def export_tar(index: Index, vectors: bool = True) -> Iterator[bytes]:
    """The index as an uncompressed tar, images included; items whose image is gone come without it."""
    yield from _member(HEAD, _line(head_of(index, vectors)))
    count = 0
    for number, records in enumerate(_stored(index, vectors)):
        lines = []
        for record in records:
            fields = _fields(record)
            image = _image(record)
            if image is not None and record.path is not None:
                count += 1
                fields["file"] = f"{FILES}/{count:09d}{Path(record.path).suffix.lower()}"
                yield from _member(fields["file"], image)
            lines.append(_line(fields))
        yield from _member(f"{ITEMS}/{number:06d}.jsonl", b"".join(lines))
    yield bytes(2 * tarfile.BLOCKSIZE)


def read_head(line: bytes, where: str) -> dict[str, Any]:
    """The checked head of an export."""
    try:
        head: dict[str, Any] = json.loads(line)
        right = head["format"] == FORMAT and all(isinstance(head[key], kind) for key, kind in _KINDS.items())
        right = right and all(type(size) is int and 0 < size <= 1 << 16 for size in head["sizes"])
    except (ValueError, KeyError, TypeError):
        right = False
    if not right:
        raise BadData(f"{where} is not an export of an index: it does not begin with the head of {FORMAT}")
    return head


def read_records(
    lines: Iterable[bytes], head: dict[str, Any], where: str
) -> Iterator[tuple[Record, str | None]]:
    """Records of item lines, each with the name of its image member; raises BadData naming the line."""
    sizes = np.array(head["sizes"])
    width = 2 * head["dim"] if head["vectors"] else None
    for number, line in enumerate(lines, start=1):
        try:
            yield _record(json.loads(line), sizes, width)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadData(f"{where}, item {number}: {error}; export the index again") from None


def safe_members(archive: tarfile.TarFile, where: str) -> list[tarfile.TarInfo]:
    """The members of an export; links, devices, absolute names and `..` are refused at once."""
    members = archive.getmembers()
    for member in members:
        parts = PurePosixPath(member.name).parts
        kinds = {HEAD: 1, ITEMS: 2, FILES: 2}
        expected = bool(parts) and kinds.get(parts[0]) == len(parts) and parts[-1] not in ("..", ".")
        if not member.isfile() or not expected or "\\" in member.name or "\0" in member.name:
            raise BadData(f"{where} has the member {member.name!r}, which no export has: it is not imported")
    return members


def _stored(index: Index, vectors: bool) -> Iterator[list[Record]]:
    """All items in row order, a chunk at a time, whole."""
    dim = index.dim if vectors else None
    with index.truth.reading():
        for batch in index.truth.batches(index.levels, dim):
            found = index.truth.records(batch.rows.tolist())
            chunk = []
            for number, row in enumerate(batch.rows.tolist()):
                vector = None if batch.vectors is None else batch.vectors[number]
                chunk.append(replace(found[row], vector=vector, thumbnail=index.truth.thumbnail(row)))
            yield chunk


def _fields(record: Record) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": record.id,
        "modality": record.modality.value,
        "codes": record.codes.tolist(),
    }
    for name in ("path", "text", "source"):
        if getattr(record, name) is not None:
            fields[name] = getattr(record, name)
    fields["meta"] = json.loads(record.meta)
    fields["hash"] = record.hash.hex()
    if record.vector is not None:
        fields["vector"] = base64.b64encode(record.vector.astype("<f2").tobytes()).decode()
    if record.thumbnail is not None:
        fields["thumbnail"] = base64.b64encode(record.thumbnail).decode()
    return fields


def _record(fields: dict[str, Any], sizes: Any, width: int | None) -> tuple[Record, str | None]:
    codes = np.array(fields["codes"])
    if codes.shape != sizes.shape or codes.dtype.kind != "i" or (codes < 0).any() or (codes >= sizes).any():
        raise ValueError("its codes do not fit the sizes of the model")
    vector = None
    if width is not None:
        raw = base64.b64decode(fields["vector"], validate=True)
        if len(raw) != width:
            raise ValueError("its vector has another width")
        vector = np.frombuffer(raw, dtype="<f2").astype(np.float16)
    texts = {name: fields.get(name) for name in ("path", "text", "source")}
    if not all(value is None or isinstance(value, str) for value in texts.values()):
        raise ValueError("path, text and source must be strings")
    if not isinstance(fields["id"], str) or not isinstance(fields["meta"], dict):
        raise TypeError("id must be a string and meta an object")
    fields["id"].encode()
    (texts["text"] or "").encode()
    thumbnail = fields.get("thumbnail")
    record = Record(
        fields["id"],
        Modality(fields["modality"]),
        codes.astype(np.uint16),
        vector,
        **texts,
        meta=json.dumps(fields["meta"], allow_nan=False, sort_keys=True),
        hash=bytes.fromhex(fields["hash"]),
        stamp=Stamp(),  # the next `index` compares hashes
        thumbnail=None if thumbnail is None else base64.b64decode(thumbnail, validate=True),
    )
    return record, fields.get("file")


def _image(record: Record) -> bytes | None:
    try:
        return None if record.path is None else Path(record.path).read_bytes()
    except OSError:
        return None


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def _member(name: str, data: bytes) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o644
    yield info.tobuf(tarfile.PAX_FORMAT)
    yield data
    yield bytes(-len(data) % tarfile.BLOCKSIZE)
