import runpy
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from genius.data.base import open_dataset
from genius.data.pairs import IMAGE, PAIR, TEXT, build_pairs, pairs_of, rows_of
from genius.data.training_set import TrainingSet, read_training_set
from genius.errors import BadInput


def small(**changes):
    """Four queries, five items: an image, two texts, two pairs."""
    values = {
        "query_image": [-1, 0, 1, -1],
        "query_texts": [[0, 1, 2], [3], [], [4, 5]],
        "positives": [[0], [2, 1], [3, 4], [4]],
        "item_image": [0, -1, -1, 1, 2],
        "item_text": [-1, 6, 7, 6, 7],
        "task": [0, 0, 1, 1],
    }
    images = np.arange(9, dtype=np.float32).reshape(3, 3) + 1
    texts = -np.arange(24, dtype=np.float32).reshape(8, 3) - 1
    return build_pairs(images, texts, **{**values, **changes})


def test_absent_parts_are_zero_and_modalities_follow_the_parts():
    pairs = small()
    assert pairs.item_modality.tolist() == [IMAGE, TEXT, TEXT, PAIR, PAIR]
    assert pairs.wanted.tolist() == [IMAGE, TEXT, PAIR, PAIR]
    image, text = pairs.item_parts(torch.tensor([0, 1, 4]))
    assert image.tolist() == [[1, 2, 3], [0, 0, 0], [7, 8, 9]]
    assert text.tolist() == [[0, 0, 0], [-19, -20, -21], [-22, -23, -24]]
    image, text = pairs.query_parts(torch.tensor([0, 2]))
    assert image.tolist() == [[0, 0, 0], [4, 5, 6]]
    assert text.tolist() == [[-1, -2, -3], [0, 0, 0]]


def test_every_epoch_asks_every_query_once_in_a_fresh_order():
    pairs = small()
    drawn = torch.cat([pairs.sample(step, 3, seed=7).query for step in range(8)])  # 24 rows: 6 epochs
    epochs = drawn.view(6, 4)
    assert torch.equal(epochs.sort(1).values, torch.arange(4).expand(6, 4))
    assert len({tuple(epoch) for epoch in epochs.tolist()}) > 1


def test_a_batch_larger_than_the_data_and_a_repeated_draw():
    pairs = small()
    batch, again = pairs.sample(3, 11, seed=1), pairs.sample(3, 11, seed=1)
    assert len(batch.query) == 11
    for one, other in ((batch.query, again.query), (batch.text, again.text), (batch.item, again.item)):
        assert torch.equal(one, other)
    assert not torch.equal(batch.query, pairs.sample(3, 11, seed=2).query)


def test_positives_and_instructions_are_drawn_evenly():
    pairs = small()
    seen = Counter()
    for step in range(300):
        batch = pairs.sample(step, 4, seed=0)
        seen.update(zip(["item"] * 4, batch.query.tolist(), batch.item.tolist(), strict=True))
        seen.update(zip(["text"] * 4, batch.query.tolist(), batch.text.tolist(), strict=True))
    assert {(q, i) for kind, q, i in seen if kind == "item"} == {
        (0, 0),
        (1, 1),
        (1, 2),
        (2, 3),
        (2, 4),
        (3, 4),
    }
    assert {t for kind, q, t in seen if kind == "text" and q == 0} == {0, 1, 2}
    assert {t for kind, q, t in seen if kind == "text" and q == 2} == {-1}
    assert 120 < seen["item", 1, 1] < 180
    assert 70 < seen["text", 0, 1] < 130


