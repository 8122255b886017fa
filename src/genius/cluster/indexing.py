"""The driver of a run on a cluster: workers encode parts, it commits them in order, then one generation.

Every item is committed once: a part is committed whole, in one transaction, and goes; what was not committed
is done again by the next run, except for what its worker had kept. The index is the one that a single process
would have made: the same rows in the same order, with the same codes and vectors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genius.cluster.parts import FOLDER, PartStore
from genius.cluster.session import connected, ray_module
from genius.data.report import Report
from genius.errors import BadInput, ClusterError
from genius.ingest.add import EncodedBatch
from genius.ingest.result import AddResult
from genius.ingest.seen import SeenIds
from genius.store.connection import INDEX_FILE
from genius.store.index import Index

if TYPE_CHECKING:
    from genius.cluster.encoding import EncodingJob
    from genius.cluster.reading import SourceSpec

WORKER_CPUS, READER_CPUS = 0.75, 0.25  # one for each processor, and always room for a reader
TWICE = "listed twice in this run: the first one counts, give every item an id of its own"


@dataclass(slots=True)
class WorkerStats:
    """What one worker did."""

    items: int = 0
    encoded: int = 0
    seconds: float = 0.0  # in which it worked on parts
    processor: float = 0.0  # seconds of processor time that this took

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.items / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class ClusterRun:
    """What a run on a cluster did."""

    added: AddResult = field(default_factory=AddResult)
    workers: dict[str, WorkerStats] = field(default_factory=dict)
    parts: int = 0
    encoded: int = 0  # items that a model has seen
    seen: list[set[str]] = field(default_factory=list)  # ids of each source, with `note_ids`


def index_on_cluster(
    index: Index,
    sources: Sequence[tuple[str, str, Sequence[str]]],
    *,
    address: str = "local",
    workers: int | None = None,
    gpus: float | None = None,
    parts: str | None = None,
    batches: int | None = None,
    note_ids: bool = False,
    progress: Callable[[ClusterRun], None] | None = None,
) -> ClusterRun:
    """Add or update all items of `sources` (place, label in the index, patterns to leave out), on Ray.

    `workers` is how many models are loaded (default: one for each GPU, or each processor), `gpus` what each
    takes of a GPU (default: one where the cluster has any), `parts` where they keep what is not committed yet
    (default: in the index; every worker must reach it). `progress` is called after every part.
    """
    outcome = ClusterRun(seen=[set() for _ in sources] if note_ids else [])
    kept = PartStore(parts or str(index.folder.resolve() / FOLDER), owned=parts is None)
    with index.writing(), connected(address, workers) as ray:
        seen = SeenIds()
        expected = [0] * len(sources)
        ended = [False] * len(sources)
        try:
            with closing(_rows(ray, index, sources, str(kept.place), workers, gpus, batches)) as rows:
                for row in rows:
                    facts = json.loads(row["facts"])
                    place = facts["source"]
                    _require(facts)
                    assert facts["number"] == expected[place] and not any(ended[place:]), "parts out of order"
                    expected[place] += 1
                    ended[place] = facts["end"] is not None
                    _take(index, kept, facts, outcome, seen)
                    if progress is not None:
                        progress(outcome)
        except ray.exceptions.RayError as error:
            raise ClusterError(
                f"the cluster gave up: {_reason(error)}; what was committed is safe, run the command again"
            ) from error
        assert all(ended), "a source did not end"
        kept.close()
        if outcome.parts or not index.pinned().number:
            index.compact()
    return outcome


def _rows(
    ray: Any,
    index: Index,
    sources: Sequence[tuple[str, str, Sequence[str]]],
    parts: str,
    workers: int | None,
    gpus: float | None,
    batches: int | None,
) -> Generator[dict[str, Any], None, None]:
    """The answers of the workers, in the order of the sources' parts, as they come."""
    data = ray_module("ray.data")
    from genius.cluster.encoding import EncodingWorker, KnownItems
    from genius.cluster.reading import BATCHES, ItemDatasource, SourceSpec

    here = ray.get_runtime_context().get_node_id()
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
    actors = ray.remote(num_cpus=0, scheduling_strategy=affinity)(KnownItems)
    known_items = actors.remote(str(index.folder.resolve() / INDEX_FILE))
    there = ray.cluster_resources()
    gpus = (1.0 if there.get("GPU") else 0.0) if gpus is None else gpus
    workers = workers or max(1, int(there["GPU"] / gpus if gpus else there["CPU"]))
    own = tuple(SourceSpec(name, label, tuple(exclude)) for name, label, exclude in sources)
    job = encoding_job(index, own, parts, known_items, "cuda" if gpus else "cpu")
    context = data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.target_max_block_size = 1  # every part is a task of its own, begun as soon as it is read
    try:
        yield from (
            data.read_datasource(
                ItemDatasource(own, batches or BATCHES), num_cpus=READER_CPUS, override_num_blocks=len(own)
            )
            .map(
                EncodingWorker,
                fn_constructor_args=(job,),
                compute=data.ActorPoolStrategy(size=workers),
                num_cpus=WORKER_CPUS,
                num_gpus=gpus or None,
            )
            .iter_rows()
        )
    finally:
        ray.kill(known_items)  # Ray would keep its process until the driver ends


