"""What indexing a source would do, without a model and without a change."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from genius.data.remote import is_uri
from genius.data.report import Report
from genius.data.texts import clean_text
from genius.data.urls import is_url
from genius.ingest.add import batches, id_problem, shown_id
from genius.ingest.item import NO_IMAGE, digest
from genius.ingest.naming import Lookup
from genius.ingest.result import AddResult
from genius.store.records import Known, Stamp
from genius.types import Item


def dry_run(items: Iterable[Item], known: Lookup, report: Report) -> AddResult:
    """How many of the items are new, changed or unchanged; of images, only the bytes are compared."""
    result = AddResult(report=report)
    for batch in batches(items):
        _count(batch, known([item.id for item in batch if id_problem(item) is None]), result)
    return result


def _count(batch: Sequence[Item], known: Mapping[str, Known], result: AddResult) -> None:
    for item in batch:
        problem = id_problem(item) or _missing(item)
        if problem is not None:
            result.report.skip(shown_id(getattr(item, "id", item)), problem)
        elif item.id not in known:
            result.added += 1
        elif _is_unchanged(item, known[item.id]):
            result.unchanged += 1
        else:
            result.updated += 1


def _missing(item: Item) -> str | None:
    if not isinstance(item.image, Path) or item.text or item.image.is_file():
        return None
    return f"no image at {item.image}"


def _is_unchanged(item: Item, stored: Known) -> bool:
    text = digest(clean_text(item.text or "").text.encode())
    if stored.hash[len(NO_IMAGE) : 2 * len(NO_IMAGE)] != text:
        return False
    if isinstance(item.image, bytes):
        return stored.hash.startswith(digest(item.image))
    if not isinstance(item.image, Path):
        return is_uri(item.image) or is_url(item.image) or stored.hash.startswith(NO_IMAGE)
    try:
        if stored.path == os.path.abspath(item.image) and stored.stamp.vouches_for(  # noqa: PTH100
            Stamp.of(item.image.stat())
        ):
            return True
        return stored.hash.startswith(digest(item.image.read_bytes()))
    except OSError:
        return True  # what is stored is kept
