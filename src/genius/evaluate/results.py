"""The results of an evaluation with their provenance (model, pools, recipe, versions), and comparisons."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

import numpy as np

from genius.data.base import Row
from genius.errors import BadInput
from genius.evaluate.environment import library_version, source_hash
from genius.evaluate.intervals import LEVEL, Interval, bootstrap
from genius.evaluate.protocol import RowMetrics, groups_of, mean_over_rows

# what is compared: ours with what people use today at about the same bytes, and with exact search
OURS_BY_CODES = ("genius", "decoder+codes", "lookup+codes", "fitted+codes")
OURS_BY_VECTORS = ("decoder+vectors", "lookup+vectors", "fitted+vectors")
SMALL = ("ivf-pq", "ivf-pq-train", "pq", "pq-train", "faiss-rq", "faiss-rq-train")
LARGE = ("faiss-flat", "flat-float16", "flat-int8", "hnsw", "hnsw-float16", "hnsw-int8", "ivf-pq-best")
PAIRS = (
    *((one, other) for one in ("lookup+codes", "fitted+codes") for other in SMALL),
    *((one, "lookup+codes") for one in ("genius", "decoder+codes", "fitted+codes")),
    *((one, other) for one in OURS_BY_VECTORS for other in ("exact", "hnsw-int8")),
)
HORIZON = 2  # times the largest measured pool: no crossover is extrapolated beyond
PACKAGES = ("genius-search", "torch", "transformers", "numpy", "safetensors", "faiss-cpu")


@dataclass(frozen=True, slots=True)
class Entry:
    """One system on one row."""

    metrics: RowMetrics
    fingerprint: str  # of the model or encoder that was searched with
    pool_hash: str
    queries_hash: str
    bytes_per_item: float
    seconds: float  # searching all queries of the row, without encoding them
    seeds: Sequence[float] = ()  # the headline metric under each seed, where there were several

    def as_json(self) -> dict[str, Any]:
        """Metrics and their provenance."""
        own = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        if not self.seeds:
            own.pop("seeds")
        return self.metrics.as_json() | own


@dataclass(frozen=True, slots=True)
class Results:
    """All systems on all rows of one setting and split."""

    setting: str
    split: str
    data: str
    model: str
    fingerprint: str
    entries: Sequence[Entry]
    recipe: Mapping[str, Any] | None = None
    systems_used: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # name -> its settings
    instructions: str = "chosen"  # how they were picked
    limit: int = 0  # queries per row, 0: all
    not_run: Sequence[Mapping[str, Any]] = ()  # system, dataset, task, reason
    reading: Sequence[str] = ()  # what the dataset reader left out
    chosen_on_val: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict
    )  # system -> score -> metric
    versions: Mapping[str, str] = field(default_factory=lambda: versions())

    def systems(self) -> list[str]:
        """The systems that were run, in order."""
        return list(dict.fromkeys(entry.metrics.system for entry in self.entries))

    def of(self, system: str) -> list[Entry]:
        """The entries of one system; refused if it was not run."""
        entries = [entry for entry in self.entries if entry.metrics.system == system]
        if not entries:
            raise BadInput(f"{system} was not run: the results have {', '.join(self.systems())}")
        return entries

    def metrics_of(self, system: str) -> dict[Row, RowMetrics]:
        """The metrics of one system, by row."""
        return {entry.metrics.row: entry.metrics for entry in self.of(system)}

    def bytes_per_item(self, system: str) -> float:
        """What the index of one system takes per item in its largest pool."""
        return max(entry.bytes_per_item for entry in self.of(system))

    def as_json(self) -> dict[str, Any]:
        """One object of plain values: `rows` and, per system, their `mean`; metrics are fractions."""
        return {
            "setting": self.setting,
            "split": self.split,
            "data": self.data,
            "model": {"name": self.model, "fingerprint": self.fingerprint, "recipe": self.recipe},
            "systems": {name: dict(settings) for name, settings in self.systems_used.items()},
            "instructions": self.instructions,
            "limit": self.limit,
            "intervals": "over photos, corrected for the rows of a comparison",
            "rows": [entry.as_json() for entry in self.entries],
            "mean": {system: self._mean(system) for system in self.systems()},
            "comparisons": [
                compare(self, one, other).as_json()
                for one, other in PAIRS
                if {one, other} <= set(self.systems())
            ],
            "not_run": [dict(each) for each in self.not_run],
            "reading": list(self.reading),
            "chosen_on_val": {name: dict(found) for name, found in self.chosen_on_val.items()},
            "versions": dict(self.versions),
        }

    def _mean(self, system: str) -> dict[str, Any]:
        entries = self.of(system)
        mean = mean_over_rows([entry.metrics for entry in entries]) | {
            "complete": len(entries) == len({entry.metrics.row for entry in self.entries}),
            "bytes_per_item": self.bytes_per_item(system),
            "seconds": sum(entry.seconds for entry in entries),
        }
        if all(entry.seeds for entry in entries):
            by_seed = np.mean([entry.seeds for entry in entries], axis=0)
            mean |= {"seeds": by_seed.tolist(), "seed_deviation": float(np.std(by_seed, ddof=1))}
        return mean


@dataclass(frozen=True, slots=True)
class Difference:
    """How much better the first system is than the second, as a fraction; paired over queries."""

    row: Row | None  # None: the mean over the rows
    value: float
    interval: Interval  # those of the rows of a comparison are wider, to be right for all rows at once

    @property
    def verdict(self) -> str:
        """better or worse where the interval leaves out 0, else even."""
        low, high = self.interval
        return "better" if low > 0 else "worse" if high < 0 else "even"

    def as_json(self) -> dict[str, Any]:
        """Plain values; the difference is a fraction."""
        row = {} if self.row is None else {"dataset": self.row.dataset, "task": self.row.task}
        return row | {"difference": self.value, "interval": list(self.interval), "verdict": self.verdict}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One system against another on the rows that both were run on."""

    one: str
    other: str
    bytes_per_item: tuple[float, float]
    rows: Sequence[Difference]
    mean: Difference

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "one": self.one,
            "other": self.other,
            "bytes_per_item": list(self.bytes_per_item),
            "mean": self.mean.as_json(),
            "rows": [row.as_json() for row in self.rows],
        }


