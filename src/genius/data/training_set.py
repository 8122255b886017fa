"""Queries and items of a training split as index arrays over their distinct images and texts.

Every stage trains from this: stage 0 reads the images and texts themselves, stages 1 and 2 their vectors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Dataset, LabelledQuery, Row
from genius.data.instructions import default_instruction, query_text
from genius.errors import BadData
from genius.types import Item, Modality

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
    item_image: Rows  # (items,)
    item_text: Rows  # (items,)
    item_modality: Rows  # (items,), in the order of Modality
    offsets: Rows  # (queries + 1,) into `positives`
    positives: Rows  # item rows
    tasks: Sequence[str]
    query_ids: Sequence[str]
    item_ids: Sequence[str]

    @property
    def digest(self) -> str:
        """What a checkpoint knows the data by: ids, texts and labels, wherever the images lie."""
        state = hashlib.blake2b(digest_size=16)
        for strings in (self.query_ids, self.item_ids, self.texts, self.tasks):
            state.update("\0".join(strings).encode("utf-8", "surrogatepass") + b"\0\0")
        for rows in (
            self.query_image, self.query_texts, self.query_task,
            self.item_image, self.item_text, self.item_modality, self.offsets, self.positives,
        ):  # fmt: skip
            state.update(repr(rows.shape).encode() + np.ascontiguousarray(rows, dtype=np.int64).tobytes())
        return state.hexdigest()


class _Table:
    """Distinct values in the order they came, and their rows."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def row(self, value: str | None) -> int:
        return self.rows.setdefault(value, len(self.rows)) if value else -1


def read_training_set(
    dataset: Dataset,
    split: str,
    *,
    chosen: bool = False,
    defaults: bool = False,
    most_queries: int = 0,
    most_items: int = 0,
) -> TrainingSet:
    """All queries of `split` with a positive in its universal pool, and the items of that pool.

    `chosen` keeps the one instruction that a query's id picks, for validation; `defaults` adds two variants:
    the sentence that the product uses where nobody gives an instruction, and no instruction at all.
    `most_queries` and `most_items` keep a part that a hash of the ids picks, the same on every run: as many
    queries of each task, their positives, and other items up to that number.
    """
    images, texts = _Table(), _Table()
    sample = _Sample(dataset, split, most_queries, most_items)
    item_rows: dict[str, int] = {}
    item_image: list[int] = []
    item_text: list[int] = []
    item_modality: list[int] = []
    for item in sample.pool():
        item_rows[item.id] = len(item_rows)
        item_image.append(images.row(None if item.image is None else str(item.image)))
        item_text.append(texts.row(item.text))
        item_modality.append(MODALITIES.index(item.modality))

    tasks: dict[str, int] = {}
    query_ids: list[str] = []
    query_image: list[int] = []
    variants: list[list[int]] = []
    task_rows: list[int] = []
    offsets, positives = [0], list[int]()
    for query in sample.queries():
        found = [item_rows[id_] for id_ in query.positives if id_ in item_rows]
        if not found:
            continue
        query_ids.append(query.id)
        query_image.append(images.row(None if query.image is None else str(query.image)))
        ways = [dataset.instructions.chosen(query)] if chosen else dataset.instructions.of(query)
        sentences = [way.sentence for way in ways]
        if defaults:  # the product's own ways to ask: its sentence, and none
            sentences += [default_instruction(query.modality, query.want), ""]
        variants.append([texts.row(query_text(sentence, query.text)) for sentence in sentences])
        task_rows.append(tasks.setdefault(str(query.row), len(tasks)))
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
        item_image=np.array(item_image),
        item_text=np.array(item_text),
        item_modality=np.array(item_modality),
        offsets=np.array(offsets),
        positives=np.array(positives),
        tasks=list(tasks),
        query_ids=query_ids,
        item_ids=list(item_rows),
    )


def without_images(data: TrainingSet, rows: Rows) -> TrainingSet:
    """`data` without the items and queries that need one of these images.

    A query that loses its last positive goes, too. Raises BadData if no query is left.
    """
    bad = np.zeros(len(data.images) + 1, dtype=bool)  # the last entry is named by -1: no image
    bad[rows] = True
    keep_item = ~bad[data.item_image]
    owner = np.repeat(np.arange(len(data.query_ids)), np.diff(data.offsets))
    left = np.bincount(owner[keep_item[data.positives]], minlength=len(data.query_ids))
    keep_query = ~bad[data.query_image] & (left > 0)
    if not keep_query.any():
        raise BadData(f"{len(rows)} images cannot be read, and no query is left without them")
    return keep_rows(data, keep_item, keep_query)


