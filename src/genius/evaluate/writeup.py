"""The written report: all systems on all rows in both settings, who beats whom, the frontier; in Markdown.

Every sentence is made from a row of the results beside it; nothing is claimed that was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from genius.evaluate import reference
from genius.evaluate.ablation_tables import ablation_table, agreement
from genius.evaluate.catalog import LEARNING, OURS
from genius.evaluate.compare import Comparison, compare
from genius.evaluate.frontier_tables import hit_table, speed_table, storage_table, time_table
from genius.evaluate.results import Results
from genius.evaluate.tables import Table, frontier_table, results_table

# who is worth comparing: ours, then what people use today at about the same bytes
CODES = ("genius", "genius+codes", "decoder+codes", "lookup+codes")
SMALL = ("ivf-pq", "pq", "faiss-rq")
VECTORS = ("genius+vectors", "decoder+vectors", "lookup+vectors")
LARGE = ("faiss-flat", "hnsw", "ivf-pq-best")


@dataclass(frozen=True, slots=True)
class Document:
    """What a report is made from. Commands and paths are shown as they are given."""

    results: Sequence[Results]
    frontiers: Sequence[Mapping[str, Any]]
    command: str  # that makes this document
    pictures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # device -> path -> caption
    ablations: Mapping[str, Any] | None = None
    numbers: Mapping[str, str] = field(default_factory=dict)  # what -> path of its JSON, relative


def writeup(document: Document) -> str:
    """The whole document."""
    first = document.results[0]
    parts = [
        "# Results",
        f"Made by\n\n```\n{document.command}\n```",
        f"from the model `{first.model}` ({first.fingerprint}) and the data `{first.data}`, {first.split} "
        "split. Figures are hit rates in percent (the paper's “Recall@k”): hit@5, hit@10 for Fashion200K and "
        "FashionIQ. Intervals are 95 %, by bootstrap over queries; differences are paired, and count as "
        "better or worse where their interval leaves out 0.",
        *_limit(first),
        "## In short",
        *(f"- {line}" for line in _in_short(document)),
        _overview(document.results).markdown(),
    ]
    for each in document.results:
        parts += _setting(each, document.numbers)
    parts += _beside_the_paper(document.results)
    for frontier in document.frontiers:
        parts += _frontier(frontier, document)
    if document.ablations is not None:
        parts += _ablations(document.ablations, document)
    parts += [
        "## What codes mean",
        "`genius plot --data BENCH --to FOLDER` draws which pictures and texts share a code at levels 1, 2 "
        "and 3, and a map of the quantized vectors (`--compare MODEL`: beside those of another model). They "
        "show the benchmark's own photos, so they are made at home and not published here.",
    ]
    parts += ["## Versions", *(f"- {name}: {value}" for name, value in sorted(first.versions.items()))]
    return _joined(parts)


def _limit(results: Results) -> list[str]:
    if not results.limit:
        return []
    return [f"**A trial: at most {results.limit} queries of each row were asked.**"]


def _in_short(document: Document) -> list[str]:
    """What a reader has to know, each line from figures below."""
    lines = []
    for results in document.results:
        there = set(results.systems())
        lines.append(_means_line(results))
        ours = [name for name in ("genius", "genius+codes") if name in there]
        for one in ours:
            for other in SMALL:
                if other in there:
                    lines.append(_verdict(compare(results, one, other), results.setting))
        if {"genius", "lookup+codes"} <= there:
            lines.append(_verdict(compare(results, "genius", "lookup+codes"), results.setting))
        if {"genius+vectors", "exact"} <= there:
            lines.append(_verdict(compare(results, "genius+vectors", "exact"), results.setting))
    for frontier in document.frontiers:
        where = frontier["machine"]["device"]
        own = [each for each in frontier["crossovers"] if each.get("system", "genius") in OURS]
        lines += [f"time, {where}: {each['text']}" for each in own]
    return lines


def _means_line(results: Results) -> str:
    mean = results.as_json()["mean"]
    pool = max(entry.figures.pool_items for entry in results.entries)
    wanted = ("exact", *CODES[:2], "genius+vectors", *SMALL)
    shown = [
        f"{name} {100 * mean[name]['headline']:.1f} ({mean[name]['bytes_per_item']:,.0f} bytes per item)"
        for name in wanted
        if name in mean
    ]
    of = (
        f"{pool:,} items"
        if results.setting == "universal"
        else f"each row's own pool, {pool:,} items at most"
    )
    return f"{results.setting} ({of}), mean over the rows: {', '.join(shown)}"


def _verdict(found: Comparison, setting: str) -> str:
    word = {"better": "wins over", "worse": "loses to", "even": "is even with"}[found.mean.verdict]
    sizes = " and ".join(f"{size:,.0f}" for size in found.bytes_per_item)
    counts = {v: sum(d.verdict == v for d in found.rows) for v in ("better", "even", "worse")}
    lost = ", ".join(str(d.row) for d in found.rows if d.verdict == "worse")
    return (
        f"{setting}: {found.one} {word} {found.other} ({sizes} bytes per item) by {found.mean} points; "
        f"better on {counts['better']} rows, no clear difference on {counts['even']}, "
        f"worse on {counts['worse']}" + (f" ({lost})" if lost else "")
    )


def _overview(results: Sequence[Results]) -> Table:
    """Every system: its mean in each setting, the share of exact search, and its bytes."""
    means = [each.as_json()["mean"] for each in results]
    names = list(dict.fromkeys(name for mean in means for name in mean))
    header = ["system", "bytes per item"]
    for each in results:
        header += [f"{each.setting} %", "share of exact"]
    lines = []
    for name in names:
        sizes = [mean[name]["bytes_per_item"] for mean in means if name in mean]
        line = [name, f"{max(sizes):,.1f}"]
        for mean in means:
            line += _overview_cells(mean, name)
        lines.append(line)
    notes = ["a system with a number of rows beside its mean is made for those rows only"]
    return Table("All systems, mean over the rows", header, lines, notes)


def _overview_cells(mean: Mapping[str, Any], name: str) -> list[str]:
    if name not in mean:
        return ["not run", ""]
    values = mean[name]
    low, high = values["interval"]
    text = f"{100 * values['headline']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
    if not values["complete"]:
        return [f"{text} ({values['rows']} rows)", ""]
    exact = mean.get("exact", {}).get("headline", 0.0)
    return [text, f"{values['headline'] / exact:.2f}" if exact else ""]


def _setting(results: Results, numbers: Mapping[str, str]) -> list[str]:
    found = results.as_json()
    there = set(results.systems())
    groups = {
        "Nothing stored but codes": (*CODES, *SMALL),
        "With vectors": (*VECTORS, *LARGE),
        "Generative baselines": tuple(sorted(LEARNING)),
    }
    command = f"genius eval --data BENCH --setting {results.setting} --split {results.split} --systems all"
    parts = [f"## {results.setting.capitalize()} pool", _made_by(command, numbers.get(results.setting))]
    for title, names in groups.items():
        if there & set(names):
            table = results_table(found, only=("exact", *names))
            parts += [f"### {title}", replace(table, notes=()).markdown()]
    notes = results_table(found).notes
    parts += ["### Where ours wins and where it loses", _comparisons(results).markdown()]
    return [*parts, "### How it was done", *(f"- {note}" for note in notes)]


def _comparisons(results: Results) -> Table:
    """Each of ours against what people use at about the same bytes, and against the other ways to search."""
    there = set(results.systems())
    pairs = [(one, other) for one in CODES for other in SMALL]
    pairs += [(one, other) for one in ("genius", "decoder+codes") for other in ("lookup+codes",)]
    pairs += [(one, other) for one in VECTORS for other in ("exact", "hnsw", "ivf-pq-best")]
    lines = []
    for one, other in pairs:
        if {one, other} <= there:
            found = compare(results, one, other)
            by = {v: [d for d in found.rows if d.verdict == v] for v in ("better", "even", "worse")}
            won, lost = ("; ".join(f"{d.row} {d}" for d in by[v]) for v in ("better", "worse"))
            sizes = " / ".join(f"{size:,.0f}" for size in found.bytes_per_item)
            lines.append([one, other, sizes, str(found.mean), won or "–", str(len(by["even"])), lost or "–"])
    header = ["ours", "against", "bytes per item", "mean difference", "rows won", "rows open", "rows lost"]
    return Table(f"Differences in points, {results.setting} pool", header, lines)


def _beside_the_paper(results: Sequence[Results]) -> list[str]:
    return [
        "## Beside the paper",
        "The paper's figures are of M-BEIR, COCO and Flickr30K, with CLIP ViT-L/14 or BLIP-Large: other data "
        "and other encoders. To be compared are shares of exact search, and who is ahead of whom.",
        *(table.markdown() for each in results for table in reference.tables(each)),
    ]


def _frontier(frontier: Mapping[str, Any], document: Document) -> list[str]:
    machine = frontier["machine"]
    where = machine["device"]
    sizes = ",".join(str(size) for size in sorted({point["items"] for point in frontier["points"]}))
    plan = "".join(f" --{name} {value}" for name, value in frontier.get("plan", {}).items())
    parts = [
        f"## Frontier: accuracy, time and bytes on {where}",
        _made_by(
            f"genius bench --data BENCH --split {frontier['split']} --device {machine.get('kind', where)} "
            f"--sizes {sizes}{plan}",
            document.numbers.get(f"frontier {where}"),
        ),
        f"All systems answered the same queries on the same machine ({where}, {machine['threads']} threads).",
    ]
    if machine.get("kind", "cpu") != "cpu":  # times of a GPU stand as they are
        parts.append(frontier_table(frontier).markdown())
    parts += [table(frontier).markdown() for table in (time_table, speed_table, hit_table, storage_table)]
    parts += ["From which pool size a system answers a query faster than exact search:"]
    parts += [f"- {each['text']}" for each in frontier["crossovers"]]
    return parts + [f"![{shows}]({path})" for path, shows in document.pictures.get(where, {}).items()]


def _ablations(outcome: Mapping[str, Any], document: Document) -> list[str]:
    return [
        "## Ablations",
        _made_by(outcome["command"], document.numbers.get("ablations")),
        ablation_table(outcome).markdown(),
        "Beside the paper's effects of the same changes:",
        *(f"- {line}" for line in agreement(outcome)),
    ]


def _made_by(command: str, numbers: str | None) -> str:
    return f"`{command}`" + (f" ([numbers]({numbers}))" if numbers else "")


def _joined(parts: Sequence[str]) -> str:
    """Parts with a blank line between them, but none between the lines of a list."""
    out = ""
    for before, part in zip(("", *parts), parts, strict=False):
        if not part:
            continue
        tight = part.startswith("- ") and before.startswith("- ")
        out += ("" if not out else "\n" if tight else "\n\n") + part.strip("\n")
    return out + "\n"
