"""Two studies in tables and words: the ablations beside the paper's, and the frontier at growing pool sizes.

Times are multiples of exact search's: milliseconds hold for one machine on one day; what carries over is who
is faster, and by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from genius.evaluate.ablations import SYSTEMS
from genius.evaluate.paper import effect, paper
from genius.evaluate.report.seeds import seeds_table
from genius.evaluate.report.tables import Table, difference, percent
from genius.evaluate.results import HORIZON, Crossover
from genius.evaluate.systems import FAISS

Outcome = Mapping[str, Any]
Frontier = Mapping[str, Any]
Point = Mapping[str, Any]


def ablation_table(outcome: Outcome) -> Table:
    """The base, then each variant, the most harmful first: mean hit rate and difference of each system."""
    header = [
        "variant",
        "after",
        *(f"{system}{what}" for system in SYSTEMS for what in (" %", ", difference")),
        "paper, difference",
    ]
    base: list[str] = []
    for system in SYSTEMS:
        mean, (low, high) = outcome["base"][system]["mean"], outcome["base"][system]["interval"]
        base += [percent(mean), f"[{percent(low)}, {percent(high)}]"]
    lines = [["base", outcome["recipe"]["name"], *base, ""]]
    for variant in sorted(outcome["variants"], key=_harm):
        cells: list[str] = []
        for system in SYSTEMS:
            found = variant.get("effects", {}).get(system)
            cells += ["stopped", ""] if found is None else [percent(found["mean"]), difference(found)]
        known = variant["paper"]
        lines.append([variant["name"], variant["table"], *cells, "" if known is None else f"{known:+.1f}"])
    return Table(
        f"Ablations, {outcome['setting']} pool, {outcome['split']} split", header, lines, _notes(outcome)
    )


def ablation_tables(outcome: Outcome) -> list[Table]:
    """The variants, and what holds over the seeds of the base recipe, as far as they were measured."""
    seeds = outcome.get("over_seeds")
    tables = [ablation_table(outcome)] if outcome["variants"] or not seeds else []
    return [*tables, *([seeds_table(seeds)] if seeds else [])]


def agreement(outcome: Outcome, system: str = SYSTEMS[0]) -> list[str]:
    """Sentences on how our effects agree with the paper's: signs, order, and the variants that disagree."""
    both = [v for v in outcome["variants"] if v["paper"] is not None and "effects" in v]
    stopped = [v for v in outcome["variants"] if "stopped" in v]
    found = []
    if len(both) >= 3:
        by_table: dict[str, list[Any]] = {}
        for variant in both:
            by_table.setdefault(variant["table"], []).append(variant)
        parts = [
            f"{table} {_correlation(some, system):+.2f} ({len(some)} variants)"
            for table, some in by_table.items()
            if 3 <= len(some) < len(both)
        ]
        found.append(
            f"rank correlation of our effects on {system} with the paper's over {len(both)} variants: "
            f"{_correlation(both, system):+.2f} (1: the same order)"
            + (f"; by table: {', '.join(parts)}" if parts else "")
        )
    sides: dict[str, list[str]] = {"agree": [], "open": [], "disagree": []}
    for variant in both:
        ours = variant["effects"][system]
        clear = ours["verdict"] != "even"
        same = (ours["difference"] < 0) == (variant["paper"] < 0)
        sides["open" if not clear else "agree" if same else "disagree"].append(
            f"{variant['name']} ({percent(ours['difference'], sign='+')}; paper {variant['paper']:+.1f})"
        )
    says = {"agree": "as in the paper", "open": "no clear effect here", "disagree": "opposite to the paper"}
    found += [f"{says[side]}: {', '.join(names)}" for side, names in sides.items() if names]
    found += _decoder_sizes(outcome, system)
    found += [f"{v['name']}: training stopped by itself ({v['stopped']})" for v in stopped]
    return found


def _decoder_sizes(outcome: Outcome, system: str) -> list[str]:
    """Decoder sizes compared with the smallest one that the paper has too, here and there."""
    sizes = paper()["ablations"]["decoders"]
    ours = {
        preset: variant["effects"][system]["mean"]
        for variant in outcome["variants"]
        for preset in sizes
        if variant["name"] == f"decoder of {preset} size" and "effects" in variant
    }
    if len(ours) < 2:
        return []
    first, *others = (preset for preset in sizes if preset in ours)
    differences = []
    for other in others:
        known = effect(sizes[other], sizes[first])
        differences.append(f"{other} {percent(ours[other] - ours[first], sign='+')} (paper {known:+.1f})")
    return [f"decoders compared with {first} size: {', '.join(differences)}"]