def keep_rows(data: TrainingSet, keep_item: NDArray[np.bool_], keep_query: NDArray[np.bool_]) -> TrainingSet:
    """`data` with these items and queries alone; every such query has a positive among the items."""
    owner = np.repeat(np.arange(len(data.query_ids)), np.diff(data.offsets))
    kept = keep_item[data.positives] & keep_query[owner]
    left = np.bincount(owner[kept], minlength=len(data.query_ids))
    new_row = np.cumsum(keep_item) - 1
    return replace(
        data,
        query_image=data.query_image[keep_query],
        query_texts=data.query_texts[keep_query],
        query_task=data.query_task[keep_query],
        item_image=data.item_image[keep_item],
        item_text=data.item_text[keep_item],
        item_modality=data.item_modality[keep_item],
        offsets=np.concatenate([[0], np.cumsum(left[keep_query])]),
        positives=new_row[data.positives[kept]],
        query_ids=[id_ for id_, keep in zip(data.query_ids, keep_query, strict=True) if keep],
        item_ids=[id_ for id_, keep in zip(data.item_ids, keep_item, strict=True) if keep],
    )


def limit_items(data: TrainingSet, most: int) -> TrainingSet:
    """`data` with at most `most` items: all positives, then those with the lowest hashes of their ids."""
    if len(data.item_ids) <= most:
        return data
    keep = np.zeros(len(data.item_ids), dtype=bool)
    keep[data.positives] = True
    hashes = np.array([hash_of(name) for name in data.item_ids], dtype=np.uint64)
    others = np.flatnonzero(~keep)
    keep[others[np.argsort(hashes[others])[: max(0, most - int(keep.sum()))]]] = True
    return keep_rows(data, keep, np.ones(len(data.query_ids), dtype=bool))


def without_unused(data: TrainingSet) -> TrainingSet:
    """`data` without the images and texts that no query and no item has."""
    images, (query_image, item_image) = _compact(len(data.images), data.query_image, data.item_image)
    texts, (query_texts, item_text) = _compact(len(data.texts), data.query_texts, data.item_text)
    return replace(
        data,
        images=[data.images[row] for row in images.tolist()],
        texts=[data.texts[row] for row in texts.tolist()],
        query_image=query_image,
        item_image=item_image,
        query_texts=query_texts,
        item_text=item_text,
    )


def _compact(count: int, *tables: Rows) -> tuple[Rows, list[Rows]]:
    """The rows of `count` that `tables` name, ascending, and the tables with their places among these."""
    used = np.zeros(count + 1, dtype=bool)  # the last entry is named by -1: absent
    for table in tables:
        used[table] = True
    used[-1] = False
    place = np.where(used, np.cumsum(used) - 1, -1)
    return np.flatnonzero(used), [place[table] for table in tables]


class _Sample:
    """Queries and items of a split: all of them, or those with the lowest hashes."""

    def __init__(self, dataset: Dataset, split: str, most_queries: int, most_items: int) -> None:
        self.dataset, self.split = dataset, split
        self.highest_query: dict[Row, int] = {}  # hash up to which the queries of a row are kept
        self.highest_item: int | None = None  # hash up to which items are kept; None: all
        self.needed: set[str] = set()  # items that are kept whatever their hash
        if most_queries:
            hashes: dict[Row, list[int]] = {}
            for query in dataset.queries(split):
                hashes.setdefault(query.row, []).append(hash_of(query.id))
            each = -(-most_queries // max(1, len(hashes)))
            self.highest_query = {row: _lowest(several, each) for row, several in hashes.items()}
        if most_items:
            self.needed.update(id_ for query in self.queries() for id_ in query.positives)
            others = [hash_of(item.id) for item in dataset.pool(split) if item.id not in self.needed]
            self.highest_item = _lowest(others, max(0, most_items - len(self.needed)))

    def queries(self) -> Iterator[LabelledQuery]:
        for query in self.dataset.queries(self.split):
            highest = self.highest_query.get(query.row)
            if highest is None or hash_of(query.id) <= highest:
                yield query

    def pool(self) -> Iterator[Item]:
        highest = self.highest_item
        for item in self.dataset.pool(self.split):
            if highest is None or item.id in self.needed or hash_of(item.id) <= highest:
                yield item


def hash_of(name: str) -> int:
    """64 bits that depend on the name alone."""
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _lowest(hashes: list[int], count: int) -> int:
    """The hash up to which `count` of them lie; -1 for none."""
    if count >= len(hashes):
        return max(hashes, default=-1)
    return int(np.partition(np.array(hashes, dtype=np.uint64), count - 1)[count - 1]) if count else -1
