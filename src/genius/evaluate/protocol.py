"""The protocol of M-BEIR and the paper: which k counts for a row, what a row's figures are, what went wrong.

Local: a row is searched in its own pool. Universal: in the union of all pools. A query counts unless it has
no relevant item at all; whatever kept it from being answered (an unreadable image, positives that the pool
lacks) counts as a miss and is reported beside the figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Row
from genius.errors import BadData, BadInput
from genius.evaluate.intervals import interval, interval_of_mean
from genius.evaluate.metrics import Judged, Judgements, judge

Floats = NDArray[np.float64]
Setting = Literal["local", "universal"]
SETTINGS: tuple[str, ...] = get_args(Setting)

DEPTH = 50  # places of a list that are looked at; MRR counts to here too
CUTS = (1, 5, 10, 20, 50)
_LONGER = frozenset({"fashion200k", "fashioniq"})  # M-BEIR reports these at larger k


def reported_cuts(dataset: str) -> tuple[int, ...]:
    """The k's that M-BEIR reports for a dataset; all of CUTS are measured."""
    return (10, 20, 50) if dataset in _LONGER else (1, 5, 10)


def headline(dataset: str) -> str:
    """Name of the one figure of a row: hit@5, and hit@10 for Fashion200K and FashionIQ."""
    return "hit@10" if dataset in _LONGER else "hit@5"


@dataclass(frozen=True, slots=True)
class Faults:
    """What was wrong with a row's data; every count is of things that the figures already allow for."""

    unjudged: int = 0  # queries without any relevant item: left out of the averages
    unreadable_queries: int = 0  # queries that cannot be asked (no content, unreadable image): misses
    unreadable_items: int = 0  # items that cannot be found (image missing or damaged)
    absent_positives: int = 0  # relevant items that the pool lacks; they count against true recall
    unanswerable: int = 0  # queries all of whose relevant items the pool lacks: misses
    unanswered: int = 0  # queries that a run file has no list for: misses
    foreign_queries: int = 0  # queries of a run file that the dataset does not have: left out
    foreign_items: int = 0  # places of a run file taken by items that the pool lacks: wrong answers

    def lines(self) -> list[str]:
        """One line for each count above 0, for people."""
        return [f"{count:,} {text}" for name, text in _FAULT_TEXTS.items() if (count := getattr(self, name))]


_FAULT_TEXTS: Mapping[str, str] = {
    "unjudged": "queries without a relevant item, left out",
    "unreadable_queries": "queries that cannot be asked (no content, unreadable image), counted as misses",
    "unreadable_items": "items with an unreadable image, not searchable",
    "absent_positives": "relevant items that are not in the pool",
    "unanswerable": "queries none of whose relevant items is in the pool, counted as misses",
    "unanswered": "queries without a list in the run file, counted as misses",
    "foreign_queries": "queries of the run file that are not in the dataset, left out",
    "foreign_items": "places of the run file with an item that is not in the pool, counted as wrong",
}


@dataclass(frozen=True, slots=True)
class Labels:
    """The judgements of a row on the rows of a pool, and what of them the pool lacks."""

    judgements: Judgements
    absent_positives: int
    unanswerable: int
    unjudged: int


def label(
    row: Row, queries: Sequence[str], qrels: Mapping[str, Mapping[str, int]], row_of: Mapping[str, int]
) -> Labels:
    """`qrels` of `queries` as judgements; `row_of` gives an item's row in the pool.

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
        for item, grade in relevant.items():
            if item not in row_of:
                inside[len(row_of) + absent.setdefault(item, len(absent))] = float(grade)
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
    return Labels(Judgements.of(gains), len(absent), unanswerable, unjudged)


@dataclass(frozen=True, slots=True)
class RowFigures:
    """What one system reached on one row, with the per-query values behind every figure."""

    row: Row
    setting: str
    system: str
    pool_items: int
    faults: Faults
    values: Mapping[str, Floats]  # metric -> (judged queries,)

    @property
    def queries(self) -> int:
        """Number of queries that count."""
        return len(self.values["mrr"])

    def figure(self, metric: str) -> float:
        """Mean of `metric` over the queries, from 0 to 1."""
        return float(self.values[metric].mean())

    @property
    def headline(self) -> float:
        """hit@5 or hit@10, whichever the row is known by."""
        return self.figure(headline(self.row.dataset))

    def as_json(self) -> dict[str, Any]:
        """Plain numbers under plain names; figures are fractions."""
        name = headline(self.row.dataset)
        return {
            "dataset": self.row.dataset,
            "task": self.row.task,
            "setting": self.setting,
            "system": self.system,
            "queries": self.queries,
            "pool_items": self.pool_items,
            **{metric: self.figure(metric) for metric in self.values},
            "headline": name,
            "interval": list(interval(self.values[name])),
            "faults": {name: count for name, count in asdict(self.faults).items() if count},
        }


def figures(
    row: Row,
    setting: str,
    system: str,
    labels: Labels,
    lists: Sequence[NDArray[np.integer]],
    pool_items: int,
    faults: Faults | None = None,
) -> RowFigures:
    """The figures of ranked lists (queries, depth); several arrays (ways to ask) are averaged."""
    if setting not in SETTINGS:
        raise BadInput(f"unknown setting {setting!r}: choose local or universal")
    counts = labels.judgements.relevant() > 0
    measured = [_measure(judge(ranked[:, :DEPTH], labels.judgements)) for ranked in lists]
    values = {name: np.mean([each[name] for each in measured], axis=0)[counts] for name in METRICS}
    found = replace(
        faults or Faults(),
        unjudged=labels.unjudged,
        absent_positives=labels.absent_positives,
        unanswerable=labels.unanswerable,
    )
    return RowFigures(row, setting, system, pool_items, found, values)


METRICS = (*(f"hit@{k}" for k in CUTS), *(f"recall@{k}" for k in CUTS), "mrr", "ndcg@10")


def _measure(judged: Judged) -> dict[str, Floats]:
    return (
        {f"hit@{k}": judged.hit(k) for k in CUTS}
        | {f"recall@{k}": judged.recall(k) for k in CUTS}
        | {"mrr": judged.reciprocal_rank(), "ndcg@10": judged.ndcg(10)}
    )


def mean_over_rows(rows: Sequence[RowFigures]) -> dict[str, Any]:
    """Plain mean over the rows of one system: every metric, the headline figure and its interval."""
    headlines = [figures.values[headline(figures.row.dataset)] for figures in rows]
    return {
        "rows": len(rows),
        "headline": float(np.mean([values.mean() for values in headlines])),
        "interval": list(interval_of_mean(headlines)),
        **{metric: float(np.mean([figures.figure(metric) for figures in rows])) for metric in METRICS},
    }
