"""Results as tables: our systems beside the paper's published columns, for a terminal or in Markdown.

Tables are made from the JSON form of results, so that a saved file prints like a fresh run. Figures are in
percent, as in the paper. What was not run is marked, never left blank.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from genius.data.instructions import TASKS
from genius.evaluate.protocol import Faults, headline, reported_cuts
from genius.evaluate.published import MBEIR_ROWS, Column, Row, columns, remark

if TYPE_CHECKING:
    from rich.table import Table as RichTable

NOT_RUN = "not run"
NOT_MADE_FOR = "n/a"  # the system is not made for this task
UNPUBLISHED = "–"
_LEARNED_ON_POOL = {"pq", "ivf-pq", "ivf-pq-best", "faiss-rq"}
_METHODS = {"generate": "decoder", "lookup": "lookup", "both": "decoder and lookup"}


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a header, lines of cells, and notes under them."""

    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    footer: int = 0  # how many of the last lines sum up the others

    def markdown(self) -> str:
        """The table in Markdown, figures to the right."""
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


def results_table(
    results: Mapping[str, Any], *, intervals: bool = False, only: Collection[str] = ()
) -> Table:
    """Table 1 (local) or Table 2 (universal): rows by task, our systems, then the published columns.

    `only` keeps some of the systems.
    """
    published = columns(results["setting"]) if _is_mbeir(results) else ()
    systems = [system for system in results["mean"] if not only or system in only]
    cells = {(row["dataset"], row["task"], row["system"]): row for row in results["rows"]}
    rows = _row_order(results, bool(published))
    lines = [
        [_task(task), f"{dataset} {headline(dataset)}"]
        + [_cell(cells.get((dataset, task, s)), (dataset, task), s, results, intervals) for s in systems]
        + [_published(column, (dataset, task)) for column in published]
        for dataset, task in rows
    ]
    lines.append(["mean", _mean_label(results), *_means(results, systems, intervals, published)])
    if published:
        sixteen = [column.average or column.mean() for column in published]
        shown = [UNPUBLISHED if value is None else f"{value:.1f}" for value in sixteen]
        lines.append(["mean", "all 16 rows of the paper", *[""] * len(systems), *shown])
    lines.append(
        ["bytes per item", "measured", *(_bytes(results, s) for s in systems), *[""] * len(published)]
    )
    header = ["task", "row", *systems, *(f"{column.name} (paper)" for column in published)]
    title = f"{results['setting'].capitalize()} pool, {results['split']} split, %"
    return Table(title, header, lines, _notes(results, published), footer=3 if published else 2)


def cuts_table(results: Mapping[str, Any], system: str) -> Table:
    """All reported figures of one system: hit rate and true recall at each k, MRR, nDCG."""
    lines = []
    for row in results["rows"]:
        if row["system"] == system:
            k1, k2, k3 = reported_cuts(row["dataset"])
            hits = [f"{100 * row[f'hit@{k}']:.1f}" for k in (k1, k2, k3)]
            recalls = [f"{100 * row[f'recall@{k}']:.1f}" for k in (k1, k2, k3)]
            others = [f"{100 * row['mrr']:.1f}", f"{100 * row['ndcg@10']:.1f}"]
            name = f"{row['dataset']} @{k1}/{k2}/{k3}"
            lines.append([_task(row["task"]), name, f"{row['queries']:,}", *hits, *recalls, *others])
    header = ["task", "row", "queries", "hit", "hit", "hit", "recall", "recall", "recall", "MRR", "nDCG@10"]
    return Table(f"{system}: {results['setting']} pool, {results['split']} split, %", header, lines)


def frontier_table(frontier: Mapping[str, Any]) -> Table:
    """Accuracy, time and bytes of every system at every pool size; crossovers as notes."""
    lines = []
    for point in frontier["points"]:
        real = "" if point["real"] == point["items"] else f", {point['real']:,} real"
        lines.append([
            f"{point['items']:,}{real}",
            point["system"],
            f"{100 * point['hit_at_5']:.1f}",
            f"{point['milliseconds']:.2f}",
            f"{point['slow_milliseconds']:.2f}",
            f"{point['queries_per_second']:,.0f}",
            f"{point['bytes_per_item']:,.1f}",
            f"{point['build_seconds']:.1f}",
        ])  # fmt: skip
    header = ["items", "system", "hit@5 %", "ms", "ms, 95 %", "queries/s", "bytes/item", "build s"]
    machine, model = frontier["machine"], frontier["model"]
    on_cpu = machine.get("kind", "cpu") == "cpu"
    notes = [
        f"model {model['name']} ({model['fingerprint'][:12]}), data {frontier['data']}, "
        f"{frontier['queries']:,} queries on {machine['device']}, {machine['threads']} threads",
        f"times are without encoding the query, which takes {frontier['encoding_milliseconds']:.1f} ms",
        "beyond the real items, pools are filled with jittered copies: compare times there, not hit rates",
        *(["FAISS ran on the CPU beside it"] if _has_faiss(frontier) and not on_cpu else []),
        *(each["text"] for each in frontier["crossovers"]),
    ]
    return Table("Accuracy, latency and bytes at growing pool sizes", header, lines, notes)