def _notes(outcome: Outcome) -> list[str]:
    notes = [
        "differences to the base are paired over queries, with 95 % intervals; the paper's are means of five "
        "columns on M-BEIR, for the same change",
    ]
    if outcome["seeds"] > 1:
        notes.append(f"means of {outcome['seeds']} seeds")
    notes += [
        f"{variant['name']}: its base was trained again, with the same seeds, and reached "
        + " and ".join(percent(variant["base"][system]["mean"]) for system in SYSTEMS)
        for variant in outcome["variants"]
        if "base" in variant
    ]
    commands = outcome.get("trained_by")
    if commands is None:
        notes.append("which commands trained the models was not recorded")
    elif len(commands) > 1:
        shown = ", ".join(f"`{each['command']}`" if each else "one not recorded" for each in commands)
        notes.append(f"put together from models that {len(commands)} commands trained: {shown}")
    if outcome["limit"]:
        notes.append(f"at most {outcome['limit']} queries of each row")
    return notes


def _harm(variant: Mapping[str, Any]) -> float:
    """For the order: a variant that could not be trained comes first, then the largest loss."""
    return float(variant["effects"][SYSTEMS[0]]["difference"]) if "effects" in variant else -2.0


def _correlation(variants: Sequence[Mapping[str, Any]], system: str) -> float:
    ours = [variant["effects"][system]["difference"] for variant in variants]
    return _rank_correlation(ours, [variant["paper"] for variant in variants])


