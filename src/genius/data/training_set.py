"""Queries and items of a training split as index arrays over their distinct images and texts.

Every stage trains from this: stage 0 reads the images and texts themselves, stages 1 and 2 their vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Dataset
from genius.data.instructions import default_instruction, query_text
from genius.errors import BadData
from genius.types import Modality

Rows = NDArray[np.int64]
MODALITIES = tuple(Modality)


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Rows of `images` and `texts` (-1: absent) for every query and item, and the positives of each query."""

    images: Sequence[Path]  # distinct
    texts: Sequence[str]  # distinct, cleaned
    query_image: Rows  # (queries,)
    query_texts: Rows  # (queries, variants): the text under each instruction; shorter lists repeat
    query_task: Rows  # (queries,): row of `tasks`
    query_want: Rows  # (queries,): wanted modality, in the order of Modality
    item_image: Rows  # (items,)
    item_text: Rows  # (items,)
    item_modality: Rows  # (items,), in the order of Modality
    offsets: Rows  # (queries + 1,) into `positives`
    positives: Rows  # item rows
    tasks: Sequence[str]
    query_ids: Sequence[str]
    item_ids: Sequence[str]

    def query_weights(self, balance: float) -> NDArray[np.float64]:
        """How often each query is drawn: a task counts with its size to the power `balance` (1: as it is)."""
        sizes = np.bincount(self.query_task, minlength=len(self.tasks)).astype(np.float64)
        weights = (sizes**balance / np.maximum(sizes, 1))[self.query_task]
        return np.asarray(weights / weights.sum(), dtype=np.float64)


class _Table:
    """Distinct values in order of first sight, and their rows."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def row(self, value: str | None) -> int:
        return self.rows.setdefault(value, len(self.rows)) if value else -1


def read_training_set(
    dataset: Dataset, split: str, *, chosen: bool = False, defaults: bool = False
) -> TrainingSet:
    """All queries of `split` with a positive in its universal pool, and the items of that pool.

    `chosen` keeps the one instruction that a query's id picks, for validation; `defaults` adds the sentence
    that the product uses where nobody gives an instruction as one more variant.
    """
    images, texts = _Table(), _Table()
    item_rows: dict[str, int] = {}
    item_image: list[int] = []
    item_text: list[int] = []
    item_modality: list[int] = []
    for item in dataset.pool(split):
        item_rows[item.id] = len(item_rows)
        item_image.append(images.row(None if item.image is None else str(item.image)))
        item_text.append(texts.row(item.text))
        item_modality.append(MODALITIES.index(item.modality))

    tasks: dict[str, int] = {}
    query_ids: list[str] = []
    query_image: list[int] = []
    variants: list[list[int]] = []
    task_rows: list[int] = []
    want_rows: list[int] = []
    offsets, positives = [0], list[int]()
    for row in dataset.rows(split):
        task = tasks.setdefault(str(row), len(tasks))
        for query in dataset.queries(split, row):
            found = [item_rows[id_] for id_ in query.positives if id_ in item_rows]
            if not found:
                continue
            query_ids.append(query.id)
            query_image.append(images.row(None if query.image is None else str(query.image)))
            ways = [dataset.instructions.chosen(query)] if chosen else dataset.instructions.of(query)
            sentences = [way.sentence for way in ways]
            if defaults:
                sentences.append(default_instruction(query.modality, query.want))
            variants.append([texts.row(query_text(sentence, query.text)) for sentence in sentences])
            task_rows.append(task)
            want_rows.append(MODALITIES.index(query.want))
            positives += found
            offsets.append(len(positives))
    if not query_ids:
        raise BadData(f"no query of split {split!r} has a positive in its pool: check the data root")
    width = max(map(len, variants))
    return TrainingSet(
        images=[Path(name) for name in images.rows],
        texts=list(texts.rows),
        query_image=np.array(query_image),
        query_texts=np.array([(rows * width)[:width] for rows in variants]),
        query_task=np.array(task_rows),
        query_want=np.array(want_rows),
        item_image=np.array(item_image),
        item_text=np.array(item_text),
        item_modality=np.array(item_modality),
        offsets=np.array(offsets),
        positives=np.array(positives),
        tasks=list(tasks),
        query_ids=query_ids,
        item_ids=list(item_rows),
    )