def compare(results: Results, one: str, other: str) -> Comparison:
    """`one` against `other` in the same results."""
    sizes = results.bytes_per_item(one), results.bytes_per_item(other)
    return compare_rows(results.metrics_of(one), results.metrics_of(other), (one, other), sizes)


def compare_rows(
    ours: Mapping[Row, RowMetrics],
    theirs: Mapping[Row, RowMetrics],
    names: tuple[str, str],
    sizes: tuple[float, float] = (0.0, 0.0),
) -> Comparison:
    """Metrics of one system against those of another, which may come from another evaluation."""
    shared = [row for row in ours if row in theirs]
    groups = groups_of([ours[row] for row in shared])
    if not shared:
        raise BadInput(f"{names[0]} and {names[1]} were run on no row together")
    gaps = []
    for row in shared:
        mine, other = ours[row].headline_values, theirs[row].headline_values
        if len(mine) != len(other):
            raise BadInput(f"{row}: {len(mine)} queries against {len(other)}; ask both the same queries")
        gaps.append(mine - other)
    level = 1 - (1 - LEVEL) / len(shared)  # Bonferroni: as many verdicts as rows
    rows = []
    for number, (row, gap) in enumerate(zip(shared, gaps, strict=True)):
        own = None if groups is None else [groups[number]]
        rows.append(Difference(row, float(gap.mean()), bootstrap([gap], own, level=level)))
    value = sum(difference.value for difference in rows) / len(rows)
    return Comparison(*names, sizes, rows, Difference(None, value, bootstrap(gaps, groups)))


def versions() -> dict[str, str]:
    """Versions of what the metrics depend on, the hash of our own source among them."""
    found = {"python": platform.python_version(), "source": source_hash()}
    return found | {package: library_version(package) for package in PACKAGES}


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
        return f"{self.system} overtakes {self.than} at about {_rounded(self.items)} items"


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
    return found if found <= HORIZON * sizes[-1] else None


def _rounded(items: float, digits: int = 2) -> str:
    """`items` to some digits, as many as an extrapolation tells."""
    unit = 10.0 ** (int(np.log10(max(items, 1))) + 1 - digits)
    return f"{round(items / unit) * unit:,.0f}"