def encoding_job(
    index: Index, sources: tuple[SourceSpec, ...], parts: str, known_items: Any, device: str = "cpu"
) -> EncodingJob:
    """What the workers of a run have to know."""
    from genius.cluster.encoding import EncodingJob

    return EncodingJob(
        model=index.model_source,
        fingerprint=index.settings["fingerprint"],
        device=device,
        vectors=index.dim is not None,
        split_texts=index.split_texts,
        parts=parts,
        sources=sources,
        known_items=known_items,
        fitted=_fitted_files(index),
    )


def _fitted_files(index: Index) -> tuple[tuple[str, bytes], ...]:
    """What workers need of a model that lies in the index."""
    if not index.settings.get("fit"):
        return ()
    names = ("model.toml", "quantizer.safetensors")
    return tuple((name, (Path(index.model_source) / name).read_bytes()) for name in names)


def _take(index: Index, kept: PartStore, facts: dict[str, Any], outcome: ClusterRun, seen: SeenIds) -> None:
    """Commit a part, let go of it and count what it did."""
    result = outcome.added
    _tell(result.report, facts)
    again = set(seen.again(facts["ids"]))
    done = [EncodedBatch([], [], *counts) for counts in facts["counts"]]
    if facts["part"]:
        stored = kept.read(facts["part"])
        if stored is None:
            raise ClusterError(
                f"{facts['part']} is not in {kept.place}: all machines must share that place (--parts); "
                "what was committed is safe: run the same command again"
            )
        for batch, (records, amended) in zip(done, stored, strict=True):
            batch.records = [record for record in records if record.id not in again]
            batch.amended = amended
        index.add_batches([(batch.records, batch.amended) for batch in done])
        kept.delete(facts["part"])
        outcome.parts += 1
    for batch in done:
        batch.count_in(result)
    for id in again:
        result.report.skip(id, TWICE)
    outcome.encoded += facts["encoded"]
    worker = outcome.workers.setdefault(facts["worker"], WorkerStats())
    worker.items += len(facts["ids"])
    worker.encoded += facts["encoded"]
    worker.seconds += facts["seconds"]
    worker.processor += facts["processor"]
    if outcome.seen:
        outcome.seen[facts["source"]].update(facts["ids"])
        outcome.seen[facts["source"]].update((facts["end"] or {}).get("ids", ()))  # skipped, but there


def _tell(report: Report, facts: dict[str, Any]) -> None:
    for name, reason in facts["skipped"]:
        report.skip(name, reason)
    if facts["end"]:
        report.ignored.update(facts["end"]["ignored"])
        report.skipped += facts["end"]["unnamed"]
        report.unknown += facts["end"]["unknown"]


def _require(facts: dict[str, Any]) -> None:
    error = facts.get("error") or (facts["end"] or {}).get("error")
    if error:
        raise BadInput(f"{error}; what was committed is safe")


def _reason(error: BaseException) -> str:
    """The line of a long story that names the error it began with."""
    lines = re.findall(r"^\s*([\w.]*(?:Error|Exception): .+)$", str(error), re.MULTILINE)
    first = [line for line in lines if not line.startswith(("ray.", "UserCode"))]
    return first[0] if first else type(error).__name__