def test_are_positive_knows_all_positives():
    pairs = small()
    found = pairs.are_positive(torch.tensor([[3], [1], [2]]), torch.arange(5))
    assert found.tolist() == [
        [False, False, False, False, True],
        [False, True, True, False, False],
        [False, False, False, True, True],
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positives": [[0], [], [3], [4]]}, "query 1 has no positive"),
        ({"item_image": [0, -1, -1, 1, 2], "item_text": [-1, -1, 7, 6, 7]}, "neither image nor text"),
        ({"query_image": [], "query_texts": [], "positives": [], "task": []}, "no query or no item"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(changes, message):
    with pytest.raises(BadInput, match=message):
        small(**changes)
    with pytest.raises(BadInput, match="NaN or Inf"):
        build_pairs(
            np.array([[np.nan]], np.float32),
            np.zeros((0, 1), np.float32),
            query_image=[0],
            query_texts=[[]],
            positives=[[0]],
            item_image=[0],
            item_text=[-1],
        )


def test_balance_draws_small_tasks_more_often():
    pairs = small(task=[0, 0, 0, 1])
    for balance, share in ((0.0, 1 / 2), (0.5, 1 / (1 + 3**0.5))):
        drawn = torch.cat([pairs.balanced(balance).sample(step, 8, seed=0).query for step in range(100)])
        assert float((drawn == 3).float().mean()) == pytest.approx(share, abs=0.02)
        assert set(drawn.tolist()) == {0, 1, 2, 3}
    assert pairs.balanced(0.0).balanced(1.0).chance is None
    assert pairs.balanced(0.0).to("cpu").chance is not None


def test_pairs_of_a_training_set():
    images, texts = np.eye(3, dtype=np.float32), -np.eye(3, dtype=np.float32)
    data = TrainingSet(
        images=[Path(name) for name in "abc"],
        texts=["d", "e", "f"],
        query_image=np.array([-1, 2]),
        query_texts=np.array([[0, 1], [2, 2]]),
        query_task=np.array([0, 1]),
        item_image=np.array([0, 1]),
        item_text=np.array([-1, 2]),
        item_modality=np.array([0, 2]),
        offsets=np.array([0, 1, 3]),
        positives=np.array([0, 1, 0]),
        tasks=["one", "two"],
        query_ids=["q", "r"],
        item_ids=["i", "j"],
    )
    pairs = pairs_of(data, images, texts)
    assert pairs.are_positive(torch.tensor([[0], [1]]), torch.arange(2)).tolist() == [
        [True, False],
        [True, True],
    ]
    assert pairs.item_modality.tolist() == [IMAGE, PAIR]
    halves = pairs_of(data, images.astype(np.float16), texts.astype(np.float16))
    assert halves.images.dtype == halves.texts.dtype == torch.float16  # as they are cached
    assert pairs.images.dtype == torch.float32
    image, text = pairs.query_parts(torch.tensor([0, 1]))
    assert image.tolist() == [[0, 0, 0], [0, 0, 1]]
    assert text.tolist() == [[-1, 0, 0], [0, 0, -1]]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> TrainingSet:
    tiny = runpy.run_path(str(Path(__file__).resolve().parents[1] / "pipeline" / "tiny.py"))
    root = tiny["write_mbeir"](tmp_path_factory.mktemp("data"))
    return read_training_set(open_dataset("mbeir", root), "train")


def test_draws_are_true_pairs_and_all_of_them_come(train):
    pairs = rows_of(train)
    seen, variants = set(), set()
    for number in range(80):
        batch = pairs.sample(number, 64, seed=0)
        for query, item in zip(batch.query.tolist(), batch.item.tolist(), strict=True):
            assert item in train.positives[train.offsets[query] : train.offsets[query + 1]]
            seen.add((query, item))
        for query, text in zip(batch.query.tolist(), batch.text.tolist(), strict=True):
            assert text in train.query_texts[query]
            variants.add((query, text))
    assert len(seen) == len(train.positives)  # every positive of every query
    assert len(variants) == sum(len(set(texts)) for texts in train.query_texts.tolist())


def test_positives_are_what_the_table_says(train):
    pairs = rows_of(train)
    item = torch.arange(len(train.item_ids)).flip(0)
    found = pairs.are_positive(torch.arange(len(train.query_ids))[:, None], item)
    for row, start in enumerate(train.offsets[:-1]):
        mine = set(train.positives[start : train.offsets[row + 1]].tolist())
        assert found[row].tolist() == [number in mine for number in item.tolist()]
