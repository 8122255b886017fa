"""Hit rate, latency and bytes of systems at growing pool sizes, and from which size one overtakes another.

All systems see the same queries and pools on the same machine. Encoding a query costs every system the same,
so it is measured once and reported apart.
"""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Dataset
from genius.encode.base import encode_parts
from genius.evaluate.cache import Inputs, Progress
from genius.evaluate.embeddings import CHUNK, EncodedPool, EncodedQueries, Floats, open_or_none
from genius.evaluate.evaluator import Evaluator
from genius.evaluate.metrics import Qrels, grade
from genius.evaluate.options import EvalOptions, FrontierOptions, Workspace
from genius.evaluate.results import crossovers, versions
from genius.evaluate.run import Log, best_score, scores_on_val
from genius.evaluate.scaled_pools import SPREAD, PoolCalibration, ScaledPools, calibrate
from genius.evaluate.search_times import Clock, search_times, search_times_apart
from genius.evaluate.systems import (
    FAISS,
    GENERATIVE,
    OURS,
    SYSTEMS,
    CodeSearch,
    System,
    SystemContext,
    system_names,
)
from genius.types import Modality

if TYPE_CHECKING:
    from genius.model import Model

FLAT = "faiss-flat"  # exact search of a tuned library: the harder competitor, where it was measured
SLOW_TO_BUILD = frozenset(FAISS) - {FLAT, "flat-float16", "flat-int8"}  # minutes at 100,000 items
ENCODINGS = 3  # repetitions when the encoding of a query is timed
K = 10


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One system at one pool size."""

    system: str
    items: int
    real: int  # how many of them are real items
    hit_at_5: float
    build_seconds: float
    bytes_per_item: float
    milliseconds: float  # median, one query at a time
    slow_milliseconds: float  # 95th percentile of the same
    queries_per_second: float  # in batches


def measure_point(
    system: System,
    pool: EncodedPool,
    real: int,
    queries: EncodedQueries,
    qrels: Qrels,
    clock: Clock = time.perf_counter,
) -> FrontierPoint:
    """Index `pool` with `system`, search `queries` one by one and in batches: FAISS apart from torch."""
    gc.collect()
    start = clock()
    system.index(pool)
    build = clock() - start
    times = (search_times_apart if system.apart else search_times)(system, queries, K, clock)
    return FrontierPoint(
        system=system.name,
        items=len(pool),
        real=real,
        hit_at_5=float(grade(times.rows, qrels).hit(5).mean()),
        build_seconds=build,
        bytes_per_item=system.bytes_per_item(),
        milliseconds=float(np.median(times.singles)),
        slow_milliseconds=float(np.quantile(times.singles, 0.95)),
        queries_per_second=len(queries) / times.seconds,
    )


def measure_points(
    wanted: Sequence[tuple[int, Sequence[Callable[[], System]]]],
    pools: ScaledPools,
    queries: EncodedQueries,
    qrels: Qrels,
    log: Log,
    clock: Clock = time.perf_counter,
) -> list[FrontierPoint]:
    """Points of the systems wanted at each size; each is made anew, so that no pool is held twice."""
    points = []
    for size, makers in wanted:
        pool, real = pools.at(size)
        for make in makers:
            point = measure_point(make(), pool, real, queries, qrels, clock)
            log(
                f"{size:,} items, {point.system}: hit@5 {100 * point.hit_at_5:.1f}, "
                f"{point.milliseconds:.2f} ms, {point.bytes_per_item:,.1f} bytes per item"
            )
            points.append(point)
    return points


def measure_frontier(
    dataset: Dataset, data: str, model: Model, name: str, options: FrontierOptions,
    workspace: Workspace, log: Log, progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Points of all systems at all sizes, crossovers with exact search, beam curves; plain values."""
    chosen = EvalOptions(split=options.split, limit=options.queries)
    evaluator = Evaluator(dataset, model, chosen, workspace.cache, progress)
    log(evaluator.describe())
    pool, queries, qrels = evaluator.universal()
    fill = None
    if max(options.sizes, default=0) > len(pool):  # made items are needed
        log("calibrating pools beyond the real items")
        fill = calibration_on_val(
            dataset, model, replace(chosen, split="val"), workspace, (pool, queries, qrels)
        )
    spread = SPREAD if fill is None else fill.spread
    positives = qrels.item[qrels.item < len(pool)]
    pools = ScaledPools(pool, z_of(model, pool), positives, coder(model), spread=spread)
    sizes = sorted({max(size, pools.smallest) for size in options.sizes}) or [len(pool)]
    systems = f"exact,{options.systems}"
    names = [n for n in system_names(systems) if n not in GENERATIVE]  # those would be trained for each pool
    by_score = scores_on_val(dataset, model, names, chosen, workspace, log)
    context = SystemContext(
        model, dataset, evaluator.embedder, workspace.cache / "decoders", workspace.device,
        split=options.split, scores={name: best_score(found) for name, found in by_score.items()},
    )  # fmt: skip
    makers = {name: partial(SYSTEMS[name], context) for name in names}
    wanted = [
        (size, [m for n, m in makers.items() if size <= options.build_limit or n not in SLOW_TO_BUILD])
        for size in sizes
    ]
    clock = clock_for(workspace.device)
    points = [asdict(p) for p in measure_points(wanted, pools, queries, pools.qrels(qrels), log, clock)]
    ours_by_flat = [c for c in crossovers(points, FLAT) if c.system in OURS and c.system != "exact"]
    return {
        "data": data,
        "model": {"name": name, "fingerprint": model.fingerprint},
        "split": options.split,
        "plan": {"systems": systems, "queries": options.queries},
        "queries": len(queries),
        "real_items": len(pool),
        "chosen_on_val": by_score,
        "calibration": None if fill is None else calibration_json(fill),
        "encoding_milliseconds": _encoding_time(model, evaluator.query_inputs, clock),
        "beams": _beam_curves(options.beams, context, pool, queries, qrels, log, clock),
        "machine": machine(workspace.device),
        "versions": versions(),
        "points": points,
        "crossovers": [asdict(c) | {"text": c.line()} for c in [*crossovers(points), *ours_by_flat]],
    }


