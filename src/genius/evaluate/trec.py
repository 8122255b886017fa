"""Runs and qrels as TREC files: what other tools read and write.

A run line is `qid Q0 did rank score tag`; a qrels line is `qid 0 did relevance`, M-BEIR adds the task id.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadData, BadInput
from genius.evaluate.metrics import NOTHING

Run = dict[str, list[tuple[str, float]]]  # query id -> (item id, score), best first
Qrels = dict[str, dict[str, int]]  # query id -> item id -> relevance


def read_run(file: Path) -> Run:
    """The run in `file`, each list by falling score, equal scores by rank.

    The score decides, as in trec_eval; a rank that contradicts it is an error, not a silent choice.
    """
    found: dict[str, list[tuple[float, int, str]]] = {}
    seen: set[tuple[str, str]] = set()
    for number, (query, _, item, rank, score, _) in _columns(file, {6}, "qid Q0 did rank score tag"):
        if (query, item) in seen:
            raise BadData(f"{file}, line {number}: item {item} is listed twice for query {query}")
        seen.add((query, item))
        try:
            place, value = int(rank), float(score)
        except ValueError:
            raise BadData(f"{file}, line {number}: rank {rank!r} or score {score!r} is no number") from None
        if math.isnan(value):
            raise BadData(f"{file}, line {number}: the score is NaN, so the order is undefined")
        found.setdefault(query, []).append((-value, place, item))
    for query, entries in found.items():
        entries.sort()
        if any(a[1] >= b[1] for a, b in itertools.pairwise(entries)):
            raise BadData(f"{file}: ranks and scores of query {query} disagree; write the run again")
    return {query: [(item, -minus) for minus, _, item in entries] for query, entries in found.items()}


def write_run(file: Path, run: Mapping[str, Sequence[tuple[str, float]]], tag: str) -> None:
    """Write `run` to `file`; a reader sees the old file or the whole new one."""
    if not tag or any(c.isspace() for c in tag):
        raise BadInput(f"run tag {tag!r}: use one word")
    _write(
        file,
        (
            f"{_word(query)} Q0 {_word(item)} {rank} {score!r} {tag}"
            for query, entries in run.items()
            for rank, (item, score) in enumerate(entries, start=1)
        ),
    )


def read_qrels(file: Path) -> Qrels:
    """The qrels in `file`, relevance 0 included."""
    found: Qrels = {}
    for number, (query, _, item, relevance, *_) in _columns(file, {4, 5}, "qid 0 did relevance [task]"):
        judged = found.setdefault(query, {})
        try:
            grade = int(relevance)
        except ValueError:
            raise BadData(f"{file}, line {number}: relevance {relevance!r} is no whole number") from None
        if judged.setdefault(item, grade) != grade:
            raise BadData(f"{file}, line {number}: {query} and {item} were judged differently before")
    return found


def write_qrels(file: Path, qrels: Mapping[str, Mapping[str, int]], task: int | None = None) -> None:
    """Write `qrels` to `file`, with M-BEIR's fifth column when `task` is given."""
    end = "" if task is None else f" {task}"
    _write(
        file,
        (
            f"{_word(query)} 0 {_word(item)} {relevance}{end}"
            for query, judged in qrels.items()
            for item, relevance in judged.items()
        ),
    )


@dataclass(frozen=True, slots=True)
class Matched:
    """A run set on the rows of a pool, and what of it did not fit."""

    ranked: NDArray[np.int64]  # (queries, depth)
    unanswered: int  # queries of the dataset that the run does not have; they count as misses
    foreign_queries: int  # queries of the run that the dataset does not have; left out
    foreign_items: int  # places whose item is not in the pool; they keep their place and count as wrong


def match_run(run: Run, queries: Sequence[str], pool: Sequence[str], depth: int) -> Matched:
    """The first `depth` places of each query's list as pool rows; refused when the run is of another dataset.

    A place whose item the pool lacks stays taken (a number past the pool's end): dropping it would move the
    items behind it up.
    """
    row_of = {item: row for row, item in enumerate(pool)}
    known = [query for query in queries if query in run]
    if not known:
        raise BadInput(
            f"none of the run's {len(run)} queries is among the dataset's {len(queries)}: "
            "it is a run of another dataset or split"
        )
    ranked = np.full((len(queries), depth), NOTHING, dtype=np.int64)
    foreign = places = 0
    for row, query in enumerate(queries):
        for place, (item, _) in enumerate(run.get(query, [])[:depth]):
            places += 1
            number = row_of.get(item, -1)
            if number < 0:
                number = len(pool) + place
                foreign += 1
            ranked[row, place] = number
    if foreign == places:
        raise BadInput(
            f"none of the run's items is in the pool of {len(pool)}: it was made with another pool"
        )
    asked = set(queries)
    return Matched(ranked, len(queries) - len(known), sum(query not in asked for query in run), foreign)


def _columns(file: Path, widths: set[int], shape: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, columns) of each line that is not blank."""
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                columns = line.split()
                if not columns:
                    continue
                if len(columns) not in widths:
                    raise BadData(f"{file}, line {number}: {len(columns)} columns, but a line is `{shape}`")
                yield number, columns
    except FileNotFoundError:
        raise BadData(f"no file {file}") from None
    except UnicodeDecodeError:
        raise BadData(f"{file} is not a text file in UTF-8") from None


def _word(name: str) -> str:
    if not name or any(c.isspace() for c in name):
        raise BadInput(f"id {name!r} does not fit a TREC file: ids there have no blanks")
    return name


def _write(file: Path, lines: Iterable[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as out:
            out.writelines(f"{line}\n" for line in lines)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
