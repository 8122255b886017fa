"""Partial changes of stored items: what a change does not name stays as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from genius.data.report import Report
from genius.data.validate import valid_meta
from genius.errors import BadInput
from genius.ingest.add import READERS, EncodedBatch, batches, encode_batch, id_problem, shown_id
from genius.ingest.item import NO_IMAGE
from genius.ingest.result import WITHOUT_IMAGE, AddResult
from genius.retrieval_model import RetrievalModel
from genius.store.index import Index
from genius.store.records import Amendment, Record
from genius.types import Item, Modality

OF_TEXT = "text_flags"  # metadata that describes the text
UNKNOWN_ID = "no item has this id: add it first"


def update_items(
    index: Index,
    model: Callable[[], RetrievalModel],
    changes: Iterable[Item],
    *,
    report: Report | None = None,
    progress: Callable[[AddResult], None] | None = None,
) -> AddResult:
    """Change stored items by id. The image and the text of a change replace the stored ones, if it has them;
    entries of its metadata replace those of the same name, and None removes one. Several changes of one item
    are made one after the other.

    Only an item whose image or text changes is encoded again; `model` is called then.
    """
    result = AddResult(report=Report() if report is None else report)
    with index.writing(), ThreadPoolExecutor(READERS) as readers:
        for batch in (part for several in batches(changes) for part in _of_distinct_items(several)):
            update = _Update(index)
            for change in batch:
                update.take(change)
            for source, items in update.by_source.items():
                known = index.truth.known([item.id for item in items])
                encoded = encode_batch(
                    model(),
                    items,
                    known,
                    readers,
                    source=source,
                    vectors=index.dim is not None,
                    split_texts=index.split_texts,
                )
                update.add(encoded)
            index.add(update.done.records, update.done.amended)
            update.done.count_in(result)
            if progress is not None:
                progress(result)
    return result


def merged_meta(stored: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of an item, stored as JSON, after changes; None takes an entry out."""
    meta = {**json.loads(stored), **changes}
    return {name: value for name, value in meta.items() if value is not None}


def _of_distinct_items(batch: Sequence[Item]) -> Iterator[list[Item]]:
    """The changes in their order, in parts in which no item comes twice: each sees those before it."""
    part: dict[object, Item] = {}
    for change in batch:
        key = change.id if id_problem(change) is None else object()  # an invalid one is skipped later
        if key in part:
            yield list(part.values())
            part = {}
        part[key] = change
    if part:
        yield list(part.values())


class _Update:
    """A batch of changes: the items to encode, by their sources, and what needs no encoding."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.by_source: dict[str | None, list[Item]] = {}
        self.done = EncodedBatch()
        self._pictures: dict[str, Record] = {}  # items whose picture is only a thumbnail, as it was

    def take(self, change: Item) -> None:
        """Sort one change in; a bad one is skipped."""
        problem = id_problem(change)
        if problem is not None:
            self.done.skipped.append((shown_id(getattr(change, "id", change)), problem))
            return
        found = self.index.truth.record(change.id)
        if found is None:
            self.done.skipped.append((change.id, UNKNOWN_ID))
            return
        try:
            self._merge(change, *found)
        except BadInput as error:
            self.done.skipped.append((change.id, str(error)))

    def _merge(self, change: Item, row: int, stored: Record) -> None:
        if not isinstance(change.text, str | None):
            raise BadInput(f"the text must be a string, not {type(change.text).__name__}")
        meta = merged_meta(stored.meta, change.meta)
        if change.image is None and change.text is None and change.vector is None:
            text = valid_meta(meta)
            if text == stored.meta:
                self.done.unchanged += 1
            else:
                self.done.amended.append(Amendment(row, stored.path, stored.source, text, stored.stamp))
            return
        if change.text is not None:
            meta.pop(OF_TEXT, None)
        if change.image is not None:
            meta = {name: value for name, value in meta.items() if name not in WITHOUT_IMAGE}
        image = self._image(row, stored) if change.image is None else change.image
        item = Item(
            change.id, image, stored.text if change.text is None else change.text, meta, change.vector
        )
        self.by_source.setdefault(stored.source, []).append(item)

    def _image(self, row: int, stored: Record) -> Path | bytes | None:
        """The stored image, for an item whose text changes."""
        if stored.modality is Modality.TEXT:
            return None
        path = self.index.image_path(stored)
        if path is not None:
            return Path(path)
        thumbnail = self.index.truth.thumbnail(row)
        if thumbnail is None:
            raise BadInput("its picture is not stored: give it with the text")
        self._pictures[stored.id] = replace(stored, thumbnail=thumbnail)
        return thumbnail

    def add(self, encoded: EncodedBatch) -> None:
        """Take over what was encoded; a picture that did not change stays as it was."""
        for record in encoded.records:
            old = self._pictures.get(record.id)
            if old is not None:
                picture = len(NO_IMAGE)  # bytes of the hash that are about it
                hash = old.hash[:picture] + record.hash[picture:]
                record = replace(record, thumbnail=old.thumbnail, hash=hash)
            self.done.records.append(record)
        self.done.amended += encoded.amended
        self.done.skipped += encoded.skipped
        self.done.notes += encoded.notes
        self.done.updated += encoded.updated
        self.done.unchanged += encoded.unchanged
        self.done.repeated += encoded.repeated
        self.done.long_texts += encoded.long_texts
