"""An export back into an index, new or existing."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from genius import files
from genius.errors import BadData, BadInput
from genius.store import exporting
from genius.store.connection import INDEX_FILE
from genius.store.index import Index
from genius.store.records import Record

BATCH = 1024  # items committed together


def import_file(file: Path, folder: Path) -> int:
    """Put the items of an export (JSON lines or tar) into the index in `folder`, made if it is not there.

    Items of equal id are replaced. Images of a tar are put beside the index, in `files/`.
    """
    if not file.is_file():
        raise BadInput(f"no file at {file}: give a .jsonl or .tar that `genius export` has written")
    with file.open("rb") as stream:
        if stream.read(1) != b"{":
            return _import_tar(file, folder)
        stream.seek(0)
        head = exporting.read_head(stream.readline(), str(file))
        records = (record for record, _ in exporting.read_records(stream, head, str(file)))
        with _index(folder, head) as index:
            return _add(index, records)


def _import_tar(file: Path, folder: Path) -> int:
    try:
        with tarfile.open(file, "r:") as opened:  # never decompressed: a small file stays small
            members = exporting.safe_members(opened, str(file))
            first = _content(opened, members[0]) if members and members[0].name == exporting.HEAD else b""
            head = exporting.read_head(first, str(file))
            with _index(folder, head) as index:
                return _add(index, _unpacked(opened, members, head, index.folder, str(file)))
    except tarfile.TarError as error:
        raise BadData(f"{file} is not an export of an index: {error}") from None


def _unpacked(
    opened: tarfile.TarFile,
    members: Iterable[tarfile.TarInfo],
    head: dict[str, Any],
    folder: Path,
    where: str,
) -> Iterator[Record]:
    """Records of all item members; images are written beside the index before the items that need them."""
    place = folder.absolute() / exporting.FILES
    written: dict[str, str] = {}
    for member in members:
        kind = member.name.split("/")[0]
        if kind == exporting.FILES:
            with files.storage_errors(place):
                place.mkdir(exist_ok=True)
            data = _content(opened, member)
            # named by its content: the archive's own name leads nowhere, and a second import changes nothing
            target = place / (blake2b(data, digest_size=16).hexdigest() + _suffix(member.name))
            if not target.exists():
                files.write_file(target, [data])
            written[member.name] = str(target)
        elif kind == exporting.ITEMS:
            lines = _content(opened, member).splitlines()
            for record, image in exporting.read_records(lines, head, f"{where}, {member.name}"):
                yield replace(record, path=written.get(image) if image is not None else None)


def _index(folder: Path, head: dict[str, Any]) -> Index:
    if not (folder / INDEX_FILE).exists():
        names = ("model", "fingerprint", "sizes", "dim", "vectors", "notes")
        Index.create(folder, **{name: head[name] for name in names})
    index = Index.open(folder)
    try:
        _check(index, head)
    except BaseException:
        index.close()
        raise
    return index


def _check(index: Index, head: dict[str, Any]) -> None:
    index.require_model(head["model"], head["fingerprint"])
    if index.dim is not None and not head["vectors"]:
        raise BadInput(
            f"{index.folder} keeps vectors and the export has none: "
            "import it into a new folder, or export with vectors"
        )


def _add(index: Index, records: Iterator[Record]) -> int:
    count = 0
    with index.writing():
        while batch := list(islice(records, BATCH)):
            index.add([record if index.dim is not None else replace(record, vector=None) for record in batch])
            count += len(batch)
        index.compact()
    return count


def _content(opened: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = opened.extractfile(member)
    assert stream is not None, "only plain files pass safe_members"
    return stream.read()


def _suffix(name: str) -> str:
    suffix = Path(name).suffix
    return suffix if re.fullmatch(r"\.[a-z0-9]{1,5}", suffix) else ""
