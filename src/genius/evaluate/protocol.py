"""The protocol of M-BEIR and the paper: which k is reported for a dataset, the metrics of a row, data faults.

Local: a row is searched in its own pool. Universal: in the union of all pools. A query counts unless it has
no relevant item at all; whatever kept it from being answered (an unreadable image, positives that the pool
lacks) counts as a miss and is reported beside the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Row
from genius.errors import BadData, BadInput
from genius.evaluate.intervals import bootstrap
from genius.evaluate.metrics import Floats, Graded, Ints, Qrels, grade

Setting = Literal["local", "universal"]
SETTINGS: tuple[str, ...] = get_args(Setting)

DEPTH = 50  # length of the ranked lists that are evaluated; MRR counts to here too
CUTOFFS = (1, 5, 10, 20, 50)
METRICS = (*(f"hit@{k}" for k in CUTOFFS), *(f"recall@{k}" for k in CUTOFFS), "mrr", "ndcg@10")
_LARGER_K = frozenset({"fashion200k", "fashioniq"})  # M-BEIR reports these at larger k


def reported_cutoffs(dataset: str) -> tuple[int, ...]:
    """The k's that M-BEIR reports for a dataset; all of CUTOFFS are measured."""
    return (10, 20, 50) if dataset in _LARGER_K else (1, 5, 10)


def headline(dataset: str) -> str:
    """The main metric of a row: hit@5, and hit@10 for Fashion200K and FashionIQ."""
    return "hit@10" if dataset in _LARGER_K else "hit@5"


