"""Results as tables: our systems beside the paper's published columns, for a terminal or in Markdown.

Metrics are in percent, as in the paper. What was not run is marked, never left blank.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from genius.data.instructions import TASKS
from genius.evaluate.paper import Column, Row, columns, mbeir_rows, paper, table
from genius.evaluate.protocol import Faults, headline, reported_cutoffs
from genius.evaluate.systems import CODE_BASELINES

if TYPE_CHECKING:
    from rich.table import Table as RichTable

NOT_RUN = "not run"
UNSUPPORTED = "n/a"  # the system is not made for this task
UNPUBLISHED = "–"
# the paper's name -> ours, and the exact search that each is a share of
SHARES = {"GENIUS": "genius", "GENIUS^R": "decoder+vectors"}
EXACT = ("CLIP-SF", "exact")
TEXT_TO_IMAGE = {
    "GRACE (numeric ID)": "grace-numeric",
    "GRACE (string ID)": "grace-string",
    "GRACE (semantic ID)": "grace-semantic",
    "GRACE (structured ID)": "grace-structured",
    "IRGen": "irgen",
    **SHARES,
}
_METHODS = {"generate": "decoder", "lookup": "lookup", "both": "decoder and lookup"}


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a header, lines of cells, and notes under them."""

    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    footer: int = 0  # how many of the last lines summarize the others

    def markdown(self) -> str:
        """The table in Markdown, numbers to the right."""
        rule = ["---" if n < 2 else "---:" for n in range(len(self.header))]
        shown = [self.header, rule, *self.lines]
        body = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in shown)
        notes = "".join(f"\n- {note}" for note in self.notes)
        return f"**{self.title}**\n\n{body}\n" + (f"{notes}\n" if notes else "")

    def rich(self) -> RichTable:
        """The table for a terminal."""
        from rich.table import Table as RichTable

        table = RichTable(title=self.title, caption="\n".join(self.notes) or None, caption_justify="left")
        for number, name in enumerate(self.header):
            table.add_column(name, justify="left" if number < 2 else "right", no_wrap=number < 2)
        for number, line in enumerate(self.lines):
            table.add_row(*line, end_section=number == len(self.lines) - self.footer - 1)
        return table


def percent(value: float | None, interval: Sequence[float] | None = None, sign: str = "") -> str:
    """A fraction in percent with its interval; `sign` is + for differences."""
    if value is None:
        return UNPUBLISHED
    text = f"{100 * value:{sign}.1f}"
    if interval is None:
        return text
    return f"{text} [{100 * interval[0]:{sign}.1f}, {100 * interval[1]:{sign}.1f}]"


def published(value: float | None) -> str:
    """A figure of the paper, which has percent already."""
    return UNPUBLISHED if value is None else f"{value:.1f}"


def task_name(task: int) -> str:
    """The task as `text → image`."""
    return " → ".join(TASKS[task])


def results_table(
    results: Mapping[str, Any], *, intervals: bool = False, only: Collection[str] = ()
) -> Table:
    """Table 1 (local) or Table 2 (universal): rows by task, our systems, then the published columns.

    `only` keeps some of the systems.
    """
    run = {(row["dataset"], row["task"]) for row in results["rows"]}
    paper = columns(results["setting"]) if run & set(mbeir_rows()) else ()
    systems = [system for system in results["mean"] if not only or system in only]
    cells = {(row["dataset"], row["task"], row["system"]): row for row in results["rows"]}
    unsupported = {(each["dataset"], each["task"], each["system"]) for each in results["not_run"]}

    def cell(row: Row, system: str) -> str:
        found = cells.get((*row, system))
        if found is None:
            return UNSUPPORTED if (*row, system) in unsupported else NOT_RUN
        return percent(found[found["headline"]], found["interval"] if intervals else None)

    lines = [
        [task_name(task), f"{dataset} {headline(dataset)}"]
        + [cell((dataset, task), system) for system in systems]
        + [_published_cell(column, (dataset, task)) for column in paper]
        for dataset, task in _row_order(results, run, bool(paper))
    ]
    means = [_mean_cell(results["mean"][system], intervals) for system in systems]
    for column in paper:
        values = [column.values[row] for row in run if row in column.values]
        means.append(published(sum(values) / len(values) if len(values) == len(run) else None))
    lines.append(["mean", f"{len(run)} rows run", *means])
    if paper:
        averages = [published(column.average or column.mean()) for column in paper]
        lines.append(["mean", "all 16 rows of the paper", *[""] * len(systems), *averages])
    sizes = [results["mean"][system]["bytes_per_item"] for system in systems]
    sizes = [f"{size:,.1f}" if size else UNPUBLISHED for size in sizes]  # of a run file nothing is known
    lines.append(["bytes per item", "measured", *sizes, *[""] * len(paper)])
    header = ["task", "row", *systems, *(f"{column.name} (paper)" for column in paper)]
    title = f"{results['setting'].capitalize()} pool, {results['split']} split, %"
    return Table(title, header, lines, _notes(results, paper), footer=3 if paper else 2)


