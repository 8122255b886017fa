"""A split as index arrays: what is in it, and how a part of it is chosen."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from genius.data.base import open_dataset
from genius.data.instructions import default_instruction, query_text
from genius.data.training_set import (
    MODALITIES,
    TrainingSet,
    keep_rows,
    limit_items,
    read_training_set,
    without_images,
    without_unused,
)
from genius.errors import BadData
from genius.types import Modality

TINY = runpy.run_path(str(Path(__file__).resolve().parents[1] / "pipeline" / "tiny.py"))


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(TINY["write_mbeir"](tmp_path_factory.mktemp("flags")))


def positives(data: TrainingSet, row: int) -> list[str]:
    return [data.item_ids[item] for item in data.positives[data.offsets[row] : data.offsets[row + 1]]]


def test_queries_items_and_positives(mbeir_root: Path) -> None:
    data = read_training_set(open_dataset("mbeir", mbeir_root), "train")
    assert data.query_ids == ["2:1", "2:2", "2:3"]
    assert data.item_ids == ["2:1", "2:2"]
    assert [data.tasks[task] for task in data.query_task] == ["webqa 1", "webqa 2", "webqa 1"]
    assert [positives(data, row) for row in range(3)] == [["2:1"], ["2:2"], ["2:1"]]
    assert [MODALITIES[row] for row in data.item_modality] == [Modality.TEXT, Modality.PAIR]
    assert data.images == [mbeir_root / "mbeir_images/a.jpg"]
    assert data.item_image.tolist() == [-1, 0]
    assert data.item_text[0] == data.item_text[1]  # both items say "An answer."
    assert data.query_image.tolist() == [-1, -1, -1]


def test_every_instruction_is_a_variant_and_shorter_lists_repeat(mbeir_root: Path) -> None:
    data = read_training_set(open_dataset("mbeir", mbeir_root), "train")
    variants = [[data.texts[text] for text in row] for row in data.query_texts]
    assert variants[0] == ["Answer this. who?", "Find the passage. who?"]
    assert variants[1] == ["Answer this with a picture. which?"] * 2
    with_default = read_training_set(open_dataset("mbeir", mbeir_root), "train", defaults=True)
    sentence = query_text(default_instruction(Modality.TEXT, Modality.PAIR), "which?")
    assert sentence in [with_default.texts[text] for text in with_default.query_texts[1]]
    assert with_default.query_texts.shape == (3, 4)
    assert "Which?" in [with_default.texts[text] for text in with_default.query_texts[1]]  # no instruction


def test_validation_asks_under_the_chosen_instruction(mbeir_root: Path) -> None:
    dataset = open_dataset("mbeir", mbeir_root)
    data = read_training_set(dataset, "train", chosen=True)
    assert data.query_texts.shape == (3, 1)
    for query, text in zip(dataset.queries("train"), data.query_texts[:, 0], strict=True):
        assert data.texts[text] == query_text(dataset.instructions.chosen(query).sentence, query.text)


def test_a_query_without_a_positive_in_the_pool_is_left_out(mbeir_root: Path) -> None:
    pool = mbeir_root / "cand_pool/global/mbeir_union_train_cand_pool.jsonl"
    pool.write_text(pool.read_text().splitlines(keepends=True)[0])  # 2:2 is gone
    data = read_training_set(open_dataset("mbeir", mbeir_root), "train")
    assert data.query_ids == ["2:1", "2:3"]
    assert data.tasks == ["webqa 1"]  # a task without queries is no task
    pool.write_text('{"did": "2:9", "txt": "Other.", "img_path": null, "modality": "text"}\n')
    with pytest.raises(BadData, match="no query of split 'train' has a positive"):
        read_training_set(open_dataset("mbeir", mbeir_root), "train")


def test_images_and_texts_are_listed_once(flags: Path) -> None:
    data = read_training_set(open_dataset("mbeir", flags), "train", defaults=True)
    assert len(data.images) == len(set(data.images)) == 60
    assert len(data.texts) == len(set(data.texts))
    assert (len(data.query_ids), len(data.item_ids)) == (180, 180)
    assert (np.diff(data.offsets) == 2).all()
    photos = data.query_image[data.query_image >= 0]
    assert {data.images[row] for row in photos} == set(data.images)  # shared with the items


def test_a_sample_keeps_the_positives_and_is_the_same_every_time(flags: Path) -> None:
    dataset = open_dataset("mbeir", flags)
    whole = read_training_set(dataset, "train")
    part = read_training_set(dataset, "train", most_queries=12, most_items=40)
    assert len(part.query_ids) == 12
    assert np.bincount(part.query_task).tolist() == [4, 4, 4]
    assert len(part.item_ids) == 40
    answers = {id_: positives(whole, row) for row, id_ in enumerate(whole.query_ids)}
    for row, id_ in enumerate(part.query_ids):
        assert sorted(positives(part, row)) == sorted(answers[id_])  # none is lost
    again = read_training_set(open_dataset("mbeir", flags), "train", most_queries=12, most_items=40)
    assert (again.query_ids, again.item_ids) == (part.query_ids, part.item_ids)


@pytest.mark.parametrize(("queries", "items"), [(0, 0), (0, 10_000), (10_000, 0)])
def test_a_sample_larger_than_the_split_is_all_of_it(flags: Path, queries: int, items: int) -> None:
    data = read_training_set(open_dataset("mbeir", flags), "val", most_queries=queries, most_items=items)
    assert (len(data.query_ids), len(data.item_ids)) == (90, 90)


def test_few_items_are_never_fewer_than_the_positives(flags: Path) -> None:
    data = read_training_set(open_dataset("mbeir", flags), "val", most_queries=6, most_items=1)
    assert sorted(data.item_ids) == sorted({id_ for row in range(6) for id_ in positives(data, row)})


def test_without_images_the_items_and_queries_that_need_them_are_gone(flags: Path) -> None:
    data = read_training_set(open_dataset("mbeir", flags), "train")
    bad = data.item_image[data.positives[0]]  # of the first query's first positive
    left = without_images(data, np.array([bad]))
    gone = {id_ for id_, image in zip(data.item_ids, data.item_image, strict=True) if image == bad}
    assert gone
    assert set(left.item_ids) == set(data.item_ids) - gone
    assert (left.item_image != bad).all()
    assert (left.query_image != bad).all()

    def found(of: TrainingSet) -> dict[str, set[str]]:
        return {id_: set(positives(of, row)) for row, id_ in enumerate(of.query_ids)}

    asked_by_it = {id_ for id_, image in zip(data.query_ids, data.query_image, strict=True) if image == bad}
    expected = {
        query: items - gone
        for query, items in found(data).items()
        if items - gone and query not in asked_by_it
    }
    assert found(left) == expected
    assert len(expected) < len(data.query_ids)
    with pytest.raises(BadData, match="no query is left"):
        without_images(data, np.arange(len(data.images)))


def test_few_items_for_later_stages_are_the_positives_first(flags: Path) -> None:
    data = read_training_set(open_dataset("mbeir", flags), "train")
    few = limit_items(data, 40)
    assert len(few.item_ids) == max(40, len(set(data.positives.tolist())))
    assert [positives(few, row) for row in range(5)] == [positives(data, row) for row in range(5)]
    assert limit_items(data, len(data.item_ids)) is data
    assert len(limit_items(data, 1).item_ids) == len(set(data.positives.tolist()))


def test_images_and_texts_that_nothing_has_are_dropped(flags: Path) -> None:
    data = read_training_set(open_dataset("mbeir", flags), "train")
    queries = np.arange(len(data.query_ids)) < 3
    items = np.zeros(len(data.item_ids), dtype=bool)
    items[data.positives[: data.offsets[3]]] = True
    part = keep_rows(data, items, queries)
    small = without_unused(part)

    def named(rows: np.ndarray, of: Sequence[object]) -> list[object]:
        return [None if row < 0 else of[row] for row in rows.ravel().tolist()]

    assert len(small.images) < len(part.images)
    assert len(small.texts) < len(part.texts)
    tables = {"query_image": "images", "item_image": "images", "query_texts": "texts", "item_text": "texts"}
    for name, of in tables.items():
        before, after = (named(getattr(some, name), getattr(some, of)) for some in (part, small))
        assert after == before
    used = {row for name in ("query_texts", "item_text") for row in getattr(small, name).ravel().tolist()}
    assert used - {-1} == set(range(len(small.texts)))