@dataclass(frozen=True, slots=True)
class Faults:
    """What was wrong with a row's data; the metrics already account for every count."""

    unjudged: int = 0
    unreadable_queries: int = 0
    unreadable_items: int = 0
    absent_positives: int = 0
    unanswerable: int = 0
    unanswered: int = 0
    foreign_queries: int = 0
    foreign_items: int = 0

    def __add__(self, other: Faults) -> Faults:
        return Faults(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def lines(self) -> list[str]:
        """One line for each count above 0."""
        return [f"{count:,} {text}" for name, text in _FAULT_TEXTS.items() if (count := getattr(self, name))]


_FAULT_TEXTS: Mapping[str, str] = {
    "unjudged": "queries without a relevant item, left out",
    "unreadable_queries": "queries that cannot be encoded (no content, unreadable image), counted as misses",
    "unreadable_items": "items with an unreadable image, not searchable",
    "absent_positives": "relevant items that are not in the pool",
    "unanswerable": "queries none of whose relevant items is in the pool, counted as misses",
    "unanswered": "queries without a list in the run file, counted as misses",
    "foreign_queries": "queries of the run file that are not in the dataset, left out",
    "foreign_items": "positions of the run file with an item that is not in the pool, counted as wrong",
}


@dataclass(frozen=True, slots=True)
class RowQrels:
    """The qrels of a row on the rows of a pool, and what of them the pool lacks."""

    qrels: Qrels
    faults: Faults


def match_qrels(
    row: Row, queries: Sequence[str], qrels: Mapping[str, Mapping[str, int]], row_of: Mapping[str, int]
) -> RowQrels:
    """`qrels` of `queries` in numbers; `row_of` gives an item's row in the pool.

    Items that the pool lacks get numbers past its end, one for each, so that they still count against recall.
    Refused: no query with a relevant item, and a pool that has none of the relevant items.
    """
    if len(set(queries)) < len(queries):
        twice = next(query for query in queries if queries.count(query) > 1)
        raise BadData(f"{row}: query id {twice} occurs twice; ids have to be unique within a row")
    absent: dict[str, int] = {}
    gains: list[dict[int, float]] = []
    unanswerable = unjudged = 0
    for query in queries:
        relevant = {item: grade for item, grade in qrels.get(query, {}).items() if grade > 0}
        inside = {row_of[item]: float(grade) for item, grade in relevant.items() if item in row_of}
        for item, gain in relevant.items():
            if item not in row_of:
                inside[len(row_of) + absent.setdefault(item, len(absent))] = float(gain)
        unjudged += not relevant
        unanswerable += bool(relevant) and min(inside) >= len(row_of)
        gains.append(inside)
    if unjudged == len(queries):
        raise BadData(f"{row}: none of the {len(queries)} queries has a relevant item; check the qrels file")
    if unanswerable == len(queries) - unjudged:
        raise BadData(
            f"{row}: the pool of {len(row_of)} items holds none of the {len(absent)} relevant ones; "
            "the pool and the qrels are of different datasets or splits"
        )
    faults = Faults(unjudged=unjudged, absent_positives=len(absent), unanswerable=unanswerable)
    return RowQrels(Qrels.of(gains), faults)


@dataclass(frozen=True, slots=True)
class RowMetrics:
    """The metrics of one system on one row, with the value of every query."""

    row: Row
    setting: str
    system: str
    pool_items: int
    faults: Faults
    values: Mapping[str, Floats]  # metric -> (judged queries,)
    groups: Ints | None = None  # (judged queries,), the group of each (intervals.py); None: each is alone

    @property
    def queries(self) -> int:
        """Number of queries that count."""
        return len(self.values["mrr"])

    @property
    def headline_values(self) -> Floats:
        """hit@5 or hit@10 of each query, whichever the row is known by."""
        return self.values[headline(self.row.dataset)]

    @property
    def headline(self) -> float:
        """Mean of the main metric over the queries, from 0 to 1."""
        return float(self.headline_values.mean())

    def mean(self, metric: str) -> float:
        """Mean of `metric` over the queries, from 0 to 1."""
        return float(self.values[metric].mean())

    def as_json(self) -> dict[str, Any]:
        """Plain numbers under plain names; metrics are fractions."""
        return {
            "dataset": self.row.dataset,
            "task": self.row.task,
            "setting": self.setting,
            "system": self.system,
            "queries": self.queries,
            "pool_items": self.pool_items,
            **{metric: self.mean(metric) for metric in self.values},
            "headline": headline(self.row.dataset),
            "interval": list(bootstrap([self.headline_values], groups_of([self]))),
            "faults": {name: count for name, count in asdict(self.faults).items() if count},
        }


def row_metrics(
    row: Row,
    setting: str,
    system: str,
    matched: RowQrels,
    lists: Sequence[NDArray[np.integer]],
    pool_items: int,
    faults: Faults | None = None,
    groups: Ints | None = None,
) -> RowMetrics:
    """The metrics of ranked lists (queries, depth); several arrays (instructions, seeds) are averaged.

    `faults` are added to those of the qrels. `groups` are those of the queries; without them each is alone.
    """
    if setting not in SETTINGS:
        raise BadInput(f"unknown setting {setting!r}: choose local or universal")
    counts = matched.qrels.relevant() > 0
    measured = [_measure(grade(ranked[:, :DEPTH], matched.qrels)) for ranked in lists]
    values = {name: np.mean([each[name] for each in measured], axis=0)[counts] for name in METRICS}
    both = matched.faults + (faults or Faults())
    judged = None if groups is None else groups[counts]
    return RowMetrics(row, setting, system, pool_items, both, values, judged)


def _measure(graded: Graded) -> dict[str, Floats]:
    return (
        {f"hit@{k}": graded.hit(k) for k in CUTOFFS}
        | {f"recall@{k}": graded.recall(k) for k in CUTOFFS}
        | {"mrr": graded.reciprocal_rank(), "ndcg@10": graded.ndcg(10)}
    )


def groups_of(rows: Sequence[RowMetrics]) -> list[Ints] | None:
    """The groups of the queries of each row; None unless all rows have them."""
    known = [row.groups for row in rows if row.groups is not None]
    return known if len(known) == len(rows) else None


def mean_over_rows(rows: Sequence[RowMetrics]) -> dict[str, Any]:
    """Plain mean over the rows of one system: every metric, the headline metric and its interval."""
    values = [row.headline_values for row in rows]
    return {
        "rows": len(rows),
        "headline": float(np.mean([row.headline for row in rows])),
        "interval": list(bootstrap(values, groups_of(rows))),
        **{metric: float(np.mean([row.mean(metric) for row in rows])) for metric in METRICS},
    }
