"""What baselines that memorize learn from: train queries, the items they ask for, and the items to be found.

The items to be found are those of the union pool, in both settings: like GENIUS, such a system is then
trained once and searches each row's own pool by holding it to the identifiers that this pool has.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Dataset, LabelledQuery
from genius.data.instructions import TASKS
from genius.errors import BadInput
from genius.evaluate.contents import read_items, read_queries
from genius.evaluate.encoding import Encoding, Floats

SPLIT = "train"


@dataclass(frozen=True, slots=True)
class Examples:
    """Vectors of queries and items, and which item each query asks for: one pair per row of `pairs`."""

    queries: Floats  # (queries, dim), phi
    items: Floats  # (items, dim), phi: those that are asked for, and others to memorize
    item_ids: list[str]
    pairs: NDArray[np.int64]  # (pairs, 2): query row, item row
    digest: str


def read_examples(
    dataset: Dataset, encoding: Encoding, tasks: Collection[int], limit: int = 0, split: str = ""
) -> Examples:
    """The train queries of these tasks with their positives; at most `limit` queries of each row.

    Items of the modality that the tasks ask for are added from the union pool of `split`.
    """
    if SPLIT not in dataset.splits():
        raise BadInput(
            f"this system learns from a {SPLIT} split, and the data has none: leave the system out"
        )
    queries: list[LabelledQuery] = []
    for row in dataset.rows(SPLIT):
        if row.task in tasks:
            queries += islice(dataset.queries(SPLIT, row), limit or None)
    if not queries:
        raise BadInput(f"the {SPLIT} split has no queries of task {', '.join(map(str, sorted(tasks)))}")
    wanted = {item for query in queries for item in query.positives}
    modalities = {str(TASKS[task][1]) for task in tasks}
    more = (i for i in dataset.pool(split) if str(i.modality) in modalities) if split else ()
    asked_for = (i for i in dataset.pool(SPLIT) if i.id in wanted)
    items = {item.id: item for item in chain(asked_for, more)}
    found = read_items(items.values(), fuses=encoding.fuses)
    asked = read_queries(queries, lambda q: dataset.instructions.chosen(q).sentence, fuses=encoding.fuses)
    pool, questions = encoding.pool(found), encoding.questions(asked)
    row_of = {item: row for row, item in enumerate(pool.ids)}
    pairs = [
        (number, row_of[item])
        for number, query in enumerate(queries)
        if questions.askable[number]
        for item in query.positives
        if item in row_of
    ]
    if not pairs:
        raise BadInput(f"no {SPLIT} query has a readable positive in the {SPLIT} pool")
    digest = f"{pool.digest} {questions.digest}"
    return Examples(questions.phi, pool.phi, list(pool.ids), np.array(pairs, dtype=np.int64), digest)