def calibration_on_val(
    dataset: Dataset,
    model: Model,
    on_val: EvalOptions,
    workspace: Workspace,
    own: tuple[EncodedPool, EncodedQueries, Qrels],
) -> PoolCalibration | None:
    """How made items have to lie, found on val; on the measured pool where there is no val split."""
    if "val" in dataset.splits():
        own = Evaluator(dataset, model, on_val, workspace.cache).universal()
    return calibrate(*own)


def calibration_json(fill: PoolCalibration) -> dict[str, Any]:
    """A calibration in plain values."""
    filled = [{"spread": spread, "hit_at_5": hits} for spread, hits in fill.filled.items()]
    return asdict(fill) | {"filled": filled}


def z_of(model: Model, pool: EncodedPool) -> Floats:
    """z of all items of a pool, (n, dim)."""
    rows = np.arange(len(pool))
    return np.concatenate([model.z(pool.parts(rows[s : s + CHUNK])) for s in range(0, len(pool), CHUNK)])


def coder(model: Model) -> Callable[[Floats, NDArray[np.uint8]], NDArray[np.uint16]]:
    """The function that gives z and modalities of items their codes."""
    level0 = modality_codes(model)
    return lambda z, modality: np.asarray(model.quantizer.codes_of(z, level0[modality]), dtype=np.uint16)


def modality_codes(model: Model) -> NDArray[np.int64]:
    """The code of level 0 of each modality, in the order of Modality."""
    return np.array([model.modality_codes.get(modality, n) for n, modality in enumerate(Modality)])


def _beam_curves(
    beams: Sequence[int],
    context: SystemContext,
    pool: EncodedPool,
    queries: EncodedQueries,
    qrels: Qrels,
    log: Log,
    clock: Clock,
) -> list[dict[str, Any]]:
    """hit@5 and time of decoder and lookup at each beam, no re-ranking by vectors."""
    curves = []
    searches = [("genius", "generate", "none"), ("decoder+codes", "generate", "codes")]
    if context.model.decoder is None:
        searches = []
    for label, method, rerank in (*searches, ("lookup+codes", "lookup", "codes")):
        decoder = context.model.decoder if method == "generate" else None
        for beam in beams:
            options = context.options(method=method, rerank=rerank, beam=beam)
            system = CodeSearch(label, context.model.codebooks(), options, decoder, context.device)
            point = measure_point(system, pool, len(pool), queries, qrels, clock)
            log(f"beam {beam}, {label}: hit@5 {100 * point.hit_at_5:.1f}, {point.milliseconds:.2f} ms")
            measured = {"hit_at_5": point.hit_at_5, "milliseconds": point.milliseconds}
            curves.append({"system": label, "beam": beam} | measured)
    return curves


def _encoding_time(model: Model, rows: Sequence[Inputs], clock: Clock) -> float:
    """Median milliseconds of turning one query into z, over a query of each row."""
    times = []
    for queries in rows:
        file, text = queries.source(0)
        image = open_or_none(file)
        for _ in range(ENCODINGS):
            start = clock()
            model.z(encode_parts(model.encoder, [image], [text]))
            times.append(1000 * (clock() - start))
    return float(np.median(times))


def clock_for(device: str) -> Clock:
    """What times are measured by: on one thread of a CPU the processor's time, else the clock."""
    import torch

    return time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


def machine(device: str) -> dict[str, Any]:
    """What the times were measured on."""
    import torch

    return {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "kind": device,
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "clock": clock_for(device).__name__,
    }
