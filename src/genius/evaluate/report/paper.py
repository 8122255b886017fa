"""The paper's figures beside ours where rows cannot be matched: by task, and by system on text -> image."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from genius.evaluate.paper import columns, mbeir_rows, paper, table
from genius.evaluate.protocol import headline
from genius.evaluate.report.tables import NOT_RUN, UNPUBLISHED, Table, percent, published, task_name

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


def text_to_image_table(results: Mapping[str, Any]) -> Table:
    """Generative systems on text -> image: R@5 in the paper, hit@5 on our rows of that task."""
    own = {(row["dataset"], row["system"]): row["hit@5"] for row in results["rows"] if row["task"] == 0}
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
        "the baselines here keep the identifiers and objectives of the originals on a small decoder, trained "
        "for minutes; the paper's are the published systems with their large models"
    )
    return Table(f"Generative systems, text → image, {results['setting']} pool", header, lines, [note])
