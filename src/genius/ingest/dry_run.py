"""What indexing a source would do, without a model and without a change."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from genius.data.exif import FACTS
from genius.data.remote import is_uri
from genius.data.report import Report
from genius.data.texts import clean_text
from genius.data.urls import is_url
from genius.data.validate import valid_meta
from genius.errors import BadInput
from genius.ingest.add import batches, id_problem, shown_id
from genius.ingest.item import NO_IMAGE, digest
from genius.ingest.naming import Lookup
from genius.ingest.result import WITHOUT_IMAGE, AddResult
from genius.ingest.seen import SeenIds
from genius.ingest.update import UNKNOWN_ID, merged_meta
from genius.store.records import Known, Stamp
from genius.types import Item


def dry_run(items: Iterable[Item], known: Lookup, report: Report, *, exif: bool = False) -> AddResult:
    """How many of the items are new, changed, unchanged or repeated; of images, only the bytes are compared.

    With `exif`, EXIF metadata of stored items is assumed to be unchanged.
    """
    result = AddResult(report=report)
    with closing(SeenIds()) as seen:
        for batch in batches(items):
            last: dict[str, Item] = {}  # of each id: the one that would be kept
            for item in batch:
                problem = id_problem(item) or _problem(item, report)
                if problem is not None:
                    report.skip(shown_id(getattr(item, "id", item)), problem)
                    continue
                if item.id in last:
                    _repeat(result, item.id)
                last[item.id] = item
            for id in seen.again(last):  # it came in a batch before, and was counted there
                _repeat(result, id)
                del last[id]
            stored = known(list(last))
            for id, item in last.items():
                if id not in stored:
                    result.added += 1
                elif _is_unchanged(item, stored[id], exif):
                    result.unchanged += 1
                else:
                    result.updated += 1
    return result


def _repeat(result: AddResult, id: str) -> None:
    result.repeated += 1
    result.repeat([id])


def dry_update(changes: Iterable[Item], known: Lookup, report: Report) -> AddResult:
    """The same for changes of stored items in part, as `update_items` would apply them."""
    result = AddResult(report=report)
    for batch in batches(changes):
        stored = known([change.id for change in batch if id_problem(change) is None])
        for change in batch:
            problem = id_problem(change) or (None if change.id in stored else UNKNOWN_ID)
            if problem is not None:
                report.skip(shown_id(getattr(change, "id", change)), problem)
            elif _changes_nothing(change, stored[change.id]):
                result.unchanged += 1
            else:
                result.updated += 1
    return result


def _problem(item: Item, report: Report) -> str | None:
    """Why an item would be skipped; of one that would be read in part, that is noted."""
    try:
        valid_meta(item.meta)
    except BadInput as error:
        return str(error)
    if not isinstance(item.image, Path) or item.vector is not None or item.image.is_file():
        return None
    missing = f"no image at {item.image}"
    if not item.text:
        return missing
    report.note(shown_id(item.id), f"{missing}; its text would be kept")
    return None


def _is_unchanged(item: Item, stored: Known, exif: bool) -> bool:
    before = json.loads(stored.meta)
    added = (*WITHOUT_IMAGE, "uri", *(FACTS if exif else ()))  # entries that indexing makes
    own = {name: before[name] for name in added if name in before}
    if valid_meta({**own, **item.meta}) != stored.meta:
        return False
    return _has_text(stored, item.text or "") and _has_image(stored, item)


def _changes_nothing(change: Item, stored: Known) -> bool:
    return (
        valid_meta(merged_meta(stored.meta, change.meta)) == stored.meta
        and (change.text is None or _has_text(stored, change.text))
        and (change.image is None or _has_image(stored, change))
    )


def _has_text(stored: Known, text: str) -> bool:
    return stored.hash[len(NO_IMAGE) : 2 * len(NO_IMAGE)] == digest(clean_text(text).text.encode())


def _has_image(stored: Known, item: Item) -> bool:
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