def _has_faiss(frontier: Mapping[str, Any]) -> bool:
    return any(point["system"] in {"faiss-flat", "hnsw", *_LEARNED_ON_POOL} for point in frontier["points"])


def _cell(
    found: Mapping[str, Any] | None, row: Row, system: str, results: Mapping[str, Any], intervals: bool
) -> str:
    if found is None:
        left = [e for e in results["not_run"] if (e["dataset"], e["task"], e["system"]) == (*row, system)]
        return NOT_MADE_FOR if left else NOT_RUN
    return _figure(found[found["headline"]], found["interval"] if intervals else None)


def _figure(value: float, interval: Sequence[float] | None = None) -> str:
    text = f"{100 * value:.1f}"
    return text if interval is None else f"{text} [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def _published(column: Column, row: Row) -> str:
    value = column.values.get(row)
    if value is None:
        return UNPUBLISHED
    return f"{value:.1f}" + ("*" if remark(column.table, column.name, row) else "")


def _means(
    results: Mapping[str, Any], systems: Sequence[str], intervals: bool, published: Sequence[Column]
) -> list[str]:
    ours = []
    for system in systems:
        mean = results["mean"][system]
        text = _figure(mean["headline"], mean["interval"] if intervals else None)
        ours.append(text if mean["complete"] else f"{text} ({mean['rows']} rows)")
    run = {(row["dataset"], row["task"]) for row in results["rows"]}
    theirs = []
    for column in published:
        values = [column.values[row] for row in run if row in column.values]
        theirs.append(f"{sum(values) / len(values):.1f}" if len(values) == len(run) else UNPUBLISHED)
    return ours + theirs


def _mean_label(results: Mapping[str, Any]) -> str:
    return f"{len({(row['dataset'], row['task']) for row in results['rows']})} rows run"


def _bytes(results: Mapping[str, Any], system: str) -> str:
    return f"{results['mean'][system]['bytes_per_item']:,.1f}"


def _notes(results: Mapping[str, Any], published: Sequence[Column]) -> list[str]:
    model = results["model"]
    notes = [f"model {model['name']} ({model['fingerprint'][:12]}), data {results['data']}"]
    if results["limit"]:
        notes.append(f"at most {results['limit']} queries of each row: a sample, not the full protocol")
    notes.append(f"instructions: {results['instructions']}")
    for name, settings in results["systems"].items():
        if "method" in settings:
            rerank = "not re-ranked" if settings["rerank"] == "none" else f"re-ranked by {settings['rerank']}"
            notes.append(
                f"{name}: search by {_METHODS[settings['method']]}, beam {settings['beam']}, {rerank}"
            )
    for name, mean in results["mean"].items():
        if "seeds" in mean:
            notes.append(
                f"{name}: mean of {len(mean['seeds'])} seeds, standard deviation "
                f"{100 * mean['seed_deviation']:.1f}"
            )
    if _LEARNED_ON_POOL & set(results["mean"]):
        notes.append(
            "PQ, IVF-PQ and FAISS's RQ learn their centroids from the searched pool itself, and those are "
            "not counted in its bytes; ours were learned on other items, and are part of the model"
        )
    if published:
        tables = ", ".join(dict.fromkeys(column.table for column in published))
        notes.append(f"(paper): as printed in {tables}; {UNPUBLISHED} where the paper has no figure")
    for column in published:
        for row in column.values:
            if text := remark(column.table, column.name, row):
                notes.append(f"* {column.name}, {row[0]} {row[1]}: {text}")
    faults: dict[str, None] = {}
    for row in results["rows"]:
        for line in Faults(**row["faults"]).lines():
            faults[f"{row['dataset']} {row['task']}: {line}"] = None
    return [*notes, *faults, *results["reading"]]


def _row_order(results: Mapping[str, Any], mbeir: bool) -> list[Row]:
    run = {(row["dataset"], row["task"]) for row in results["rows"]}
    left = {(each["dataset"], each["task"]) for each in results["not_run"]}
    known = list(MBEIR_ROWS) if mbeir else []
    others = sorted((run | left) - set(known), key=lambda row: (row[1], row[0]))
    return known + others


def _is_mbeir(results: Mapping[str, Any]) -> bool:
    return any((row["dataset"], row["task"]) in MBEIR_ROWS for row in results["rows"])


def _task(task: int) -> str:
    have, want = TASKS[task]
    return f"{have} → {want}"
