"""Hit rate, latency and bytes of systems at growing pool sizes, and from which size one overtakes another.

All systems see the same queries and pools on the same machine. Encoding a query costs every system the same,
so it is measured once and reported apart.
"""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
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
from genius.evaluate.results import versions
from genius.evaluate.run import Log
from genius.evaluate.scaled_pools import ScaledPools
from genius.evaluate.systems import GENERATIVE, OURS, SYSTEMS, CodeSearch, System, SystemContext, system_names
from genius.types import Modality

if TYPE_CHECKING:
    from genius.model import Model

FLAT = "faiss-flat"  # exact search of a tuned library: the harder competitor, where it was measured
SLOW_TO_BUILD = frozenset({"hnsw", "ivf-pq", "ivf-pq-best", "pq", "faiss-rq"})  # minutes at 100,000 items
BATCH = 64
SINGLES = 50  # queries searched one by one
WARMUP = 3  # searches before the clock starts
ENCODINGS = 3  # repetitions when the encoding of a query is timed
K = 10
HORIZON = 100  # times the largest measured pool: nothing is extrapolated beyond


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
    system: System, pool: EncodedPool, real: int, queries: EncodedQueries, qrels: Qrels
) -> FrontierPoint:
    """Index `pool` with `system`, search `queries` one by one and in batches."""
    gc.collect()
    start = time.perf_counter()
    system.index(pool)
    build = time.perf_counter() - start
    batches = [
        queries.take(np.arange(s, min(s + BATCH, len(queries)))) for s in range(0, len(queries), BATCH)
    ]
    system.search(batches[0], K)
    start = time.perf_counter()
    ranked = [system.search(batch, K).rows for batch in batches]
    batched = time.perf_counter() - start
    singles = _single_query_times(system, queries)
    return FrontierPoint(
        system=system.name,
        items=len(pool),
        real=real,
        hit_at_5=float(grade(np.concatenate(ranked), qrels).hit(5).mean()),
        build_seconds=build,
        bytes_per_item=system.bytes_per_item(),
        milliseconds=float(np.median(singles)),
        slow_milliseconds=float(np.quantile(singles, 0.95)),
        queries_per_second=len(queries) / batched,
    )


def _single_query_times(system: System, queries: EncodedQueries) -> list[float]:
    """Milliseconds of single queries."""
    times = []
    spread = np.linspace(0, len(queries) - 1, min(SINGLES, len(queries))).astype(np.int64)
    for number, row in enumerate([*spread[:WARMUP], *spread]):
        one = queries.take(np.array([row]))
        start = time.perf_counter()
        system.search(one, K)
        if number >= WARMUP:
            times.append(1000 * (time.perf_counter() - start))
    return times


def measure_points(
    wanted: Sequence[tuple[int, Sequence[Callable[[], System]]]],
    pools: ScaledPools,
    queries: EncodedQueries,
    qrels: Qrels,
    log: Log,
) -> list[FrontierPoint]:
    """Points of the systems wanted at each size; each is made anew, so that no pool is held twice."""
    points = []
    for size, makers in wanted:
        pool, real = pools.at(size)
        for make in makers:
            point = measure_point(make(), pool, real, queries, qrels)
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
    pools = ScaledPools(pool, _z(model, pool), qrels.item[qrels.item < len(pool)], _codes_of(model))
    sizes = sorted({max(size, pools.smallest) for size in options.sizes}) or [len(pool)]
    context = SystemContext(
        model, dataset, evaluator.embedder, workspace.cache / "decoders", workspace.device,
        split=options.split,
    )  # fmt: skip
    systems = f"exact,{options.systems}"
    names = [n for n in system_names(systems) if n not in GENERATIVE]  # those would be trained for each pool
    same = _same_searches(names, context)
    makers = {name: partial(SYSTEMS[name], context) for name in names if name not in same}
    wanted = [
        (size, [m for n, m in makers.items() if size <= options.build_limit or n not in SLOW_TO_BUILD])
        for size in sizes
    ]
    points = [asdict(p) for p in measure_points(wanted, pools, queries, pools.qrels(qrels), log)]
    ours_by_flat = [c for c in crossovers(points, FLAT) if c.system in OURS and c.system != "exact"]
    return {
        "data": data,
        "model": {"name": name, "fingerprint": model.fingerprint},
        "split": options.split,
        "plan": {"systems": systems, "queries": options.queries},
        "queries": len(queries),
        "real_items": len(pool),
        "same": same,
        "encoding_milliseconds": _encoding_time(model, evaluator.query_inputs),
        "beams": _beam_curves(options.beams, context, pool, queries, qrels, log),
        "machine": machine(workspace.device),
        "versions": versions(),
        "points": points,
        "crossovers": [asdict(c) | {"text": c.line()} for c in [*crossovers(points), *ours_by_flat]],
    }


