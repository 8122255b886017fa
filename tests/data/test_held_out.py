"""Queries that stage 0 does not see: whole groups, the same on every run."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from genius.data.base import open_dataset
from genius.data.held_out import SHARED, held_out_queries, split_queries
from genius.data.training_set import TrainingSet, read_training_set
from genius.errors import BadData

TINY = runpy.run_path(str(Path(__file__).resolve().parents[1] / "pipeline" / "tiny.py"))


def training_set(images: list[int], texts: list[list[int]], positives: list[list[int]]) -> TrainingSet:
    """Queries with these images, texts and positives; item n has image n and no text."""
    items = max(row for rows in positives for row in rows) + 1
    flat = [row for rows in positives for row in rows]
    return TrainingSet(
        images=[Path(f"{row}.jpg") for row in range(max(items, *images) + 1)],
        texts=[str(row) for row in range(max(row for rows in texts for row in rows) + 1)],
        query_image=np.array(images),
        query_texts=np.array(texts),
        query_task=np.zeros(len(images), np.int64),
        item_image=np.arange(items),
        item_text=np.full(items, -1),
        item_modality=np.zeros(items, np.int64),
        offsets=np.cumsum([0, *map(len, positives)]),
        positives=np.array(flat),
        tasks=["a 0"],
        query_ids=[f"1:{row}" for row in range(len(images))],
        item_ids=[f"2:{row}" for row in range(items)],
    )


def test_what_belongs_together_is_held_out_together() -> None:
    # 300 chains of three queries: by a common positive, then by a common text
    images, texts, positives = [], [], []
    for chain in range(300):
        images += [-1, -1, 600 + chain]
        texts += [[3 * chain], [3 * chain + 1], [3 * chain + 1]]
        positives += [[2 * chain], [2 * chain], [2 * chain + 1]]
    held = held_out_queries(training_set(images, texts, positives), 0.3).reshape(300, 3)
    assert (held[:, 0] == held[:, 1]).all()
    assert (held[:, 1] == held[:, 2]).all()
    assert 0.2 < held.mean() < 0.4
    assert (held_out_queries(training_set(images, texts, positives), 0.3) == held.ravel()).all()


@pytest.mark.parametrize(("queries", "together"), [(SHARED, True), (SHARED + 40, False)])
def test_what_many_queries_have_joins_none(queries: int, together: bool) -> None:
    data = training_set([-1] * queries, [[row] for row in range(queries)], [[0]] * queries)
    held = held_out_queries(data, 0.5)
    assert (len(set(held.tolist())) == 1) == together


def test_both_parts_have_all_items_and_no_picture_in_common(tmp_path: Path) -> None:
    data = read_training_set(open_dataset("mbeir", TINY["write_mbeir"](tmp_path)), "train")
    parts = [split_queries(data, 0.5, held_out=held) for held in (False, True)]
    assert sorted(parts[0].query_ids + list(parts[1].query_ids)) == sorted(data.query_ids)

    def pictures(part: TrainingSet) -> set[int]:
        return {*part.query_image.tolist(), *part.item_image[part.positives].tolist()} - {-1}

    assert pictures(parts[0])
    assert not pictures(parts[0]) & pictures(parts[1])
    for part in parts:
        assert part.item_ids == data.item_ids
        wanted = {id_: row for row, id_ in enumerate(data.query_ids)}
        for row, id_ in enumerate(part.query_ids):
            own = part.positives[part.offsets[row] : part.offsets[row + 1]]
            old = wanted[id_]
            assert own.tolist() == data.positives[data.offsets[old] : data.offsets[old + 1]].tolist()


def test_too_few_groups_are_told() -> None:
    with pytest.raises(BadData, match=r"data\.held_out = 0"):
        split_queries(training_set([-1], [[0]], [[0]]), 0.5, held_out=True)
