"""Items into the index: read, encoded, quantized and committed in batches; a bad one costs only itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from genius.data.remote import fetched
from genius.data.report import Report
from genius.errors import BadInput
from genius.ingest.item import PendingItem, read_item
from genius.ingest.result import AddResult
from genius.retrieval_model import RetrievalModel
from genius.store.index import Index
from genius.store.records import Amendment, Known, Record
from genius.types import Item

BATCH = 64  # items encoded and committed together
READERS = 4  # threads that read and decode files


@dataclass(slots=True)
class EncodedBatch:
    """A batch of items that was read and encoded: what is to be committed, and what became of the rest."""

    records: list[Record] = field(default_factory=list)
    amended: list[Amendment] = field(default_factory=list)
    updated: int = 0  # records in the place of older ones
    unchanged: int = 0
    repeated: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)  # ids and reasons

    def count_in(self, result: AddResult) -> None:
        """Add this batch, once committed, to the totals of the run."""
        result.added += len(self.records) - self.updated
        result.updated += self.updated + sum(not change.only_stamp for change in self.amended)
        result.unchanged += self.unchanged
        result.repeated += self.repeated
        for name, reason in self.skipped:
            result.report.skip(name, reason)


def add_items(
    index: Index,
    model: RetrievalModel,
    items: Iterable[Item],
    *,
    source: str | None = None,
    report: Report | None = None,
    progress: Callable[[AddResult], None] | None = None,
) -> AddResult:
    """Add or update `items`; each batch is on disk and searchable once `progress` has been told of it.

    Known items that have not changed are not encoded again, so an interrupted run is resumed by running it
    again. `source` says where the items come from, for pruning.
    """
    result = AddResult(report=Report() if report is None else report)
    with index.writing(), ThreadPoolExecutor(READERS) as readers:
        for batch in batches(items):
            known = index.truth.known([item.id for item in batch if isinstance(item.id, str)])
            ready = encode_batch(model, batch, known, readers, source=source, vectors=index.dim is not None)
            if ready.records or ready.amended:
                index.add(ready.records, ready.amended)
            ready.count_in(result)
            if progress is not None:
                progress(result)
    return result


def batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    """The items as they are encoded and committed together: an item's vector may depend, in its last bit, on
    the others of its batch, so whoever wants equal vectors needs equal batches."""
    source = iter(items)
    while batch := list(islice(source, BATCH)):
        yield batch


def encode_batch(
    model: RetrievalModel,
    batch: Sequence[Item],
    known: Mapping[str, Known],
    readers: Executor,
    *,
    source: str | None,
    vectors: bool,
) -> EncodedBatch:
    """One batch read and encoded; `known` is what is stored of its items, and nothing is written."""
    last = {item.id: item for item in batch}
    result = EncodedBatch(repeated=len(batch) - len(last))
    received = readers.map(lambda item: _receive(item, known, source), last.values())
    ready = _sort(received, result)
    result.records = _encode(model, ready, vectors, result)
    result.updated = sum(record.id in known for record in result.records)
    return result


def _receive(
    item: Item, known: Mapping[str, Known], source: str | None
) -> tuple[Item, PendingItem | Amendment | BadInput | None]:
    try:
        return item, read_item(fetched(item), known.get(item.id), source)
    except BadInput as error:
        return item, error


def _sort(
    received: Iterable[tuple[Item, PendingItem | Amendment | BadInput | None]], result: EncodedBatch
) -> list[PendingItem]:
    """What has to be encoded; the rest goes to the result."""
    ready: list[PendingItem] = []
    for item, outcome in received:
        if isinstance(outcome, PendingItem):
            ready.append(outcome)
        elif isinstance(outcome, Amendment):
            result.amended.append(outcome)
            result.unchanged += outcome.only_stamp
        elif outcome is None:
            result.unchanged += 1
        else:
            result.skipped.append((str(item.id), str(outcome)))
    return ready


def _encode(
    model: RetrievalModel, ready: Sequence[PendingItem], vectors: bool, result: EncodedBatch
) -> list[Record]:
    """Records of the items that can be encoded; if a batch fails, each is tried alone."""
    if not ready:
        return []
    try:
        return _records(model, ready, vectors)
    except (BadInput, ValueError, RuntimeError) as error:
        if len(ready) == 1:
            result.skipped.append((ready[0].id, f"cannot be encoded: {error}"))
            return []
    return [record for one in ready for record in _encode(model, [one], vectors, result)]


def _records(model: RetrievalModel, ready: Sequence[PendingItem], vectors: bool) -> list[Record]:
    parts = model.embed_items([one.image for one in ready], [one.text for one in ready])
    phi = model.phi(parts)
    if not np.isfinite(phi).all():
        raise BadInput("its vector has NaN or infinite entries")
    codes = model.codes(parts, [one.modality for one in ready])
    half = phi.astype(np.float16)
    return [
        Record(
            one.id,
            one.modality,
            codes[number],
            half[number] if vectors else None,
            one.path,
            one.text,
            one.source,
            one.meta,
            one.hash,
            one.stamp,
            one.thumbnail,
        )
        for number, one in enumerate(ready)
    ]
