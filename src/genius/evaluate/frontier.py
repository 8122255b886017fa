"""Accuracy, latency and bytes of systems at growing pool sizes, and where one overtakes another.

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
from itertools import pairwise
from typing import Any

import numpy as np

from genius.evaluate.encoding import Pool, Questions, taken
from genius.evaluate.grown import Growth
from genius.evaluate.metrics import Judgements, judge
from genius.evaluate.systems import System

BATCH = 64
SINGLES = 50  # queries asked one by one
WARM = 3  # searches before the clock starts
K = 10
FAR = 100  # times the largest pool that was measured: nothing is expected beyond


@dataclass(frozen=True, slots=True)
class Point:
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


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where a system begins to answer faster than another."""

    system: str
    than: str
    items: float | None  # None: at no size that was measured
    from_start: bool = False  # already at the smallest size
    expected: float | None = None  # where, if both go on as over the last two sizes; None: nowhere

    def line(self) -> str:
        """The crossover for people."""
        if self.items is None:
            more = ""
            if self.expected is not None:
                more = f"; if times go on as they grew last, from about {_rough(self.expected)} items"
            return f"{self.system} is at no measured size faster than {self.than}{more}"
        if self.from_start:
            return f"{self.system} is faster than {self.than} from {self.items:,.0f} items, the smallest pool"
        return f"{self.system} overtakes {self.than} at about {_rough(self.items, 2)} items"


def measure_point(
    system: System, pool: Pool, real: int, questions: Questions, judgements: Judgements
) -> Point:
    """Index `pool` with `system`, ask `questions` one by one and in batches."""
    gc.collect()
    start = time.perf_counter()
    system.index(pool)
    build = time.perf_counter() - start
    batches = [np.arange(s, min(s + BATCH, len(questions))) for s in range(0, len(questions), BATCH)]
    parts = [taken(questions, rows) for rows in batches]
    system.search(parts[0], K)
    start = time.perf_counter()
    found = [system.search(part, K).rows for part in parts]
    batched = time.perf_counter() - start
    hits = judge(np.concatenate(found), judgements).hit(5)
    singles = _one_by_one(system, questions)
    return Point(
        system=system.name,
        items=len(pool),
        real=real,
        hit_at_5=float(hits.mean()),
        build_seconds=build,
        bytes_per_item=system.bytes_per_item(),
        milliseconds=float(np.median(singles)),
        slow_milliseconds=float(np.quantile(singles, 0.95)),
        queries_per_second=len(questions) / batched,
    )


def measure_frontier(
    wanted: Sequence[tuple[int, Sequence[Callable[[], System]]]],
    growth: Growth,
    questions: Questions,
    judgements: Judgements,
    say: Callable[[str], None],
) -> list[Point]:
    """Points of the systems wanted at each size; each is made anew, so that no pool is held twice."""
    points = []
    for size, systems in wanted:
        grown = growth.at(size)
        for make in systems:
            point = measure_point(make(), grown.pool, grown.real, questions, judgements)
            say(
                f"{size:,} items, {point.system}: hit@5 {100 * point.hit_at_5:.1f}, "
                f"{point.milliseconds:.2f} ms, {point.bytes_per_item:,.1f} bytes per item"
            )
            points.append(point)
    return points


def crossovers(points: Sequence[Point], than: str = "exact") -> list[Crossover]:
    """For each other system, the pool size from which it answers a single query faster than `than`.

    Between two measured sizes the times are read as straight lines on logarithmic axes.
    """
    times: dict[str, dict[int, float]] = {}
    for point in points:
        times.setdefault(point.system, {})[point.items] = point.milliseconds
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
        return Crossover(system, than, None, expected=_expected(sizes, gaps))
    last_slower = max((n for n, gap in enumerate(gaps) if gap >= 0), default=None)
    if last_slower is None:
        return Crossover(system, than, float(sizes[0]), from_start=True)
    (low, high) = next(pair for n, pair in enumerate(pairwise(sizes)) if n == last_slower)
    a, b = gaps[last_slower], gaps[last_slower + 1]
    share = a / (a - b)
    return Crossover(system, than, float(np.exp(np.log(low) + share * np.log(high / low))))


def _expected(sizes: Sequence[int], gaps: Sequence[float]) -> float | None:
    """Where a gap that closes from the last size but one to the last will be closed; None if it does not."""
    if len(sizes) < 2 or gaps[-2] - gaps[-1] < 0.05:
        return None
    rate = (gaps[-2] - gaps[-1]) / np.log(sizes[-1] / sizes[-2])
    found = float(sizes[-1] * np.exp(gaps[-1] / rate))
    return found if found < FAR * sizes[-1] else None


def _rough(items: float, figures: int = 1) -> str:
    """`items` to one figure, which is all that a line drawn on says, or to more."""
    size = 10.0 ** (int(np.log10(max(items, 1))) + 1 - figures)
    return f"{round(items / size) * size:,.0f}"


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


def as_json(points: Sequence[Point], crossed: Sequence[Crossover], **about: Any) -> dict[str, Any]:
    """The frontier as plain values."""
    plain: Mapping[str, Any] = {
        "points": [asdict(point) for point in points],
        "crossovers": [asdict(each) | {"text": each.line()} for each in crossed],
    }
    return {**about, **plain}


def _one_by_one(system: System, questions: Questions) -> list[float]:
    """Milliseconds of single queries."""
    spent = []
    spread = np.linspace(0, len(questions) - 1, min(SINGLES, len(questions))).astype(np.int64)
    for number, row in enumerate([*spread[:WARM], *spread]):
        one = taken(questions, np.array([row]))
        start = time.perf_counter()
        system.search(one, K)
        if number >= WARM:
            spent.append(1000 * (time.perf_counter() - start))
    return spent
