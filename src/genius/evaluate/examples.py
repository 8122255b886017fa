"""Training examples for baselines that learn: queries of the train split and the items they ask for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Dataset, LabelledQuery
from genius.errors import BadInput
from genius.evaluate.contents import read_items, read_queries
from genius.evaluate.encoding import Encoding, Floats

SPLIT = "train"


@dataclass(frozen=True, slots=True)
class Examples:
    """Vectors of queries and items, and which item each query asks for: one pair per row of `pairs`."""

    queries: Floats  # (queries, dim), phi
    items: Floats  # (items, dim), phi
    item_ids: list[str]
    pairs: NDArray[np.int64]  # (pairs, 2): query row, item row
    digest: str


def read_examples(dataset: Dataset, encoding: Encoding, tasks: Collection[int], limit: int = 0) -> Examples:
    """The train queries of these tasks with their positives; at most `limit` queries of each row."""
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
    found = read_items((i for i in dataset.pool(SPLIT) if i.id in wanted), fuses=encoding.fuses)
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