def _rank_correlation(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Spearman's, without ties."""
    one, other = (np.argsort(np.argsort(values)).astype(np.float64) for values in (ours, theirs))
    return float(np.corrcoef(one, other)[0, 1])


def frontier_table(frontier: Frontier) -> Table:
    """Hit rate, time and bytes of every system at every pool size; crossovers as notes."""
    lines = []
    for point in frontier["points"]:
        real = "" if point["real"] == point["items"] else f", {point['real']:,} real"
        lines.append([
            f"{point['items']:,}{real}",
            point["system"],
            percent(point["hit_at_5"]),
            f"{point['milliseconds']:.2f}",
            f"{point['slow_milliseconds']:.2f}",
            f"{point['queries_per_second']:,.0f}",
            f"{point['bytes_per_item']:,.1f}",
            f"{point['build_seconds']:.1f}",
        ])  # fmt: skip
    header = ["items", "system", "hit@5 %", "ms", "ms, 95 %", "queries/s", "bytes/item", "build s"]
    machine, model = frontier["machine"], frontier["model"]
    faiss_on_cpu = not on_cpu(frontier) and any(point["system"] in FAISS for point in frontier["points"])
    notes = [
        f"model {model['name']} ({model['fingerprint'][:12]}), data {frontier['data']}, "
        f"{frontier['queries']:,} queries on {machine['device']}, {machine['threads']} threads",
        f"times are without encoding the query, which takes {frontier['encoding_milliseconds']:.1f} ms",
        _filling(frontier),
        *(["FAISS ran on the CPU beside it"] if faiss_on_cpu else []),
        *crossover_lines(frontier),
    ]
    return Table("Hit rate, latency and bytes at growing pool sizes", header, lines, notes)


def _filling(frontier: Frontier) -> str:
    """What pools beyond the real items are filled with."""
    found = frontier.get("calibration")
    if not found:
        return "beyond the real items, pools are filled with made ones: compare times there, not hit rates"
    real, made = (hits[-1] for hits in (found["real"], _chosen(found)))
    return (
        "beyond the real items, pools are filled with items between real neighbours, so that exact search "
        f"falls as with real ones: {percent(real)} in {found['sizes'][-1]:,} real items of val, "
        f"{percent(made)} where all but {found['base']:,} of them are made"
    )


def _chosen(calibration: Mapping[str, Any]) -> list[float]:
    """hit@5 at each size with the spread that was chosen."""
    return next(each["hit_at_5"] for each in calibration["filled"] if each["spread"] == calibration["spread"])


def on_cpu(frontier: Frontier) -> bool:
    """Whether the times are of a CPU."""
    return bool(frontier["machine"].get("kind", "cpu") == "cpu")


def crossover_lines(frontier: Frontier, only: Sequence[str] = ()) -> list[str]:
    """From which pool size each system is faster than exact search, in sentences; `only` some systems.

    What an older file extrapolates further than we do now is left out.
    """
    largest = max(point["items"] for point in frontier["points"])
    found = []
    for each in frontier["crossovers"]:
        crossover = Crossover(**{name: value for name, value in each.items() if name != "text"})
        too_far = crossover.expected is not None and crossover.expected > HORIZON * largest
        found.append(replace(crossover, expected=None) if too_far else crossover)
    return [each.line() for each in found if not only or each.system in only]


def by_model(
    frontiers: Sequence[Frontier], results: Sequence[Mapping[str, Any]]
) -> tuple[list[Frontier], list[Frontier]]:
    """The frontiers that were measured with the model of the results, and those of another one."""
    model = results[0]["model"]["fingerprint"]
    same = [each for each in frontiers if each["model"]["fingerprint"] == model]
    return same, [each for each in frontiers if each not in same]


def relative(frontier: Frontier) -> dict[str, Any]:
    """The same frontier with times and speeds as multiples of exact search's in the smallest pool."""
    exact = [point for point in frontier["points"] if point["system"] == "exact"]
    first = min(exact, key=lambda point: point["items"])
    units = {
        "milliseconds": first["milliseconds"],
        "slow_milliseconds": first["milliseconds"],
        "queries_per_second": first["queries_per_second"],
    }

    def scaled(point: Point) -> dict[str, Any]:
        return {**point, **{name: point[name] / unit for name, unit in units.items() if name in point}}

    return {
        **frontier,
        "points": [scaled(point) for point in frontier["points"]],
        "beams": [scaled(point) for point in frontier["beams"]],
        "unit": f"exact search in {first['items']:,} items = 1",
    }


def with_full_hit_rates(frontier: Frontier, results: Mapping[str, Any]) -> dict[str, Any]:
    """The frontier with the hit rates of all queries in the whole pool, from `results` in that pool.

    A frontier times a few queries of each row: too few to tell hit rates apart.
    """
    means = results["mean"]

    def update(point: Point) -> dict[str, Any]:
        known = point["items"] == point["real"] == frontier["real_items"] and point["system"] in means
        return {**point, "hit_at_5": means[point["system"]]["hit@5"]} if known else dict(point)

    queries = sum(row["queries"] for row in results["rows"] if row["system"] == "exact")
    points = [update(point) for point in frontier["points"]]
    return {**frontier, "points": points, "queries_in_the_whole_pool": queries}


def time_table(frontier: Frontier) -> Table:
    """One query at a time: how many times as long as exact search in the same pool."""
    notes = ["below 1: faster than exact search; encoding the query comes on top, the same for all"]
    title = "Time of a single query; exact search in the same pool = 1"
    return _by_size(frontier, title, _ratio("milliseconds"), notes)


def speed_table(frontier: Frontier) -> Table:
    """Queries in batches: how many times as many per second as exact search in the same pool."""
    title = "Queries per second, in batches of 64; exact search in the same pool = 1"
    return _by_size(frontier, title, _ratio("queries_per_second"), ["above 1: faster"])


def hit_table(frontier: Frontier) -> Table:
    """hit@5 in pools that hold real items only."""
    real = {**frontier, "points": [p for p in frontier["points"] if p["real"] == p["items"]]}
    title = f"hit@5 in %, {frontier['queries']:,} queries of all rows, pools of real items"
    whole = frontier.get("queries_in_the_whole_pool")
    notes = (
        [f"in all {frontier['real_items']:,} items: {whole:,} queries, mean over the rows"] if whole else []
    )
    return _by_size(real, title, lambda point, exact: percent(point["hit_at_5"]), notes)


def share_table(frontier: Frontier) -> Table:
    """hit@5 of each system as a share of exact search's in the same pool, at every size."""
    calibrated = bool(frontier.get("calibration"))
    points = [p for p in frontier["points"] if calibrated or p["real"] == p["items"]]
    title = f"Share of exact search's hit@5, {frontier['queries']:,} queries of all rows"
    exact = {p["items"]: percent(p["hit_at_5"]) for p in points if p["system"] == "exact"}
    notes = [f"exact search itself: {', '.join(f'{hit} % in {n:,}' for n, hit in sorted(exact.items()))}"]

    def share(point: Point, exact: Point) -> str:
        return f"{point['hit_at_5'] / exact['hit_at_5']:.2f}" if exact["hit_at_5"] else "–"

    return _by_size({**frontier, "points": points}, title, share, notes)


def storage_table(frontier: Frontier) -> Table:
    """What an index takes per item, measured on its arrays (supplement Table 2)."""
    notes = [
        "measured on the arrays of the index: codes, item numbers, vectors, links; without what does not "
        "grow with the pool (our codebooks, FAISS's centroids)",
        "the paper's figures are computed from the bits of a code, without what finds an item by it",
    ]
    table = _by_size(
        frontier, "Bytes per item", lambda point, exact: f"{point['bytes_per_item']:,.1f}", notes
    )
    blank = [""] * (len(table.header) - 3)
    lines = [[name, "paper", f"{size:,.2f}", *blank] for name, size in paper()["bytes_per_item"].items()]
    return Table(table.title, table.header, [*table.lines, *lines], table.notes)


def _ratio(field: str) -> Callable[[Point, Point], str]:
    """Multiples of exact search with two significant digits: 620, 0.0019."""
    return lambda point, exact: f"{float(f'{point[field] / exact[field]:.2g}'):,g}"


def _by_size(
    frontier: Frontier, title: str, cell: Callable[[Point, Point], str], notes: Sequence[str]
) -> Table:
    sizes = sorted({point["items"] for point in frontier["points"]})
    points = {(point["system"], point["items"]): point for point in frontier["points"]}
    lines = []
    for system in dict.fromkeys(point["system"] for point in frontier["points"]):
        pairs = [(points.get((system, size)), points.get(("exact", size))) for size in sizes]
        lines.append([system, *("–" if not p or not exact else cell(p, exact) for p, exact in pairs)])
    header = ["system", *(f"{size:,} items" for size in sizes)]
    larger = any(point["real"] < point["items"] for point in frontier["points"])
    more = [_filling(frontier)] if larger else []
    return Table(title, header, lines, [*notes, *more])
