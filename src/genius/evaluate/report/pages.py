"""The written report: one page with the main tables, and an appendix with everything else, in Markdown.

All pages are made from JSON files of results, so they can be written again from saved files. Every sentence
follows from a number beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from genius.evaluate.report.seeds import curves_table, generative_table, seeds_table
from genius.evaluate.report.studies import (
    ablation_tables,
    agreement,
    by_model,
    crossover_lines,
    frontier_table,
    hit_table,
    on_cpu,
    share_table,
    speed_table,
    storage_table,
    time_table,
)
from genius.evaluate.report.tables import (
    Table,
    comparison_table,
    difference,
    overview_table,
    percent,
    published_table,
    results_table,
    shares_table,
    text_to_image_table,
)
from genius.evaluate.results import LARGE, OURS_BY_CODES, OURS_BY_VECTORS, SMALL
from genius.evaluate.systems import GENERATIVE, OURS

MAIN = "results.md"
MAIN_PICTURES = ("hit-by-bytes", "latency-by-size")  # of the first frontier; the others are in the appendix
SUMMARIZED = [("lookup+codes", "faiss-rq-train"), ("fitted+codes", "faiss-rq"), ("genius", "lookup+codes")]
SUMMARIZED += [("lookup+vectors", "hnsw-int8")]  # bytes are compared at the same width or a smaller one
# generative baselines are shown as `benchmarks/generative.py` trains them; the others are names that older
# files have for lookup+codes and lookup+vectors
LEFT_OUT = {*GENERATIVE, "genius+codes", "genius+vectors"}
_NAMED_BY = ("system", "one", "other")
_VERDICTS = {"better": "wins over", "worse": "loses to", "even": "is even with"}


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """What a report is made from, as JSON; paths are relative to the folder of the main page."""

    results: Sequence[Mapping[str, Any]]  # one for each setting
    frontiers: Sequence[Mapping[str, Any]]  # one for each device
    ablations: Mapping[str, Any] | None = None
    seeds: Sequence[Mapping[str, Any]] = ()  # one for each setting: the recipe under several seeds
    generative: Mapping[str, Any] | None = None  # GRACE, IRGen and DSI, trained as our decoder is
    pictures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # device -> path -> caption
    numbers: str | None = None  # folder of the JSON files
    data: str | None = None  # page that says how to get the data


def pages(inputs: ReportInputs) -> dict[str, str]:
    """The pages by path, the main page first; frontiers of another model than the results' are left out."""
    same, other = by_model(inputs.frontiers, inputs.results)
    inputs = replace(
        inputs,
        results=[_without(each, "rows", "comparisons", "not_run") for each in inputs.results],
        frontiers=[_without(each, "points", "crossovers") for each in same],
    )
    written = {MAIN: _main_page(inputs, other)}
    written |= {_results_path(each): _results_page(each, inputs) for each in inputs.results}
    written |= {_frontier_path(each): _frontier_page(each, inputs) for each in inputs.frontiers}
    if inputs.ablations is not None:
        written["appendix/ablations.md"] = _ablations_page(inputs.ablations, inputs)
    if inputs.seeds:
        written["appendix/seeds.md"] = _seeds_page(inputs)
    if inputs.generative is not None:
        written["appendix/generative.md"] = _generative_page(inputs.generative, inputs)
    return written


def _without(found: Mapping[str, Any], *lists: str) -> dict[str, Any]:
    """The figures of a file without systems that belong in no table."""
    own = dict(found)
    for name in lists:
        own[name] = [each for each in found[name] if not LEFT_OUT & {each.get(key) for key in _NAMED_BY}]
    for name in ("mean", "systems"):
        if name in found:
            own[name] = {key: value for key, value in found[name].items() if key not in LEFT_OUT}
    return own


def _main_page(inputs: ReportInputs, left_out: Sequence[Mapping[str, Any]]) -> str:
    first = inputs.results[0]
    model = first["model"]
    limit = f"**A trial: at most {first['limit']} queries of each row.**" if first["limit"] else ""
    pictures = [
        f"![{caption}]({path})"
        for frontier in inputs.frontiers[:1]
        for path, caption in inputs.pictures.get(frontier["machine"]["device"], {}).items()
        if any(name in path for name in MAIN_PICTURES)
    ]
    links = {_results_path(each): f"{each['setting']} pool, row by row" for each in inputs.results}
    links |= {_frontier_path(each): f"pool sizes on {_device(each)}" for each in inputs.frontiers}
    if inputs.ablations is not None:
        links["appendix/ablations.md"] = "ablations, beside the paper's"
    if inputs.seeds:
        links["appendix/seeds.md"] = "several seeds of training"
    if inputs.generative is not None:
        links["appendix/generative.md"] = "GRACE, IRGen and DSI"
    return _join(
        "# Results",
        f"The model `{model['name']}` ({model['fingerprint']}) on `{first['data']}`"
        + (f" ([how to get it]({inputs.data}))" if inputs.data else "")
        + f", {first['split']} split. "
        "Metrics are hit rates in percent (the paper's “Recall@k”): hit@5, hit@10 for Fashion200K and "
        f"FashionIQ. {_intervals(first)} "
        "`genius report` writes this page and its appendix from JSON files.",
        limit,
        *(f"- {line}" for line in _summary(inputs)),
        overview_table(inputs.results).markdown(),
        _comparisons(inputs.results).markdown(),
        *(shares_table(each).markdown() for each in inputs.results[:1]),
        "The paper's figures are of M-BEIR with CLIP ViT-L/14 or BLIP-Large: other data and another encoder, "
        "so shares of exact search can be compared, hit rates cannot.",
        *pictures,
        "Appendix:",
        *(f"- [{text}]({path})" for path, text in links.items()),
        *map(_left_out, left_out),
        "- `genius plot --data BENCH --to FOLDER` draws which images and texts share a code, and a map of "
        "quantized embeddings; they show the benchmark's own photos, so they are not published here",
    )


