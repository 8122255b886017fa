"""Ablations as a table and in words: our effects beside the paper's, in order, and where the two disagree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from genius.evaluate.ablations import SYSTEMS
from genius.evaluate.paper import effect, paper
from genius.evaluate.report.tables import Table, difference, percent

Outcome = Mapping[str, Any]


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
