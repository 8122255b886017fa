"""A worker: it has the model, reads the images of a part, encodes what has changed and keeps the result."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from genius.cluster.parts import PartStore, part_name
from genius.cluster.reading import SourceSpec
from genius.cluster.wire import pack_batches, unpack_items
from genius.engine.opening import load_model
from genius.errors import GeniusError, ModelMismatch
from genius.ingest.add import READERS, EncodedBatch, encode_batch
from genius.ingest.naming import possible_ids, unique_ids
from genius.ingest.source import ItemSource
from genius.retrieval_model import RetrievalModel
from genius.store.records import Known, Record
from genius.store.truth import Truth
from genius.types import Item

ATTEMPTS = 4  # at a part whose workers die
DEADLY = f"one of its part ended {ATTEMPTS} workers: leave out what is damaged, then run again"


@dataclass(frozen=True, slots=True)
class EncodingJob:
    """What every worker of a run has to know: plain values, and the handle of a `KnownItems`."""

    model: str
    fingerprint: str
    device: str
    vectors: bool
    split_texts: bool
    parts: str
    sources: tuple[SourceSpec, ...]
    known_items: Any
    fitted: tuple[
        tuple[str, bytes], ...
    ] = ()  # files of a model that lies in the index: only one machine has it


class KnownItems:
    """Beside the index: tells workers what is stored of items, so that they encode nothing twice."""

    def __init__(self, truth: str) -> None:
        self.truth = Truth.open(Path(truth))

    def known(self, ids: Sequence[str]) -> dict[str, Known]:
        """Of the stored ones among `ids`, what tells whether they have changed."""
        return self.truth.known(ids)


class EncodingWorker:
    """Encodes one part after the other; Ray makes as many of them as are wanted."""

    def __init__(self, job: EncodingJob) -> None:
        self.job = job
        self.model: RetrievalModel = _load(job)
        if self.model.fingerprint != job.fingerprint:
            raise ModelMismatch(f"{job.model!r} is another model here than on the machine of the index")
        self.parts = PartStore(job.parts)
        self.readers = ThreadPoolExecutor(READERS)
        self.name = f"{ray.util.get_node_ip_address()}:{os.getpid()}"

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """A part encoded and kept; the answer says what became of its items, and what it took."""
        facts = json.loads(row["facts"])
        began, used = time.perf_counter(), time.process_time()
        try:
            done = self._part(facts, [unpack_items(batch) for batch in row["batches"]])
        except GeniusError as error:
            done = {"error": str(error)}
        spent = {"seconds": time.perf_counter() - began, "processor": time.process_time() - used}
        done |= {"worker": self.name, **spent}
        return {"facts": json.dumps(facts | done)}

    def _part(self, facts: dict[str, Any], batches: list[list[Item]]) -> dict[str, Any]:
        source = self.job.sources[facts["source"]]
        kind = f"{self.job.fingerprint}{' split' if self.job.split_texts else ''}"
        name = part_name(source.label, facts["number"], kind, self.job.vectors)
        root = ItemSource.of(source.name).root
        if root is not None:
            batches = self._named(batches, root, source.label)
        ids = [item.id for batch in batches for item in batch]
        if ids and self.parts.begin(name) >= ATTEMPTS:
            self.parts.end(name)
            skipped = [(id, DEADLY) for id in ids]
            return {"part": "", "ids": ids, "encoded": 0, "counts": [[0, 0, 0, skipped]]}
        known = self._known(ids)
        kept = self.parts.read(name) or [] if any(id not in known for id in ids) else []
        old = {record.id: record for records, _ in kept for record in records if record.id not in known}
        done = [self._batch(batch, known, old, source) for batch in batches]
        changed = any(batch.records or batch.amended for batch, _ in done)
        if changed:
            self.parts.write(name, pack_batches([batch for batch, _ in done]))
        self.parts.end(name)
        return {
            "part": name if changed else "",
            "ids": ids,
            "encoded": sum(encoded for _, encoded in done),
            "counts": [
                [b.updated, b.unchanged, b.repeated, b.skipped, b.notes, b.long_texts] for b, _ in done
            ],
        }

    def _named(self, batches: list[list[Item]], root: str, label: str) -> list[list[Item]]:
        """The items under ids that no other source has in the index."""
        plain = {name for batch in batches for item in batch for name in possible_ids(item.id, root)[:2]}
        stored = self._known(sorted(plain))

        def known(ids: Sequence[str]) -> dict[str, Known]:
            if plain.issuperset(ids):  # asked for at once: every question to the index takes a while
                return {id: stored[id] for id in ids if id in stored}
            return self._known(ids)

        return [list(unique_ids(batch, root, label, known)) for batch in batches]

    def _known(self, ids: Sequence[str]) -> dict[str, Known]:
        known: dict[str, Known] = ray.get(self.job.known_items.known.remote(ids)) if ids else {}
        return known

    def _batch(
        self, batch: list[Item], known: dict[str, Known], old: dict[str, Record], source: SourceSpec
    ) -> tuple[EncodedBatch, int]:
        """The batch, and how many of it were encoded: what an earlier run has kept is taken from there."""
        both = {
            **known,
            **{
                record.id: Known(-row, record.path, record.source, record.meta, record.hash, record.stamp)
                for row, record in enumerate(old.values(), start=1)
            },
        }
        ready = encode_batch(
            self.model,
            batch,
            both,
            self.readers,
            source=source.label,
            vectors=self.job.vectors,
            split_texts=self.job.split_texts,
            exif=ItemSource.of(source.name).root is not None,
        )
        encoded = len(ready.records)
        moved = {change.row: change for change in ready.amended if change.row < 0}
        fresh = {record.id: record for record in ready.records}
        refused = {name for name, _ in ready.skipped}
        records = []
        for id in dict.fromkeys(item.id for item in batch):
            if id in fresh:
                records.append(fresh[id])
            elif id in old and id not in refused:
                record, change = old[id], moved.get(both[id].row)
                if change is None or change.only_stamp:
                    ready.unchanged -= 1
                if change is not None:
                    record = replace(
                        record, path=change.path, source=change.source, meta=change.meta, stamp=change.stamp
                    )
                records.append(record)
        ready.records = records
        ready.amended = [change for change in ready.amended if change.row >= 0]
        ready.updated = sum(record.id in known for record in records)
        return ready, encoded


def _load(job: EncodingJob) -> RetrievalModel:
    """The model of the index; one that was fitted to it comes with the job."""
    if not job.fitted:
        return load_model(job.model, job.device)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in job.fitted:
            (Path(folder) / name).write_bytes(content)
        return load_model(folder, job.device)
