"""An index as one file: JSON lines with everything that is stored, or a tar that also has the images.

The first line (or member) is the header: format, model, sizes and the number of items. An item is one object:
`id`, `modality`, `codes`, and where there are any `path`, `text`, `source`, `meta`, `vector` (float16,
base64), `thumbnail` (JPEG, base64), `passages` (of a long text: `start` and `end` in it and, but for the
first, `codes` and `vector`) and, in a tar, `file`, the member with its image. Codes that were fitted to the
items bring their model along: lines `{"model_file": name, "data": base64}` before the items, in as many parts
as a file needs. The last line (or member) is the end mark: the number of items and a digest of every byte
before it.
"""

from __future__ import annotations

import base64
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from genius.data.images import MAX_BYTES, SUFFIXES
from genius.files import read_regular_file
from genius.store.index import FILES, Index, fixed_settings
from genius.store.records import Passages, Record, Vectors

FORMAT = "genius-items-2"
HEAD, ITEMS, END = "index.json", "items", "end.json"  # members of a tar
DIGEST = 32  # bytes
MODEL_FILES = ("model.toml", "quantizer.safetensors", "decoder.safetensors")  # of codes fitted to the items
_MODEL_PART = 4 << 20  # bytes in one line
_MEMBER = 16 << 20  # bytes of items in one member, about


def head_of(index: Index, vectors: bool) -> dict[str, Any]:
    """What an importer must know before the items."""
    settings = fixed_settings(index.settings)
    items = sum(index.truth.counts().values())
    return {"format": FORMAT, **settings, "vectors": vectors and index.dim is not None, "items": items}


def end_mark(items: int, digest: bytes) -> bytes:
    """The last line: the number of items and the digest of all bytes before it."""
    return _line({"end": {"items": items, "digest": digest.hex()}})


def export_lines(index: Index, vectors: bool = True) -> Iterator[bytes]:
    """The index as JSON lines: the head, the items, the end mark."""
    digest, items = blake2b(digest_size=DIGEST), 0
    with index.truth.reading():
        head = _line(head_of(index, vectors))
        digest.update(head)
        yield head
        for line in _model_lines(index):
            digest.update(line)
            yield line
        for record in _records(index, vectors):
            line = _line(_fields(record))
            digest.update(line)
            yield line
            items += 1
    yield end_mark(items, digest.digest())


def export_tar(index: Index, vectors: bool = True) -> Iterator[bytes]:
    """The index as an uncompressed tar, images included; items whose image is gone come without it."""
    digest, items = blake2b(digest_size=DIGEST), 0
    with index.truth.reading():
        for name, data, count in _members(index, vectors):
            for block in _member(name, data):
                digest.update(block)
                yield block
            items += count
    yield from _member(END, end_mark(items, digest.digest()))
    yield bytes(2 * tarfile.BLOCKSIZE)


def _members(index: Index, vectors: bool) -> Iterator[tuple[str, bytes, int]]:
    """Name, content and number of items of all members but the last; an image comes before its item."""
    yield HEAD, _line(head_of(index, vectors)), 0
    if index.settings.get("fit"):
        yield f"{ITEMS}/model.jsonl", b"".join(_model_lines(index)), 0
    lines: list[bytes] = []
    images = members = 0
    for record in _records(index, vectors):
        fields = _fields(record)
        image = _image(index, record)
        if image is not None and record.path is not None:
            images += 1
            suffix = Path(record.path).suffix.lower()
            fields["file"] = f"{FILES}/{images:09d}{suffix if suffix in SUFFIXES else ''}"
            yield fields["file"], image, 0
        lines.append(_line(fields))
        if sum(map(len, lines)) > _MEMBER:
            yield f"{ITEMS}/{members:06d}.jsonl", b"".join(lines), len(lines)
            lines, members = [], members + 1
    if lines:
        yield f"{ITEMS}/{members:06d}.jsonl", b"".join(lines), len(lines)


def _model_lines(index: Index) -> Iterator[bytes]:
    """The files of the model that was fitted to the items, in parts; nothing for other models."""
    if not index.settings.get("fit"):
        return
    for file in sorted(Path(index.model_source).iterdir()):
        if file.name in MODEL_FILES:
            with file.open("rb") as stream:
                while part := stream.read(_MODEL_PART):
                    yield _line({"model_file": file.name, "data": base64.b64encode(part).decode()})


def _records(index: Index, vectors: bool) -> Iterator[Record]:
    """All items in row order, whole."""
    for batch in index.truth.batches(index.levels, index.dim if vectors else None):
        found = index.truth.records(batch.rows.tolist())
        for number, row in enumerate(batch.rows.tolist()):
            vector = None if batch.vectors is None else batch.vectors[number]
            passages = index.truth.passages(row)
            if passages is not None and not vectors:
                passages = replace(passages, vectors=None)
            yield replace(found[row], vector=vector, thumbnail=index.truth.thumbnail(row), passages=passages)


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
        fields["vector"] = _base64(record.vector)
    if record.passages is not None:
        fields["passages"] = list(_passages(record.passages))
    if record.thumbnail is not None:
        fields["thumbnail"] = base64.b64encode(record.thumbnail).decode()
    return fields


def _passages(passages: Passages) -> Iterator[dict[str, Any]]:
    for number, (start, end) in enumerate(passages.spans.tolist()):
        fields: dict[str, Any] = {"start": start, "end": end}
        if number:
            fields["codes"] = passages.codes[number - 1].tolist()
            if passages.vectors is not None:
                fields["vector"] = _base64(passages.vectors[number - 1])
        yield fields


def _base64(vector: Vectors) -> str:
    return base64.b64encode(vector.astype("<f2").tobytes()).decode()


def _image(index: Index, record: Record) -> bytes | None:
    path = index.image_path(record)
    try:
        return None if path is None else read_regular_file(Path(path), MAX_BYTES)
    except OSError:
        return None


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def _member(name: str, data: bytes) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o644
    yield info.tobuf(tarfile.USTAR_FORMAT)
    yield data
    yield bytes(-len(data) % tarfile.BLOCKSIZE)