def _left_out(frontier: Mapping[str, Any]) -> str:
    model, kind = frontier["model"]["fingerprint"], frontier["machine"].get("kind", "cpu")
    return (
        f"- no pool sizes on {_device(frontier)}: they were measured with another model ({model}); "
        f"`genius bench --device {kind}` measures them"
    )


def _intervals(results: Mapping[str, Any]) -> str:
    """How the intervals of these results were made."""
    if "intervals" not in results:  # before queries were grouped
        return (
            "Intervals are 95 %, by bootstrap over queries; differences are paired, and count as better or "
            "worse where their interval leaves out 0."
        )
    return (
        "Intervals are 95 %, by bootstrap over photos: queries that share a picture or a relevant item are "
        "drawn together, in all rows. Differences are paired, and count as better or worse where their "
        "interval leaves out 0; on single rows it is widened for their number (Bonferroni)."
    )


def _summary(inputs: ReportInputs) -> list[str]:
    lines = []
    for results in inputs.results:
        mean = results["mean"]
        shown = ("exact", *OURS_BY_CODES, "lookup+vectors", *SMALL)
        means = ", ".join(f"{name} {percent(mean[name]['headline'])}" for name in shown if name in mean)
        items = max(row["pool_items"] for row in results["rows"])
        local = "each row's own pool, at most "
        size = f"{'' if results['setting'] == 'universal' else local}{items:,} items"
        lines.append(f"{results['setting']} ({size}), mean over the rows: {means}")
        for found in results["comparisons"]:
            if (found["one"], found["other"]) in SUMMARIZED:
                lines.append(f"{results['setting']}: {_verdict(found)}{_over_seeds(found, results, inputs)}")
    for frontier in inputs.frontiers:
        lines += [f"time, {_device(frontier)}: {line}" for line in crossover_lines(frontier, tuple(OURS))]
    return lines


def _verdict(found: Mapping[str, Any]) -> str:
    sizes = " and ".join(f"{size:,.0f}" for size in found["bytes_per_item"])
    by = _by_verdict(found)
    lost = ", ".join(f"{row['dataset']} {row['task']}" for row in by["worse"])
    return (
        f"{found['one']} {_VERDICTS[found['mean']['verdict']]} {found['other']} ({sizes} bytes per item) by "
        f"{difference(found['mean'])} points; better on {len(by['better'])} rows, no clear difference on "
        f"{len(by['even'])}, worse on {len(by['worse'])}" + (f" ({lost})" if lost else "")
    )


def _over_seeds(found: Mapping[str, Any], results: Mapping[str, Any], inputs: ReportInputs) -> str:
    """What the same comparison says over the seeds of training, where they were measured."""
    for outcome in inputs.seeds:
        for each in outcome["over_seeds"]["comparisons"]:
            same = (each["one"], each["other"]) == (found["one"], found["other"])
            if same and outcome["over_seeds"]["setting"] == results["setting"]:
                return f"; {outcome['seeds']} seeds of training: {_VERDICTS[each['verdict']]} it under all"
    return ""


