"""Duplicates: items with the same content, or as similar as two copies of a picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from genius.confidence import NEAR
from genius.errors import BadInput
from genius.store.index import Index
from genius.store.records import MODALITIES, RecordBatch

BLOCK = 2048  # rows compared at a time
NOT_SAME = 0.9999  # the most that two items of different content are said to be alike


@dataclass(frozen=True, slots=True)
class DuplicateGroup:
    """Items that are copies of each other, in the order in which they were stored."""

    ids: tuple[str, ...]
    paths: tuple[str | None, ...]
    similarity: float  # the least of an item to its nearest copy; 1: all have the same content

    @property
    def exact(self) -> bool:
        """Whether all have the same image and the same text, byte by byte."""
        return self.similarity == 1.0


def find_duplicates(index: Index, at_least: float | None = NEAR) -> list[DuplicateGroup]:
    """Groups of items with the same content and, unless `at_least` is None, with embeddings that close."""
    if at_least is not None and not 0 < at_least <= 1:
        raise BadInput(f"at least {at_least:g}: a similarity is above 0 and at most 1")
    if at_least is not None and index.dim is None:
        raise BadInput("near duplicates are found by vectors, which this index does not keep: use --exact")
    with index.truth.reading():
        rows = index.truth.rows().tolist()
        near = iter(()) if at_least is None else _near_pairs(index, at_least)
        groups = _grouped(_same_content(index, rows), near)
        found = []
        for several, similarity in groups:
            records = index.truth.records(several)
            kept = [records[row] for row in several]
            paths = tuple(record.path for record in kept)
            found.append(DuplicateGroup(tuple(record.id for record in kept), paths, round(similarity, 4)))
    return found


def _same_content(index: Index, rows: Sequence[int]) -> list[list[int]]:
    by_content: dict[bytes, list[int]] = defaultdict(list)
    for start in range(0, len(rows), BLOCK):
        for row, record in index.truth.records(rows[start : start + BLOCK]).items():
            by_content[record.hash].append(row)
    return [same for same in by_content.values() if len(same) > 1]


def _near_pairs(index: Index, at_least: float) -> Iterator[tuple[int, int, float]]:
    """Pairs of rows of one modality whose embeddings have at least this cosine, with it."""
    every = list(index.truth.batches(index.levels, index.dim))
    if not every:
        return
    stored = RecordBatch.join(every)
    for kind in range(len(MODALITIES)):
        own = stored.take(stored.modality == kind)
        assert own.vectors is not None
        for start in range(0, len(own), BLOCK):
            left = _unit(own.vectors[start : start + BLOCK])
            for other in range(start, len(own), BLOCK):
                right = left if other == start else _unit(own.vectors[other : other + BLOCK])
                cosines = left @ right.T
                if other == start:
                    cosines = np.triu(cosines, 1)
                for one, two in np.argwhere(cosines >= at_least):
                    yield int(own.rows[start + one]), int(own.rows[other + two]), float(cosines[one, two])


def _grouped(
    same: Iterable[Sequence[int]], near: Iterable[tuple[int, int, float]]
) -> list[tuple[list[int], float]]:
    """Rows that pairs connect, each group ascending, and the least similarity of a row to its nearest."""
    parent: dict[int, int] = {}
    best: dict[int, float] = {}

    def root(row: int) -> int:
        while parent.setdefault(row, row) != row:
            parent[row] = row = parent[parent[row]]
        return row

    for rows in same:
        for row in rows:
            parent[root(row)] = root(rows[0])
            best[row] = 1.0
    for one, two, cosine in near:
        parent[root(two)] = root(one)
        for row in (one, two):
            best[row] = max(best.get(row, 0.0), min(cosine, NOT_SAME))
    groups: dict[int, list[int]] = defaultdict(list)
    for row in list(parent):
        groups[root(row)].append(row)
    return sorted((sorted(rows), _least(rows, best)) for rows in groups.values())


def _least(rows: Sequence[int], best: dict[int, float]) -> float:
    return min(best[row] for row in rows)


def _unit(vectors: NDArray[np.float16]) -> NDArray[np.float32]:
    wide = vectors.astype(np.float32)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12))