def cutoffs_table(results: Mapping[str, Any], system: str) -> Table:
    """All reported metrics of one system: hit rate and true recall at each k, MRR, nDCG."""
    lines = []
    for row in results["rows"]:
        if row["system"] == system:
            cutoffs = reported_cutoffs(row["dataset"])
            names = [f"{kind}@{k}" for kind in ("hit", "recall") for k in cutoffs]
            name = f"{row['dataset']} @{'/'.join(map(str, cutoffs))}"
            metrics = [percent(row[metric]) for metric in (*names, "mrr", "ndcg@10")]
            lines.append([task_name(row["task"]), name, f"{row['queries']:,}", *metrics])
    header = ["task", "row", "queries", "hit", "hit", "hit", "recall", "recall", "recall", "MRR", "nDCG@10"]
    return Table(f"{system}: {results['setting']} pool, {results['split']} split, %", header, lines)


def overview_table(settings: Sequence[Mapping[str, Any]]) -> Table:
    """Every system: its mean in each setting, the share of exact search, and its bytes."""
    means = [results["mean"] for results in settings]
    header = ["system", "bytes per item"]
    for results in settings:
        header += [f"{results['setting']} %", "share of exact"]
    lines = []
    for name in dict.fromkeys(name for mean in means for name in mean):
        line = [name, f"{max(mean[name]['bytes_per_item'] for mean in means if name in mean):,.1f}"]
        for mean in means:
            exact = mean.get("exact", {}).get("headline", 0.0)
            share = exact and name in mean and mean[name]["complete"]
            line.append(_mean_cell(mean[name], intervals=True) if name in mean else NOT_RUN)
            line.append(f"{mean[name]['headline'] / exact:.2f}" if share else "")
        lines.append(line)
    notes = ["a system with a number of rows beside its mean is made for those rows only"]
    return Table("All systems, mean over the rows", header, lines, notes)


def comparison_table(results: Mapping[str, Any]) -> Table:
    """Each of ours against others at about the same bytes, row by row."""
    lines = []
    for each in results["comparisons"]:
        rows = {v: [row for row in each["rows"] if row["verdict"] == v] for v in ("better", "even", "worse")}
        won, lost = (
            "; ".join(f"{r['dataset']} {r['task']} {difference(r)}" for r in rows[v]) or UNPUBLISHED
            for v in ("better", "worse")
        )
        sizes = " / ".join(f"{size:,.0f}" for size in each["bytes_per_item"])
        mean = difference(each["mean"])
        lines.append([each["one"], each["other"], sizes, mean, won, str(len(rows["even"])), lost])
    header = ["ours", "against", "bytes per item", "mean difference", "rows won", "rows open", "rows lost"]
    return Table(f"Differences in points, {results['setting']} pool", header, lines)


def difference(found: Mapping[str, Any]) -> str:
    """A difference of two systems in points, with its interval."""
    return percent(found["difference"], found["interval"], "+")


def _mean_cell(mean: Mapping[str, Any], intervals: bool) -> str:
    text = percent(mean["headline"], mean["interval"] if intervals else None)
    return text if mean["complete"] else f"{text} ({mean['rows']} rows)"


def _published_cell(column: Column, row: Row) -> str:
    return published(column.values.get(row)) + ("*" if column.remark(row) and row in column.values else "")


def _notes(results: Mapping[str, Any], paper: Sequence[Column]) -> list[str]:
    model = results["model"]
    notes = [f"model {model['name']} ({model['fingerprint'][:12]}), data {results['data']}"]
    if results["limit"]:
        notes.append(f"at most {results['limit']} queries of each row: a sample, not the full protocol")
    notes.append(f"instructions: {results['instructions']}")
    for name, settings in results["systems"].items():
        if "method" in settings:
            rerank = "not re-ranked" if settings["rerank"] == "none" else f"re-ranked by {settings['rerank']}"
            method = _METHODS[settings["method"]]
            notes.append(f"{name}: search by {method}, beam {settings['beam']}, {rerank}")
    for name, mean in results["mean"].items():
        if "seeds" in mean:
            deviation = f"standard deviation {percent(mean['seed_deviation'])}"
            notes.append(f"{name}: mean of {len(mean['seeds'])} seeds, {deviation}")
    for name, by_score in results.get("chosen_on_val", {}).items():
        figures = ", ".join(f"{score} {percent(value)}" for score, value in by_score.items())
        notes.append(
            f"{name}: scored by {max(by_score, key=by_score.__getitem__)}, chosen on val ({figures})"
        )
    if set(CODE_BASELINES) & set(results["mean"]):
        notes.append(
            "ivf-pq, pq, faiss-rq and fitted+… learn their centroids from the searched pool, …-train and our "
            "other systems from train items; centroids are not counted in the bytes of any of them"
        )
    if paper:
        tables = ", ".join(dict.fromkeys(column.table for column in paper))
        notes.append(f"(paper): as printed in {tables}; {UNPUBLISHED} where the paper has no figure")
    for column in paper:
        for row in column.values:
            if text := column.remark(row):
                notes.append(f"* {column.name}, {row[0]} {row[1]}: {text}")
    faults: dict[str, None] = {}
    for row in results["rows"]:
        for line in Faults(**row["faults"]).lines():
            faults[f"{row['dataset']} {row['task']}: {line}"] = None
    return [*notes, *faults, *results["reading"]]


