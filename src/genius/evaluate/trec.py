"""Runs and qrels as TREC files: what other tools read and write.

A run line is `qid Q0 did rank score tag`; UniIR adds the task id. A qrels line is `qid 0 did relevance`;
M-BEIR adds the task id.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadData, BadInput
from genius.evaluate.metrics import FOREIGN, NO_ITEM
from genius.evaluate.protocol import Faults
from genius.files import storage_errors, write_file

Run = dict[str, list[tuple[str, float]]]  # query id -> (item id, score), best first


def read_run(file: Path) -> Run:
    """The run in `file`, each list by falling score, equal scores by rank.

    The score decides, as in trec_eval; a rank that contradicts it is an error, not a silent choice.
    """
    found: dict[str, list[tuple[float, int, str]]] = {}
    seen: set[tuple[str, str]] = set()
    for number, (query, _, item, rank, score, *_) in _columns(file):
        if (query, item) in seen:
            raise BadData(f"{file}, line {number}: item {item} is listed twice for query {query}")
        seen.add((query, item))
        try:
            position, value = int(rank), float(score)
        except ValueError:
            raise BadData(f"{file}, line {number}: rank {rank!r} or score {score!r} is no number") from None
        if math.isnan(value):
            raise BadData(f"{file}, line {number}: the score is NaN, so the order is undefined")
        found.setdefault(query, []).append((-value, position, item))
    for query, entries in found.items():
        entries.sort()
        if any(a[1] >= b[1] for a, b in itertools.pairwise(entries)):
            raise BadData(f"{file}: ranks and scores of query {query} disagree; write the run again")
    return {query: [(item, -minus) for minus, _, item in entries] for query, entries in found.items()}


def write_run(file: Path, run: Mapping[str, Sequence[tuple[str, float]]], tag: str) -> None:
    """Write `run` to `file`; a reader sees the old file or the whole new one."""
    if not tag or any(c.isspace() for c in tag):
        raise BadInput(f"run tag {tag!r}: use one word")
    lines = [
        f"{_word(query)} Q0 {_word(item)} {rank} {score!r} {tag}\n"
        for query, entries in run.items()
        for rank, (item, score) in enumerate(entries, start=1)
    ]
    with storage_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, ["".join(lines).encode()])


def match_run(
    run: Run, queries: Sequence[str], pool: Sequence[str], depth: int
) -> tuple[NDArray[np.int64], Faults]:
    """The first `depth` items of each query as pool rows (queries, depth), and what of the run did not fit.

    Refused when the run is of another dataset. An item that the pool lacks keeps its position, under a number
    that no judged item has: dropping it would move the items behind it up, and it is no hit, even if the
    qrels name it.
    """
    row_of = {item: row for row, item in enumerate(pool)}
    known = [query for query in queries if query in run]
    if not known:
        raise BadInput(
            f"none of the run's {len(run)} queries is among the dataset's {len(queries)}: "
            "it is a run of another dataset or split"
        )
    ranked = np.full((len(queries), depth), NO_ITEM, dtype=np.int64)
    for row, query in enumerate(queries):
        for position, (item, _) in enumerate(run.get(query, [])[:depth]):
            ranked[row, position] = row_of.get(item, FOREIGN + position)
    foreign = int((ranked >= FOREIGN).sum())
    if foreign == (ranked != NO_ITEM).sum():
        raise BadInput(
            f"none of the run's items is in the pool of {len(pool)}: it was made with another pool"
        )
    extra = len(run.keys() - set(queries))
    unanswered = len(queries) - len(known)
    return ranked, Faults(unanswered=unanswered, foreign_queries=extra, foreign_items=foreign)


def _columns(file: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, columns) of each line that is not blank."""
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                columns = line.split()
                if columns and len(columns) not in (6, 7):
                    raise BadData(
                        f"{file}, line {number}: {len(columns)} columns, but a line is "
                        "`qid Q0 did rank score tag`, to which UniIR adds the task"
                    )
                if columns:
                    yield number, columns
    except FileNotFoundError:
        raise BadData(f"no file {file}") from None
    except UnicodeDecodeError:
        raise BadData(f"{file} is not a text file in UTF-8") from None


def _word(name: str) -> str:
    if not name or any(c.isspace() for c in name):
        raise BadInput(f"id {name!r} does not fit a TREC file: ids there have no blanks")
    return name
