"""Adds items to an index: read, encoded, quantized and committed in batches; a bad item affects no other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from genius.data.remote import fetched
from genius.data.report import Report, printable
from genius.data.texts import clean_text
from genius.data.urls import is_url
from genius.data.validate import valid_id
from genius.errors import BadInput, GeniusError, MissingImage
from genius.ingest.embedding import embedded_records, is_long, with_passages
from genius.ingest.item import NO_IMAGE, PendingItem, digest, keep_image, read_item
from genius.ingest.result import WITHOUT_IMAGE, AddResult
from genius.ingest.seen import SeenIds
from genius.retrieval_model import RetrievalModel
from genius.store.index import Index
from genius.store.records import Amendment, Known, Record
from genius.types import Item

BATCH = 64  # items encoded and committed together
READERS = 4  # threads that read and decode files
SHOWN = 200  # characters of an id that names a skipped item

Outcome = PendingItem | Amendment | BadInput | None  # of reading one item; None: unchanged


@dataclass(slots=True)
class EncodedBatch:
    """A batch of items that was read and encoded: what is to be committed, and counts of the rest."""

    records: list[Record] = field(default_factory=list)
    amended: list[Amendment] = field(default_factory=list)
    updated: int = 0  # records that replace older ones
    unchanged: int = 0
    repeated: int = 0  # items of this batch that a later one of it replaced
    skipped: list[tuple[str, str]] = field(default_factory=list)  # ids and reasons
    notes: list[tuple[str, str]] = field(default_factory=list)  # ids, and what is missing
    long_texts: int = 0  # longer than the encoder reads, and not split
    updated_again: int = 0  # of the changes, those of items that came before in the same run
    unchanged_again: int = 0

    def count_in(self, result: AddResult) -> None:
        """Add this batch, once committed, to the totals of the run."""
        result.added += len(self.records) - self.updated
        amended = sum(not change.only_stamp for change in self.amended)
        result.updated += self.updated + amended - self.updated_again
        result.unchanged += self.unchanged - self.unchanged_again
        result.repeated += self.repeated + self.updated_again + self.unchanged_again
        result.long_texts += self.long_texts
        for name, reason in self.skipped:
            result.report.skip(name, reason)
        for name, what in self.notes:
            result.report.note(name, what)


def add_items(
    index: Index,
    model: RetrievalModel,
    items: Iterable[Item],
    *,
    source: str | None = None,
    allow_urls: bool = False,
    exif: bool = False,
    report: Report | None = None,
    progress: Callable[[AddResult], None] | None = None,
) -> AddResult:
    """Add or update `items`; each batch is on disk and searchable when `progress` is called for it.

    Known items that have not changed are not encoded again, so an interrupted run is resumed by running it
    again. `source` says where the items come from, for pruning.
    """
    result = AddResult(report=Report() if report is None else report)
    with index.writing(), ThreadPoolExecutor(READERS) as readers, closing(SeenIds()) as seen:
        for batch in batches(items):
            known = index.truth.known([item.id for item in batch if id_problem(item) is None])
            encoded = encode_batch(
                model,
                batch,
                known,
                readers,
                source=source,
                vectors=index.dim is not None,
                split_texts=index.split_texts,
                allow_urls=allow_urls,
                exif=exif,
            )
            if encoded.records or encoded.amended:
                index.add(encoded.records, encoded.amended)
            _note_repeats(batch, known, encoded, seen, result)
            encoded.count_in(result)
            if progress is not None:
                progress(result)
    return result


def _note_repeats(
    batch: Sequence[Item], known: Mapping[str, Known], encoded: EncodedBatch, seen: SeenIds, result: AddResult
) -> None:
    """Find ids that came before, in this batch or an earlier one: the last item of an id is the one kept."""
    ids = Counter(item.id for item in batch if id_problem(item) is None)
    again = seen.again(ids)
    result.repeat([*(id for id, count in ids.items() if count > 1), *again])
    changed = {record.id for record in encoded.records}
    rows = {change.row for change in encoded.amended if not change.only_stamp}
    refused = {name for name, _ in encoded.skipped}
    for id in again:
        if id in changed or (id in known and known[id].row in rows):
            encoded.updated_again += 1
        elif id not in refused:
            encoded.unchanged_again += 1


def batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    """The items as they are encoded and committed together; those before a reader's error are kept.

    A vector may depend, in its last bit, on the others of its batch: equal vectors need equal batches.
    """
    source = iter(items)
    failed: GeniusError | None = None
    while failed is None:
        batch: list[Item] = []
        try:
            batch.extend(islice(source, BATCH))  # extends one by one, so what came before an error stays
        except GeniusError as error:
            failed = error
        if not batch:
            break
        yield batch
    if failed is not None:
        raise failed


def encode_batch(
    model: RetrievalModel,
    batch: Sequence[Item],
    known: Mapping[str, Known],
    readers: Executor,
    *,
    source: str | None,
    vectors: bool,
    split_texts: bool = False,
    allow_urls: bool = False,
    exif: bool = False,
) -> EncodedBatch:
    """One batch read and encoded; `known` is what is stored of its items, and nothing is written.

    With `split_texts`, texts that are longer than the encoder reads are encoded in passages.
    """
    result = EncodedBatch()
    last: dict[str, Item] = {}
    for item in batch:
        problem = id_problem(item)
        if problem is not None:
            result.skipped.append((shown_id(getattr(item, "id", item)), problem))
            continue
        result.repeated += item.id in last
        last[item.id] = item
    read = partial(_read, known=known, source=source, allow_urls=allow_urls, exif=exif)
    outcomes = readers.map(read, last.values())
    pending = _sort(last, outcomes, result)
    if split_texts:
        pending = [with_passages(model, one) for one in pending]
    else:
        result.long_texts = sum(is_long(model, one) for one in pending)
    result.records = _encode(model, pending, vectors, result)
    result.updated = sum(record.id in known for record in result.records)
    return result


def id_problem(item: object) -> str | None:
    """Why this is no item that can be stored under its id; None if it is one."""
    if not isinstance(item, Item):
        return f"not an Item but {type(item).__name__}"
    try:
        valid_id(item.id)
    except BadInput as error:
        return str(error)
    return None


def shown_id(id: object) -> str:
    """An id, or what is in its place, as a report names it."""
    try:
        text = printable(id)
    except Exception as error:  # an object whose str() fails
        text = f"{type(id).__name__} ({type(error).__name__})"
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _read(
    item: Item, known: Mapping[str, Known], source: str | None, allow_urls: bool, exif: bool
) -> tuple[Outcome, str]:
    """What becomes of an item, and what is to be said of it."""
    stored = known.get(item.id)
    if allow_urls and stored is not None and is_url(item.image) and _has_url(stored, item):
        return _outcome(lambda: keep_image(item, stored, source)), ""
    try:
        return _outcome(lambda: read_item(fetched(item, allow_urls), stored, source, exif=exif)), ""
    except MissingImage as error:
        missing = str(error)
    if not (isinstance(item.text, str) and item.text.strip()):
        return BadInput(missing), ""
    if stored is not None and not stored.hash.startswith(NO_IMAGE):  # its disk may be back tomorrow
        if stored.hash.endswith(digest(clean_text(item.text).text.encode())):
            return None, f"{missing}; the stored picture is kept"
        return BadInput(f"{missing}; the stored item is left as it is"), ""
    alone = replace(item, image=None, meta={**item.meta, **WITHOUT_IMAGE})
    return _outcome(lambda: read_item(alone, stored, source)), f"{missing}; its text is kept"


def _has_url(stored: Known, item: Item) -> bool:
    """Whether the stored item has the image of this address and the same text: it is not fetched again."""
    text = clean_text(item.text).text if isinstance(item.text, str) else ""
    same = not stored.hash.startswith(NO_IMAGE) and stored.hash.endswith(digest(text.encode()))
    return same and json.loads(stored.meta).get("uri") == item.image


def _outcome(read: Callable[[], Outcome]) -> Outcome:
    try:
        return read()
    except MissingImage:
        raise
    except BadInput as error:
        return error
    except OSError as error:
        return BadInput(f"cannot be read: {printable(error.strerror or error)}")
    except Exception as error:  # parts of a type that nobody foresaw: their owner is told, the run goes on
        return BadInput(f"cannot be read: {type(error).__name__}: {printable(error)}")


def _sort(
    ids: Iterable[str], outcomes: Iterable[tuple[Outcome, str]], result: EncodedBatch
) -> list[PendingItem]:
    """The items to encode; the others go to the result."""
    pending: list[PendingItem] = []
    for id, (outcome, note) in zip(ids, outcomes, strict=True):
        if note:
            result.notes.append((shown_id(id), note))
        if isinstance(outcome, PendingItem):
            pending.append(outcome)
        elif isinstance(outcome, Amendment):
            result.amended.append(outcome)
            result.unchanged += outcome.only_stamp
        elif outcome is None:
            result.unchanged += 1
        else:
            result.skipped.append((shown_id(id), str(outcome)))
    return pending


def _encode(
    model: RetrievalModel, pending: Sequence[PendingItem], vectors: bool, result: EncodedBatch
) -> list[Record]:
    """Records of the items that can be encoded; if a batch fails, each is tried alone."""
    if not pending:
        return []
    try:
        return embedded_records(model, pending, vectors)
    except Exception as error:
        if isinstance(error, GeniusError) and not isinstance(error, BadInput):
            raise  # the model's or the disk's fault, not the item's
        if len(pending) == 1:
            result.skipped.append((shown_id(pending[0].id), f"cannot be encoded: {printable(error)}"))
            return []
    return [record for one in pending for record in _encode(model, [one], vectors, result)]
