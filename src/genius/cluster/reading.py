"""Sources as a stream of parts: Ray reads each source in a task of its own, as one process would.

A row is one part: some whole batches of items, cut where `genius index` alone would cut them, so that every
item is encoded among the same others. Images are not read here unless they lie inside the source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from genius.cluster.wire import pack_items
from genius.data.report import Report
from genius.data.tables import read_items
from genius.errors import GeniusError
from genius.ingest.add import batches
from genius.ingest.source import ItemSource
from genius.types import Item

BATCHES = 4  # in a part: enough work to be worth a task, little enough to do again
BYTES = 32 * 2**20  # of images inside a source; a part ends with the batch that exceeds it


class SourceSpec(NamedTuple):
    """Something to index: a path or URI, and what to leave out of it."""

    name: str  # as it is opened
    label: str  # as the index remembers it
    exclude: tuple[str, ...] = ()


class ItemDatasource(Datasource):  # type: ignore[misc]
    """All sources of one run, in order."""

    def __init__(self, sources: Sequence[SourceSpec], size: int = BATCHES) -> None:
        super().__init__()
        self.sources, self.size = list(sources), size

    def estimate_inmemory_data_size(self) -> int | None:
        """Unknown."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """One task for each source."""
        unknown = BlockMetadata(None, None, None, None)
        return [
            ReadTask(_reader(place, source, self.size), unknown) for place, source in enumerate(self.sources)
        ]


def _reader(place: int, source: SourceSpec, size: int) -> Any:
    return lambda: read_parts(place, source, size)


def read_parts(place: int, source: SourceSpec, size: int = BATCHES) -> Iterator[pa.Table]:
    """The parts of a source, one row each, and a last row without items that says how it ended."""
    report, sent = Report(ids=set()), 0
    number, error = 0, ""
    try:
        for part in _parts(read_items(source.name, source.exclude, report), size):
            skipped, sent = report.names[sent:], len(report.names)
            yield _row(place, number, part, skipped)
            number += 1
    except GeniusError as problem:
        error = str(problem)
    unnamed = report.skipped - len(report.names)
    end = {
        "error": error,
        "ignored": report.ignored,
        "unnamed": unnamed,
        "unknown": report.unknown,
        "ids": sorted(ItemSource.of(source.name).kept_ids(report.ids or set())),
    }
    yield _row(place, number, [], report.names[sent:], end)


def _parts(items: Iterator[Item], size: int) -> Iterator[list[list[Item]]]:
    part: list[list[Item]] = []
    held = 0
    for batch in batches(items):
        part.append(batch)
        held += sum(len(item.image) for item in batch if isinstance(item.image, bytes))
        if len(part) == size or held > BYTES:
            yield part
            part, held = [], 0
    if part:
        yield part


def _row(
    place: int,
    number: int,
    part: Sequence[Sequence[Item]],
    skipped: Sequence[tuple[str, str]],
    end: dict[str, Any] | None = None,
) -> pa.Table:
    facts = {"source": place, "number": number, "skipped": list(skipped), "end": end}
    packed = [pack_items(batch) for batch in part]
    return pa.table(
        {"facts": [json.dumps(facts)], "batches": pa.array([packed], type=pa.list_(pa.large_binary()))}
    )
