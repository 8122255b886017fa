"""What was trained several times, in tables: a recipe under several seeds, and the generative baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from genius.evaluate.report.tables import NOT_RUN, Table, difference, percent

Outcome = Mapping[str, Any]


def seeds_table(outcome: Outcome) -> Table:
    """Every system: mean, standard deviation and each seed, share of exact search, bytes."""
    systems = outcome["systems"]
    exact = systems.get("exact", {}).get("mean", 0.0)
    lines = []
    for name, found in systems.items():
        by_seed = found.get("by_seed", [])
        lines.append([
            name,
            found["seeds_of"],
            percent(found["mean"], found["interval"]),
            percent(found["deviation"]) if by_seed else "",
            ", ".join(map(percent, by_seed)),
            f"{found['mean'] / exact:.2f}" if exact else "",
            f"{found['bytes_per_item']:,.1f}",
        ])  # fmt: skip
    header = ["system", "seeds of", "mean %", "deviation", "by seed", "share of exact", "bytes per item"]
    title = f"Over the seeds of training, {outcome['setting']} pool, {outcome['split']} split"
    return Table(title, header, lines, _verdicts(outcome))


def _verdicts(outcome: Outcome) -> list[str]:
    says = {"better": "better than", "worse": "worse than", "even": "not clearly better or worse than"}
    return [
        f"{each['one']} is {says[each['verdict']]} {each['other']} under all seeds: "
        f"{difference(each)} points, by seed "
        + ", ".join(percent(value, sign="+") for value in each["by_seed"])
        for each in outcome["comparisons"]
    ]


def generative_table(outcome: Outcome, results: Sequence[Mapping[str, Any]]) -> Table:
    """The generative baselines on their own rows, beside our decoder and exact search on the same rows."""
    lines = []
    for name, found in outcome["baselines"].items():
        rows = {(row["dataset"], row["task"]) for row in found["test"]["universal"]["rows"]}
        cells = []
        for each in results:
            own = found["test"][each["setting"]]
            cells.append(_with_seeds(own))
            cells += [_mean_of(each, system, rows) for system in ("genius", "exact")]
        lines.append([name, f"{found['rate']:g}", *cells])
    header = ["baseline", "rate"]
    for each in results:
        header += [f"{each['setting']} %", "genius there", "exact there"]
    network = "x".join(map(str, outcome["training"]["network"][:2]))
    notes = [
        f"network ({network}) and samples ({outcome['samples']:,}) of our own decoder, "
        f"{outcome['seeds']} seeds with their standard deviation; the rate is the best of "
        f"{_rates(outcome)} on val",
        "the identifiers and objectives are those of the originals; their large pretrained models are not",
    ]
    return Table("Generative baselines, on the rows they are made for", header, lines, notes)


def curves_table(outcome: Outcome) -> Table:
    """hit@5 on val as training goes on, and what more samples add: whether the curve is flat."""
    lines = []
    for name, found in outcome["baselines"].items():
        curve = next(each["curve"] for each in found["rates"] if each["rate"] == found["rate"])
        last = curve[-1][1]
        longer = found.get("more")
        more = percent(longer["curve"][-1][1] - last, sign="+") if longer else NOT_RUN
        early = (percent(hit) for _, hit in curve[1::2])
        lines.append([name, *early, percent(last - curve[-3][1], sign="+"), more])
    steps = [step for step, _ in curve[1::2]]
    times = max((f["more"]["times"] for f in outcome["baselines"].values() if "more" in f), default=1)
    header = [
        "baseline",
        *(f"{step:,} steps" for step in steps),
        "last quarter",
        f"{times} times the samples",
    ]
    return Table("hit@5 on val by training steps, %", header, lines)


def _rates(outcome: Outcome) -> str:
    first = next(iter(outcome["baselines"].values()))
    return ", ".join(f"{each['rate']:g}" for each in first["rates"])


def _with_seeds(found: Mapping[str, Any]) -> str:
    text = percent(found["headline"])
    return f"{text} ± {percent(found['seed_deviation'])}" if "seed_deviation" in found else text


def _mean_of(results: Mapping[str, Any], system: str, rows: set[tuple[str, int]]) -> str:
    """The mean of a system over some rows of a setting."""
    found = [
        row["hit@5"]
        for row in results["rows"]
        if row["system"] == system and (row["dataset"], row["task"]) in rows
    ]
    return percent(sum(found) / len(found)) if len(found) == len(rows) else NOT_RUN