def _row_order(results: Mapping[str, Any], run: set[Row], mbeir: bool) -> list[Row]:
    left = {(each["dataset"], each["task"]) for each in results["not_run"]}
    known = list(mbeir_rows()) if mbeir else []
    return known + sorted((run | left) - set(known), key=lambda row: (row[1], row[0]))


def published_table(setting: str) -> Table:
    """The columns that the paper prints for the sixteen rows of M-BEIR."""
    shown = columns(setting)
    lines = [
        [task_name(task), dataset, *(published(c.values.get((dataset, task))) for c in shown)]
        for dataset, task in mbeir_rows()
    ]
    lines.append(["mean", "16 rows", *(published(column.average or column.mean()) for column in shown)])
    names = ", ".join(dict.fromkeys(column.table for column in shown))
    header = ["task", "M-BEIR", *(column.name for column in shown)]
    note = (
        "not run: M-BEIR is no part of this benchmark; `genius eval --data M-BEIR` prints ours beside these"
    )
    return Table(f"The paper's figures, {setting} pool ({names}), %", header, lines, [note], footer=1)


def shares_table(results: Mapping[str, Any]) -> Table:
    """How much of exact search the decoder keeps on each task, in the paper and here."""
    printed = table("supplement Table 8" if results["setting"] == "local" else "supplement Table 9")
    theirs: dict[tuple[int, str], list[float]] = {}
    for column in printed:
        for (_, task), value in column.values.items():
            theirs.setdefault((task, column.name), []).append(value)
    ours: dict[tuple[int, str], list[float]] = {}
    for row in results["rows"]:
        ours.setdefault((row["task"], row["system"]), []).append(row[headline(row["dataset"])])
    lines = []
    for task in sorted({task for task, _ in (*ours, *theirs)}):
        line = [task_name(task)]
        for name, own in SHARES.items():
            line += [_share(theirs, task, name, EXACT[0]), _share(ours, task, own, EXACT[1])]
        lines.append(line)
    header = ["task"]
    for name, own in SHARES.items():
        header += [f"{name} / {EXACT[0]} (paper)", f"{own} / {EXACT[1]} (here)"]
    note = f"{UNPUBLISHED}: the paper has no such row, or it was not run here; means over the rows of a task"
    return Table(f"Share of exact search by task, {results['setting']} pool", header, lines, [note])


def _share(values: Mapping[tuple[int, str], list[float]], task: int, part: str, whole: str) -> str:
    if (task, part) not in values or not fmean(values.get((task, whole), [0.0])):
        return UNPUBLISHED
    return f"{fmean(values[task, part]) / fmean(values[task, whole]):.2f}"


def text_to_image_table(results: Mapping[str, Any], generative: Mapping[str, Any] | None = None) -> Table:
    """Generative systems on text -> image: R@5 in the paper, hit@5 on our rows of that task.

    `generative` are the baselines as benchmarks/generative.py trains them.
    """
    own = {(row["dataset"], row["system"]): row["hit@5"] for row in results["rows"] if row["task"] == 0}
    for name, found in (generative or {"baselines": {}})["baselines"].items():
        rows = found["test"][results["setting"]]["rows"]
        own |= {(row["dataset"], name): row["hit@5"] for row in rows if row["task"] == 0}
    datasets = list(dict.fromkeys(dataset for dataset, _ in own))
    theirs = {
        (line["dataset"], line["name"]): line["values"][1]
        for line in paper()["text_to_image"]
        if line["table"] == "supplement Table 7" and line["trained_on"] == line["dataset"]
    }
    lines = []
    for name, ours in TEXT_TO_IMAGE.items():
        cells = [published(theirs.get((dataset, name))) for dataset in ("flickr30k", "mscoco")]
        values = [own.get((dataset, ours)) for dataset in datasets]
        lines.append([name, ours, *cells, *(NOT_RUN if v is None else percent(v) for v in values)])
    header = ["paper", "here", "Flickr30K R@5 (paper)", "COCO R@5 (paper)", *(f"{d} hit@5" for d in datasets)]
    note = (
        "the baselines here keep the identifiers and objectives of the originals on a decoder like ours, "
        "with as many samples; the paper's are the published systems with their large models"
    )
    return Table(f"Generative systems, text → image, {results['setting']} pool", header, lines, [note])
