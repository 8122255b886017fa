"""Figures of run files that were made elsewhere: TREC runs against a dataset, no model needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from genius.data.base import Dataset, Row
from genius.errors import BadInput
from genius.evaluate.protocol import DEPTH, Faults, figures, label
from genius.evaluate.results import Entry, Results
from genius.evaluate.trec import Run, match_run, read_run


def score_runs(dataset: Dataset, files: Sequence[Path], *, setting: str, split: str, data: str) -> Results:
    """Figures of each run file on the row whose queries it answers; the file's name is the system's."""
    rows = {row: [query.id for query in dataset.queries(split, row)] for row in dataset.rows(split)}
    pools: dict[Row | None, list[str]] = {}
    entries = []
    for file in files:
        run = read_run(file)
        row = _row_of(run, rows, file)
        key = None if setting == "universal" else row
        if key not in pools:
            pools[key] = [item.id for item in dataset.pool(split, key)]
        pool = pools[key]
        matched = match_run(run, rows[row], pool, DEPTH)
        faults = Faults(
            unanswered=matched.unanswered,
            foreign_queries=matched.foreign_queries,
            foreign_items=matched.foreign_items,
        )
        labels = label(
            row, rows[row], dataset.qrels(split, row), {item: number for number, item in enumerate(pool)}
        )
        made = figures(row, setting, _system(file), labels, [matched.ranked], len(pool), faults)
        entries.append(Entry(made, "", "", "", 0.0, 0.0))
    return Results(
        setting=setting, split=split, data=data, model="run files", fingerprint="", entries=entries,
        reading=list(dataset.report.lines()), instructions="unknown",
    )  # fmt: skip


def _row_of(run: Run, rows: dict[Row, list[str]], file: Path) -> Row:
    """The row that most of the run's queries belong to."""
    shared = {row: sum(query in run for query in queries) for row, queries in rows.items()}
    best = max(shared, key=lambda row: shared[row], default=None)
    if best is None or not shared[best]:
        raise BadInput(f"{file}: none of its {len(run)} queries is in this dataset and split")
    return best


def _system(file: Path) -> str:
    """The system's part of a name such as `mscoco_task0_test_local.exact.trec`, else the whole stem."""
    return file.stem.rpartition(".")[2] or file.stem
