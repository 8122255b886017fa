"""Imports an export into a new or existing index.

Everything is read and checked before anything is written. No path in an export is ever followed: one that a
JSON line names is kept as a string, and images come from the members of a tar alone.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from genius import files
from genius.data.images import SUFFIXES
from genius.data.report import Report, printable
from genius.data.validate import valid_codes, valid_id, valid_meta, valid_text, valid_thumbnail, valid_vector
from genius.errors import BadData, BadInput
from genius.store.connection import INDEX_FILE
from genius.store.export_file import ExportFile, ExportLine, open_export
from genius.store.exporting import FORMAT, MODEL_FILES
from genius.store.index import FILES, Index
from genius.store.records import Passages, Record, Stamp, Vectors
from genius.types import Modality

BATCH = 1024  # items committed together
OLDER = "genius-items-1"  # had no end mark
_KINDS = {"model": str, "fingerprint": str, "sizes": list, "dim": int, "vectors": bool, "notes": dict}
_MAX_LEVELS, _MAX_CODES, _MAX_DIM, _MAX_HASH, _MAX_PATH = 256, 1 << 16, 1 << 16, 64, 1 << 15
_MODEL_LINE, _MODEL_FOLDER, _MAX_MODEL = b'{"model_file"', re.compile(r"fit-\d{6,12}"), 1 << 30
_WRONG = (BadInput, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def import_file(file: Path, folder: Path, *, partial: bool = False, report: Report | None = None) -> int:
    """Put the items of an export (JSON lines or tar) into the index in `folder`, created if there is none.

    Items of equal id are replaced. Images of a tar are put beside the index, in `files/`. An export that is
    not whole, or has a bad item, is refused and changes nothing; with `partial`, whatever items can be used
    are taken, and the `report` counts the others. Returns how many were taken.
    """
    report = Report() if report is None else report
    with open_export(file) as export:
        head = read_head(export.head(), str(file))
        if not partial:
            _require_whole(export, head)
        if (folder / INDEX_FILE).exists():
            with _index(folder, head):
                pass  # raises before the export is read if it does not fit
        found = sum(1 for _ in _records(export, head, partial, Report()))
        if not partial and found != head["items"]:
            raise BadData(f"{file} has {found} items instead of {head['items']}: export the index again")
        _unpack_model(export, head, folder)
        with _index(folder, head) as index:
            return _add(index, _stored(export, _records(export, head, partial, report), index))


def read_head(line: bytes, where: str) -> dict[str, Any]:
    """The checked head of an export."""
    try:
        head: dict[str, Any] = json.loads(line)
        right = all(isinstance(head[key], kind) for key, kind in _KINDS.items())
        right = right and head["format"] in (FORMAT, OLDER) and 0 < len(head["sizes"]) <= _MAX_LEVELS
        right = right and all(type(size) is int and 0 < size <= _MAX_CODES for size in head["sizes"])
        right = right and 0 < head["dim"] <= _MAX_DIM and bool(valid_meta(head["notes"]))
        right = right and head["model"] == printable(head["model"])
        if head.get("fit") is not None:
            right = (
                right and isinstance(head["fit"], dict) and _MODEL_FOLDER.fullmatch(head["model"]) is not None
            )
    except _WRONG:
        right = False
    if not right:
        raise BadData(f"{where} is not an export of an index: it does not begin with the head of {FORMAT}")
    return head


def _require_whole(export: ExportFile, head: dict[str, Any]) -> None:
    name = export.name
    if head["format"] == OLDER:
        raise BadData(
            f"{name} was written by an older genius, without an end mark, so nothing tells whether it is "
            "whole: export the index again, or import with --partial if you trust it"
        )
    mark = export.end_mark()
    if mark is None:
        raise BadData(
            f"{name} has no end mark, so it was cut short: export the index again, or take the items that "
            "are there with --partial"
        )
    if mark != {"items": head.get("items"), "digest": export.digest().hex()}:
        raise BadData(
            f"{name} is not as it was written: export the index again, or take the items that are "
            "there with --partial"
        )


def _records(
    export: ExportFile, head: dict[str, Any], partial: bool, report: Report
) -> Iterator[tuple[Record, str | None]]:
    """Records of all items, each with the name of its image member; raises BadData naming a bad one."""
    for line in export.items():
        if line.data is not None and line.data.startswith(_MODEL_LINE):
            continue
        try:
            found = _record(line, head)
            if found[1] is not None and not export.has_file(found[1]):
                raise BadInput(f"its image {printable(found[1])} is not in the archive")
        except _WRONG as error:
            reason = printable(error)
            if not partial:
                raise BadData(f"{export.name}, {line.place}: {reason}; export the index again") from None
            report.skip(line.place, reason)
        else:
            yield found


def _record(line: ExportLine, head: dict[str, Any]) -> tuple[Record, str | None]:
    if line.data is None:
        raise BadInput("the line is too long")
    fields = json.loads(line.data)
    if not isinstance(fields, dict):
        raise BadInput("it is not an object")
    vector = _vector(fields, head)
    thumbnail = fields.get("thumbnail")
    hash = bytes.fromhex(fields["hash"])
    image = fields.get("file")
    if len(hash) > _MAX_HASH or not (image is None or isinstance(image, str)):
        raise BadInput("its hash is too long, or the name of its image no string")
    record = Record(
        valid_id(fields["id"]),
        Modality(fields["modality"]),
        valid_codes(fields["codes"], head["sizes"]),
        vector,
        path=_path(fields.get("path")),
        text=valid_text(fields.get("text")),
        source=_path(fields.get("source")),
        meta=valid_meta(fields["meta"]),
        hash=hash,
        stamp=Stamp(),  # the next `index` compares hashes, and until then nobody opens the path
        thumbnail=None if thumbnail is None else valid_thumbnail(base64.b64decode(thumbnail, validate=True)),
    )
    return replace(record, passages=_passages(fields, head)), image


def _vector(fields: dict[str, Any], head: dict[str, Any]) -> Vectors | None:
    if not head["vectors"]:
        return None
    raw = base64.b64decode(fields["vector"], validate=True)
    if len(raw) != 2 * head["dim"]:
        raise BadInput(f"its vector has {len(raw)} bytes instead of {2 * head['dim']}")
    return valid_vector(np.frombuffer(raw, dtype="<f2").astype(np.float16), head["dim"])


def _passages(fields: dict[str, Any], head: dict[str, Any]) -> Passages | None:
    """The passages of a long text."""
    every = fields.get("passages")
    if every is None:
        return None
    spans = [(one["start"], one["end"]) for one in every]
    length = len(fields["text"])
    numbers = all(type(place) is int for span in spans for place in span)
    right = numbers and all(0 <= start < end <= length for start, end in spans)
    if not right or not 1 < len(spans) <= length or spans[0][0] != 0:
        raise BadInput("its passages are no parts of its text")
    vectors = [vector for one in every[1:] if (vector := _vector(one, head)) is not None]
    return Passages(
        np.array(spans, dtype=np.int32),
        np.stack([valid_codes(one["codes"], head["sizes"]) for one in every[1:]]),
        np.stack(vectors) if vectors else None,
    )


def _path(path: object) -> str | None:
    """`path` if it is None or a string that can name a file."""
    if path is None:
        return None
    if not isinstance(path, str) or "\0" in path or not 0 < len(os.fsencode(path)) <= _MAX_PATH:
        raise BadInput("path and source must be names of files")
    return path


def _stored(
    export: ExportFile, records: Iterator[tuple[Record, str | None]], index: Index
) -> Iterator[Record]:
    """The records as the index keeps them: with their images beside it, and vectors only if it has any."""
    for record, image in records:
        if index.dim is None:
            passages = record.passages and replace(record.passages, vectors=None)
            record = replace(record, vector=None, passages=passages)
        if image is not None:
            target = _unpack(export.file(image), index.folder.absolute() / FILES, Path(image).suffix)
            record = replace(record, path=str(target), stamp=Stamp.of(target.stat()))
        elif export.holds_files:
            record = replace(record, path=None)
        yield record


def _unpack(data: bytes, folder: Path, suffix: str) -> Path:
    """Write an image under the digest of its content: its own name leads nowhere, and twice is once."""
    files.make_folder(folder)
    name = blake2b(data, digest_size=16).hexdigest() + (suffix if suffix in SUFFIXES else "")
    if not (folder / name).exists():
        files.write_file(folder / name, [data])
    return folder / name


def _unpack_model(export: ExportFile, head: dict[str, Any], folder: Path) -> None:
    """Put the model that was fitted to the items into the folder of a new index."""
    if head.get("fit") is None or (folder / INDEX_FILE).exists():
        return
    found: dict[str, bytearray] = {}
    total = 0
    for line in export.items():
        if line.data is None or not line.data.startswith(_MODEL_LINE):
            break
        try:
            fields = json.loads(line.data)
            name, data = fields["model_file"], base64.b64decode(fields["data"], validate=True)
        except _WRONG as error:
            raise BadData(
                f"{export.name}, {line.place}: {printable(error)}; export the index again"
            ) from None
        total += len(data)
        if name not in MODEL_FILES or total > _MAX_MODEL:
            raise BadData(f"{export.name}, {line.place}: no file of a model; export the index again")
        found.setdefault(name, bytearray()).extend(data)
    if not {"model.toml", "quantizer.safetensors"} <= found.keys():
        raise BadData(f"{export.name} lacks the model of its codes: export the index again")
    files.make_folder(folder)
    shutil.rmtree(folder / head["model"], ignore_errors=True)
    with files.write_folder(folder / head["model"]) as partial:
        for name, content in found.items():
            files.write_durably(partial / name, [bytes(content)])


def _index(folder: Path, head: dict[str, Any]) -> Index:
    if not (folder / INDEX_FILE).exists():
        Index.create(folder, **{name: head[name] for name in _KINDS}, fit=head.get("fit"))
    index = Index.open(folder)
    try:
        _require_fit(index, head)
    except BaseException:
        index.close()
        raise
    return index


def _require_fit(index: Index, head: dict[str, Any]) -> None:
    fits = index.settings.get("fit"), head.get("fit")
    if all(fits) and index.settings["fingerprint"] != head["fingerprint"]:
        raise BadInput(
            f"the codes of {index.folder} were fitted anew since this export, or it is of another index: "
            "import it into a new folder"
        )
    index.require_model(head["model"], head["fingerprint"], head["sizes"], head["dim"])
    if index.dim is not None and not head["vectors"]:
        raise BadInput(
            f"{index.folder} keeps vectors and the export has none: "
            "import it into a new folder, or export with vectors"
        )


def _add(index: Index, records: Iterator[Record]) -> int:
    count = 0
    with index.writing():
        while batch := list(islice(records, BATCH)):
            index.add(batch)
            count += len(batch)
        index.compact()
    return count
