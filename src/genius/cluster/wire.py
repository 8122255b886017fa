"""Items on their way to a worker, and batches on their way back: Arrow tables as bytes. No pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from genius.ingest.add import EncodedBatch
from genius.store.records import Amendment, Passages, Record, Stamp, checksum
from genius.types import Item, Modality

_ITEMS = pa.schema(
    [
        ("id", pa.string()),
        ("path", pa.binary()),  # as the file system spells it
        ("uri", pa.string()),
        ("image", pa.binary()),
        ("text", pa.string()),
        ("meta", pa.string()),
        ("vector", pa.list_(pa.float32())),
    ]
)
_TEXTS = ("id", "modality", "text", "meta")
_NUMBERS = ("size", "mtime_ns", "ctime_ns", "seen_ns")
_SUMS = ("content_sum", "codes_sum")
_PASSAGES = ("spans", "passage_codes", "passage_vectors")  # of long texts
_NAMES = (  # in the order of `Record.columns`
    *("id", "modality", "path", "text", "source", "meta"), *_NUMBERS, "hash", "codes", "vector", *_SUMS
)  # fmt: skip


def _type(name: str) -> pa.DataType:
    if name in _TEXTS:
        return pa.string()
    return pa.int64() if name in (*_NUMBERS, *_SUMS) else pa.binary()


_RECORDS = pa.schema(
    [
        ("batch", pa.int32()),
        *((name, _type(name)) for name in _NAMES),
        ("thumbnail", pa.binary()),
        *((name, pa.binary()) for name in _PASSAGES),
        ("passages_sum", pa.int64()),
    ]
)


_STREAM = b"\xff\xff\xff\xff"  # a stream of Arrow begins so


class DamagedPart(Exception):
    """Bytes that are not what was written. Never shown to users: the part is made anew."""


def pack_items(items: Iterable[Item]) -> bytes:
    """Items, as readers give them, as bytes."""
    rows = []
    for item in items:
        image = item.image
        rows.append(
            {
                "id": item.id,
                "path": os.fsencode(image) if isinstance(image, Path) else None,
                "uri": image if isinstance(image, str) else None,
                "image": image if isinstance(image, bytes) else None,
                "text": item.text,
                "meta": json.dumps(dict(item.meta)),
                "vector": None if item.vector is None else np.asarray(item.vector, np.float32),
            }
        )
    return _pack(pa.Table.from_pylist(rows, schema=_ITEMS))


def unpack_items(data: bytes) -> list[Item]:
    """The items that were packed."""
    found = []
    for row in _unpack(data).to_pylist():
        path = None if row["path"] is None else Path(os.fsdecode(row["path"]))
        image = row["image"] if row["image"] is not None else path or row["uri"]
        found.append(Item(row["id"], image, row["text"], json.loads(row["meta"]), row["vector"]))
    return found


def pack_batches(batches: Sequence[EncodedBatch]) -> bytes:
    """What is to be committed of batches, one after the other, as bytes; every record has its checksums."""
    rows = []
    for number, batch in enumerate(batches):
        for record in batch.records:
            values = dict(zip(_NAMES, record.columns(), strict=True))
            passages = () if record.passages is None else record.passages.columns()[1:]
            values |= dict(zip(_PASSAGES, passages, strict=bool(passages)))
            values |= {"passages_sum": checksum(passages) if passages else None}
            rows.append({"batch": number, **values, "thumbnail": record.thumbnail})
    amended = json.dumps([[_amendment(change) for change in batch.amended] for batch in batches])
    return _pack(pa.Table.from_pylist(rows, schema=_RECORDS).replace_schema_metadata({"amended": amended}))


def unpack_batches(data: bytes) -> list[tuple[list[Record], list[Amendment]]]:
    """The batches that were packed; raises DamagedPart if a byte of a record is another one."""
    table = _unpack(data)
    amended = json.loads((table.schema.metadata or {}).get(b"amended", b"[]"))
    found: list[tuple[list[Record], list[Amendment]]] = [
        ([], [Amendment(**{**change, "stamp": Stamp(**change["stamp"])}) for change in changes])
        for changes in amended
    ]
    for row in table.to_pylist():
        record = _record(row)
        passages = None if record.passages is None else checksum(record.passages.columns()[1:])
        sums = (*record.columns()[-2:], passages)
        if tuple(row[name] for name in (*_SUMS, "passages_sum")) != sums or row["batch"] >= len(found):
            raise DamagedPart(f"the record of {row['id']!r} fails its checksum")
        found[row["batch"]][0].append(record)
    return found


def is_part(stream: IO[bytes], *, whole: bool) -> bool:
    """Whether a file begins as what `pack_batches` makes; unless `whole`, it may end before that is clear."""
    try:
        with pa.ipc.open_stream(stream) as reader:
            return bool(reader.schema.equals(_RECORDS)) and b"amended" in (reader.schema.metadata or {})
    except (pa.ArrowException, OSError):
        stream.seek(0)
        start = stream.read(len(_STREAM))
        return not whole and start == _STREAM[: len(start)]


def _amendment(change: Amendment) -> dict[str, Any]:
    return {**asdict(change), "stamp": asdict(change.stamp)}  # JSON escapes what is no UTF-8 in a path


def _record(row: dict[str, Any]) -> Record:
    vector = None if row["vector"] is None else np.frombuffer(row["vector"], dtype="<f2").astype(np.float16)
    return Record(
        row["id"],
        Modality(row["modality"]),
        np.frombuffer(row["codes"], dtype="<u2").astype(np.uint16),
        vector,
        None if row["path"] is None else os.fsdecode(row["path"]),
        row["text"],
        None if row["source"] is None else os.fsdecode(row["source"]),
        row["meta"],
        row["hash"],
        Stamp(*(row[name] for name in _NUMBERS)),
        row["thumbnail"],
        _passages(row),
    )


def _passages(row: dict[str, Any]) -> Passages | None:
    spans, codes, vectors = (row[name] for name in _PASSAGES)
    if spans is None:
        return None
    count = len(spans) // 8 - 1
    return Passages(
        np.frombuffer(spans, dtype="<i4").reshape(-1, 2),
        np.frombuffer(codes, dtype="<u2").reshape(count, -1),
        None if vectors is None else np.frombuffer(vectors, dtype="<f2").reshape(count, -1),
    )


def _pack(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _unpack(data: bytes) -> pa.Table:
    try:
        with pa.ipc.open_stream(data) as reader:
            return reader.read_all()
    except (pa.ArrowException, OSError) as error:
        raise DamagedPart(str(error)) from None