def _by_verdict(found: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    return {v: [row for row in found["rows"] if row["verdict"] == v] for v in ("better", "even", "worse")}


def _comparisons(settings: Sequence[Mapping[str, Any]]) -> Table:
    """Mean differences of all pairs in each setting, and on how many rows ours is better, even and worse."""
    found = {
        (each["one"], each["other"], results["setting"]): each
        for results in settings
        for each in results["comparisons"]
    }
    lines = []
    for one, other in dict.fromkeys((one, other) for one, other, _ in found):
        line = [one, other]
        for results in settings:
            each = found.get((one, other, results["setting"]))
            counts = "" if each is None else "/".join(str(len(rows)) for rows in _by_verdict(each).values())
            line += ["" if each is None else difference(each["mean"]), counts]
        lines.append(line)
    header = ["ours", "against"]
    for results in settings:
        header += [f"{results['setting']}, points", "rows better/even/worse"]
    return Table("Mean differences", header, lines)


def _results_path(results: Mapping[str, Any]) -> str:
    return f"appendix/{results['setting']}.md"


def _results_page(results: Mapping[str, Any], inputs: ReportInputs) -> str:
    setting = results["setting"]
    groups = {
        "Nothing stored but codes": (*OURS_BY_CODES, *SMALL),
        "With vectors": (*OURS_BY_VECTORS, *LARGE),
    }
    command = f"genius eval --data BENCH --setting {setting} --split {results['split']} --systems all"
    command = results.get("command", command)
    parts = [f"# {setting.capitalize()} pool", _command(command, f"results-{setting}.json", inputs)]
    for title, names in groups.items():
        if set(names) & set(results["mean"]):
            table = results_table(results, only=("exact", *names))
            parts += [f"## {title}", replace(table, notes=()).markdown()]
    parts += ["## Where ours wins and where it loses", comparison_table(results).markdown()]
    parts += ["## Beside the paper", shares_table(results).markdown()]
    if set(results["mean"]) & {"irgen", "genius"}:
        parts.append(text_to_image_table(results, inputs.generative).markdown())
    parts += [published_table(setting).markdown(), "## Settings"]
    parts += [f"- {note}" for note in results_table(results).notes]
    versions = {"commit": results.get("commit", "not recorded"), **results["versions"]}
    parts += ["## Versions", *(f"- {name}: {value}" for name, value in sorted(versions.items()))]
    return _join(*parts)


def _device(frontier: Mapping[str, Any]) -> str:
    return str(frontier["machine"]["device"])


def _threads(frontier: Mapping[str, Any]) -> str:
    """How many threads searched, and by which clock."""
    one = frontier["machine"].get("clock") == "process_time"
    return "one thread, times of the processor" if one else f"{frontier['machine']['threads']} threads"


def _frontier_path(frontier: Mapping[str, Any]) -> str:
    return f"appendix/frontier-{frontier['machine'].get('kind', 'cpu')}.md"


def _frontier_page(frontier: Mapping[str, Any], inputs: ReportInputs) -> str:
    device, kind = _device(frontier), frontier["machine"].get("kind", "cpu")
    sizes = ",".join(str(size) for size in sorted({point["items"] for point in frontier["points"]}))
    plan = "".join(f" --{name} {value}" for name, value in frontier.get("plan", {}).items())
    command = f"genius bench --data BENCH --split {frontier['split']} --device {kind} --sizes {sizes}{plan}"
    pictures = inputs.pictures.get(device, {})
    return _join(
        f"# Hit rate, time and bytes by pool size on {device}",
        _command(frontier.get("command", command), f"frontier-{kind}.json", inputs),
        f"All systems answered the same queries on the same machine ({device}, {_threads(frontier)}).",
        "" if on_cpu(frontier) else frontier_table(frontier).markdown(),  # times of a GPU are comparable
        *(table(frontier).markdown() for table in (time_table, speed_table, hit_table)),
        share_table(frontier).markdown(),
        storage_table(frontier).markdown(),
        "From which pool size a system answers a query faster than exact search:",
        *(f"- {line}" for line in crossover_lines(frontier)),
        *(f"![{caption}](../{path})" for path, caption in pictures.items()),
    )


def _ablations_page(outcome: Mapping[str, Any], inputs: ReportInputs) -> str:
    return _join(
        "# Ablations",
        _command(outcome["command"], "ablations.json", inputs),
        *(table.markdown() for table in ablation_tables(outcome)),
        "Beside the paper's effects of the same changes:",
        *(f"- {line}" for line in agreement(outcome)),
    )


def _seeds_page(inputs: ReportInputs) -> str:
    parts = ["# Several seeds of training"]
    for outcome in inputs.seeds:
        found = outcome["over_seeds"]
        parts.append(_command(outcome["command"], f"seeds-{found['setting']}.json", inputs))
        parts.append(seeds_table(found).markdown())
    return _join(*parts)


def _generative_page(outcome: Mapping[str, Any], inputs: ReportInputs) -> str:
    return _join(
        "# Generative baselines",
        _command(outcome["command"], "generative.json", inputs),
        generative_table(outcome, inputs.results).markdown(),
        curves_table(outcome).markdown(),
    )


def _command(command: str, file: str, inputs: ReportInputs) -> str:
    return f"`{command}`" + (f" ([numbers](../{inputs.numbers}/{file}))" if inputs.numbers else "")


def _join(*parts: str) -> str:
    """Parts with a blank line between them, but none between the lines of a list."""
    out = ""
    shown = [part for part in parts if part]
    for before, part in zip(("", *shown), shown, strict=False):
        tight = part.startswith("- ") and before.startswith("- ")
        out += ("" if not out else "\n" if tight else "\n\n") + part.strip("\n")
    return out + "\n"
