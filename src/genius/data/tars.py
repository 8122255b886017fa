"""Items from tar shards: members of one name are one item, `x.jpg`, `x.txt` and `x.json` beside each other.

Nothing is unpacked: members are read one after the other, as a stream, and their names are only ids.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from genius.data.images import MAX_BYTES, SUFFIXES
from genius.data.lines import MAX_LINE, json_object
from genius.data.report import Report, printable
from genius.data.rows import item_of, skip_row
from genius.errors import BadData, BadInput

if TYPE_CHECKING:
    from genius.data.remote import RemotePath
    from genius.types import Item

TEXT, FIELDS = ".txt", ".json"


def read_tar(file: Path | RemotePath, report: Report) -> Iterator[Item]:
    """The items in the shard `file`, in its order; a `.json` member has fields as a line of JSONL does."""

    try:
        with file.open("rb") as stream, tarfile.open(fileobj=stream, mode="r|") as shard:
            for key, members in _grouped(shard, file, report):
                fields: dict[str, Any] = {}
                try:
                    fields = json_object(members[FIELDS]) if FIELDS in members else {}
                    if TEXT in members:
                        fields["text"] = members[TEXT].decode("utf-8", errors="surrogateescape")
                    image = next((data for suffix, data in members.items() if suffix in SUFFIXES), None)
                    item = item_of(fields, file.parent, image, key)
                except (ValueError, BadInput) as error:
                    skip_row(report, f"{file}:{key}", error, fields, key)
                    continue
                report.read += 1
                yield item
    except (OSError, tarfile.TarError) as error:
        raise BadData(f"{printable(file)}: cannot be read ({printable(error)})") from None


def _grouped(
    shard: tarfile.TarFile, file: Path | RemotePath, report: Report
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Neighbouring members that differ in their endings only, by the name they share."""
    open_key, members = "", dict[str, bytes]()
    for member in shard:
        name = PurePosixPath(member.name)
        suffix = name.suffix.lower()
        if not member.isfile() or name.name.startswith("."):
            continue
        if suffix not in SUFFIXES and suffix not in (TEXT, FIELDS):
            report.ignore(name.name)
            continue
        key = str(name.with_suffix(""))
        if key != open_key:
            if members:
                yield open_key, members
            open_key, members = key, {}
        limit = MAX_BYTES - sum(map(len, members.values())) if suffix in SUFFIXES else MAX_LINE
        if member.issparse() or member.size > limit:  # a sparse file of a few bytes can be read without end
            report.unknown += 1
            reason = "a sparse file" if member.issparse() else f"more than {limit >> 20} MB"
            report.skip(f"{file}:{member.name}", reason)
            continue
        stream: IO[bytes] | Any = shard.extractfile(member)
        members[suffix] = stream.read()
    if members:
        yield open_key, members
