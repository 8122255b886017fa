"""The paper's figures beside ours where rows cannot be matched: by task, and by system on text -> image."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from genius.data.instructions import TASKS
from genius.evaluate.protocol import headline
from genius.evaluate.published import MBEIR_ROWS, TABLE_7, TABLE_8, TABLE_9, Column
from genius.evaluate.published import columns as columns_of
from genius.evaluate.results import Results
from genius.evaluate.tables import UNPUBLISHED, Table

# the paper's name -> ours, and the exact search that each is a share of
SHARES = {"GENIUS": "genius", "GENIUS^R": "decoder+vectors"}
EXACT = ("CLIP-SF", "exact")
GENERATIVE = {
    "GRACE (numeric ID)": "grace-numeric",
    "GRACE (string ID)": "grace-string",
    "GRACE (semantic ID)": "grace-semantic",
    "GRACE (structured ID)": "grace-structured",
    "IRGen": "irgen",
    "GENIUS": "genius",
    "GENIUS^R": "decoder+vectors",
}


def tables(results: Results) -> list[Table]:
    """Shares of exact search by task; generative systems on text -> image."""
    found = results.as_json()
    more = [text_to_image(found)] if set(found["mean"]) & {"irgen", "genius"} else []
    return [shares_by_task(found), *more, published_table(results.setting)]


def published_table(setting: str) -> Table:
    """The columns that the paper prints for the sixteen rows of M-BEIR."""
    shown = columns_of(setting)
    lines = [
        [
            f"{TASKS[task][0]} → {TASKS[task][1]}",
            dataset,
            *(_cell(c.values.get((dataset, task))) for c in shown),
        ]
        for dataset, task in MBEIR_ROWS
    ]
    lines.append(["mean", "16 rows", *(_cell(column.average or column.mean()) for column in shown)])
    names = ", ".join(dict.fromkeys(column.table for column in shown))
    header = ["task", "M-BEIR", *(column.name for column in shown)]
    note = (
        "not run: M-BEIR is no part of this benchmark; `genius eval --data M-BEIR` prints ours beside these"
    )
    return Table(f"The paper's figures, {setting} pool ({names}), %", header, lines, [note], footer=1)


def shares_by_task(results: Mapping[str, Any]) -> Table:
    """How much of exact search the decoder keeps on each task, in the paper and here."""
    columns = {c.name: c for c in (TABLE_8 if results["setting"] == "local" else TABLE_9)}
    rows: dict[tuple[int, str], list[float]] = {}
    for row in results["rows"]:
        rows.setdefault((row["task"], row["system"]), []).append(row[headline(row["dataset"])])
    lines = []
    for task in sorted({task for task, _ in rows} | {task for _, task in columns["GENIUS"].values}):
        line = [f"{TASKS[task][0]} → {TASKS[task][1]}"]
        for theirs, ours in SHARES.items():
            paper = _published(columns, theirs, task), _published(columns, EXACT[0], task)
            own = rows.get((task, ours)), rows.get((task, EXACT[1]))
            line += [_share(*paper), _share(*(None if o is None else fmean(o) for o in own))]
        lines.append(line)
    header = ["task"]
    for theirs, ours in SHARES.items():
        header += [f"{theirs} / CLIP-SF (paper)", f"{ours} / exact (here)"]
    note = f"{UNPUBLISHED}: the paper has no such row, or it was not run here; means over the rows of a task"
    return Table(f"Share of exact search by task, {results['setting']} pool", header, lines, [note])


def text_to_image(results: Mapping[str, Any]) -> Table:
    """Generative systems on text -> image: R@5 in the paper, hit@5 on our rows of that task."""
    own = {(row["dataset"], row["system"]): row["hit@5"] for row in results["rows"] if row["task"] == 0}
    datasets = list(dict.fromkeys(dataset for dataset, _ in own))
    paper = {(line.dataset, line.name): line.values[1] for line in TABLE_7 if line.trained_on == line.dataset}
    lines = []
    for theirs, ours in GENERATIVE.items():
        known = [paper.get((dataset, theirs)) for dataset in ("flickr30k", "mscoco")]
        here = [own.get((dataset, ours)) for dataset in datasets]
        cells = [_cell(value) for value in known]
        cells += ["not run" if value is None else f"{100 * value:.1f}" for value in here]
        lines.append([theirs, ours, *cells])
    header = ["paper", "here", "Flickr30K R@5 (paper)", "COCO R@5 (paper)", *(f"{d} hit@5" for d in datasets)]
    note = (
        "the baselines here keep the identifiers and lessons of the originals on a small decoder, trained "
        "for minutes; the paper's are the published systems with their large models"
    )
    return Table(f"Generative systems, text → image, {results['setting']} pool", header, lines, [note])


def _published(columns: Mapping[str, Column], name: str, task: int) -> float | None:
    values = [value for (_, t), value in columns[name].values.items() if t == task]
    return fmean(values) if values else None


def _cell(value: float | None) -> str:
    return UNPUBLISHED if value is None else f"{value:.1f}"


def _share(part: float | None, whole: float | None) -> str:
    return UNPUBLISHED if part is None or not whole else f"{part / whole:.2f}"
