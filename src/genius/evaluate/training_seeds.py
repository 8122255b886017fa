"""What holds over the seeds of training: a recipe trained several times, beside systems it does not change.

One lucky seed is no win: a comparison counts as better or worse only where it is so under every seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import stdev
from typing import Any

import numpy as np

from genius.data.base import Row
from genius.evaluate.protocol import RowMetrics, mean_over_rows
from genius.evaluate.results import PAIRS, Results, compare_rows

EVEN = "even"


def averaged(results: Sequence[Results], system: str) -> dict[Row, RowMetrics]:
    """The metrics of a system by row, each query's being its mean over several results."""
    runs = [each.metrics_of(system) for each in results]
    return {
        row: replace(
            metrics,
            values={
                name: np.mean([run[row].values[name] for run in runs], axis=0) for name in metrics.values
            },
        )
        for row, metrics in runs[0].items()
    }


def over_seeds(trained: Sequence[Results], others: Results) -> dict[str, Any]:
    """Mean and spread of every system, and comparisons of ours with the rest; plain values.

    `trained` are results of the models of each seed, `others` those of systems that are the same for all.
    """
    systems = {name: _over(trained, name) for name in trained[0].systems()}
    systems |= {name: _once(others, name) for name in others.systems()}
    both = dict.fromkeys(trained[0].systems(), trained)
    both |= dict.fromkeys(others.systems(), [others] * len(trained))
    pairs = [(one, other) for one, other in PAIRS if {one, other} <= both.keys()]
    return {
        "setting": others.setting,
        "split": others.split,
        "systems": systems,
        "comparisons": [
            _compared(one, other, both[one], both[other])
            for one, other in pairs
            if {one, other} & set(trained[0].systems())
        ],
    }


def _over(results: Sequence[Results], system: str) -> dict[str, Any]:
    mean = mean_over_rows(list(averaged(results, system).values()))
    by_seed = [mean_over_rows(list(each.metrics_of(system).values()))["headline"] for each in results]
    return {
        "mean": mean["headline"],
        "interval": mean["interval"],
        "by_seed": by_seed,
        "deviation": stdev(by_seed) if len(by_seed) > 1 else 0.0,
        "bytes_per_item": max(each.bytes_per_item(system) for each in results),
        "seeds_of": "training",
    }


def _once(results: Results, system: str) -> dict[str, Any]:
    """A system that no training changes: its seeds, if any, are those of its own k-means."""
    mean = results.as_json()["mean"][system]
    own = {"by_seed": mean["seeds"], "deviation": mean["seed_deviation"]} if "seeds" in mean else {}
    known = {"mean": mean["headline"], "interval": mean["interval"]}
    return known | own | {"bytes_per_item": mean["bytes_per_item"], "seeds_of": "k-means" if own else ""}


def _compared(one: str, other: str, ours: Sequence[Results], theirs: Sequence[Results]) -> dict[str, Any]:
    by_seed = [
        compare_rows(a.metrics_of(one), b.metrics_of(other), (one, other)).mean
        for a, b in zip(ours, theirs, strict=True)
    ]
    mean = compare_rows(averaged(ours, one), averaged(theirs, other), (one, other)).mean
    verdicts = {each.verdict for each in (mean, *by_seed)}
    return {
        "one": one,
        "other": other,
        "difference": mean.value,
        "interval": list(mean.interval),
        "by_seed": [each.value for each in by_seed],
        "verdict": verdicts.pop() if len(verdicts) == 1 else EVEN,
    }