def _same_searches(names: Sequence[str], context: SystemContext) -> dict[str, str]:
    """Systems that equal another one, such as the default search: name -> the other's name."""
    first: dict[str, str] = {}
    same = {}
    for name in sorted(names, key=lambda name: name.startswith("genius+")):
        system = SYSTEMS[name](context)
        if isinstance(system, CodeSearch):
            settings = str(sorted(system.settings.items()))
            if settings in first:
                same[name] = first[settings]
            first.setdefault(settings, name)
    return same


def _z(model: Model, pool: EncodedPool) -> Floats:
    rows = np.arange(len(pool))
    return np.concatenate([model.z(pool.parts(rows[s : s + CHUNK])) for s in range(0, len(pool), CHUNK)])


def _codes_of(model: Model) -> Callable[[Floats, NDArray[np.uint8]], NDArray[np.uint16]]:
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
            point = measure_point(system, pool, len(pool), queries, qrels)
            log(f"beam {beam}, {label}: hit@5 {100 * point.hit_at_5:.1f}, {point.milliseconds:.2f} ms")
            measured = {"hit_at_5": point.hit_at_5, "milliseconds": point.milliseconds}
            curves.append({"system": label, "beam": beam} | measured)
    return curves


def _encoding_time(model: Model, rows: Sequence[Inputs]) -> float:
    """Median milliseconds of turning one query into z, over a query of each row."""
    times = []
    for queries in rows:
        file, text = queries.source(0)
        image = open_or_none(file)
        for _ in range(ENCODINGS):
            start = time.perf_counter()
            model.z(encode_parts(model.encoder, [image], [text]))
            times.append(1000 * (time.perf_counter() - start))
    return float(np.median(times))


def machine(device: str) -> dict[str, Any]:
    """What the times were measured on."""
    import torch

    return {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "kind": device,
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where a system begins to answer faster than another."""

    system: str
    than: str
    items: float | None  # None: at no size that was measured
    from_start: bool = False  # already at the smallest size
    expected: float | None = None  # extrapolated from the last two sizes; None: nowhere

    def line(self) -> str:
        """The crossover in a sentence."""
        if self.items is None:
            text = f"{self.system} was slower than {self.than} at every pool size"
            if self.expected is not None:
                text += f"; extrapolated, it is faster from about {_rounded(self.expected)} items"
            return text
        if self.from_start:
            return f"{self.system} is faster than {self.than} from {self.items:,.0f} items, the smallest pool"
        return f"{self.system} overtakes {self.than} at about {_rounded(self.items, 2)} items"


def crossovers(points: Sequence[Mapping[str, Any]], than: str = "exact") -> list[Crossover]:
    """For each other system, the pool size from which it answers a single query faster than `than`.

    `points` have system, items and milliseconds. Between two sizes times are interpolated on log-log axes.
    """
    times: dict[str, dict[int, float]] = {}
    for point in points:
        times.setdefault(point["system"], {})[point["items"]] = point["milliseconds"]
    base = times.pop(than, None)
    if base is None:  # it was not measured
        return []
    found = []
    for system, own in times.items():
        sizes = sorted(own.keys() & base.keys())
        gaps = [float(np.log(own[size] / base[size])) for size in sizes]  # below 0: faster
        found.append(_crossover(system, than, sizes, gaps))
    return found


def _crossover(system: str, than: str, sizes: Sequence[int], gaps: Sequence[float]) -> Crossover:
    if not sizes or gaps[-1] >= 0:  # it has to be faster at the end, and stay so
        return Crossover(system, than, None, expected=_extrapolated(sizes, gaps))
    last_slower = max((n for n, gap in enumerate(gaps) if gap >= 0), default=None)
    if last_slower is None:
        return Crossover(system, than, float(sizes[0]), from_start=True)
    low, high = list(pairwise(sizes))[last_slower]
    a, b = gaps[last_slower], gaps[last_slower + 1]
    return Crossover(system, than, float(low * (high / low) ** (a / (a - b))))


def _extrapolated(sizes: Sequence[int], gaps: Sequence[float]) -> float | None:
    """Where a gap that narrows between the last two sizes will be closed; None if it does not narrow."""
    if len(sizes) < 2 or gaps[-2] - gaps[-1] < 0.05:
        return None
    rate = (gaps[-2] - gaps[-1]) / np.log(sizes[-1] / sizes[-2])
    found = float(sizes[-1] * np.exp(gaps[-1] / rate))
    return found if found < HORIZON * sizes[-1] else None


def _rounded(items: float, digits: int = 1) -> str:
    """`items` to one digit, which is all that an extrapolation tells, or to more."""
    unit = 10.0 ** (int(np.log10(max(items, 1))) + 1 - digits)
    return f"{round(items / unit) * unit:,.0f}"
