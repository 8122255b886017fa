"""The listwise term: who is lined up, and the loss by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from genius.data.pairs import Pairs, build_pairs
from genius.decode.rivals import Rivals, list_loss, nearest_rivals

Z = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0], [0.7, 0.3]])
CODES = torch.tensor([[0, 1], [0, 1], [0, 2], [1, 0], [0, 3]])


@pytest.fixture
def pairs() -> Pairs:
    vectors = np.ones((5, 2), np.float32)
    return build_pairs(
        vectors,
        vectors,
        query_image=[0, 1],
        query_texts=[[], []],
        positives=[[0, 2], [3]],
        item_image=range(5),
        item_text=[-1] * 5,
    )


def test_nearest_items_are_lined_up_behind_the_target(pairs: Pairs) -> None:
    query, target = torch.tensor([0, 1]), torch.tensor([0, 3])
    z = torch.tensor([[1.0, 0.0], [0.6, 0.4]])
    row, usable = nearest_rivals(z, query, target, torch.arange(5), Z, CODES, pairs, count=4)
    assert row.tolist() == [[0, 0, 1, 2, 4], [3, 0, 1, 2, 4]]
    # query 0: item 0 is the target, 1 has its codes, 2 is another positive; query 1: all are rivals
    assert usable.tolist() == [[True, False, False, False, True], [True, True, True, True, True]]


def test_loss_by_hand() -> None:
    logits = [torch.tensor([[[0.0, 0.0], [0.0, 0.0], [3.0, 1.0]]]), torch.tensor([[[0.0, 1.0]] * 3])]
    codes = torch.tensor([[[0, 1], [1, 0], [0, 0]]])
    good, bad = 1 - math.log(1 + math.e), -math.log(1 + math.e)
    target, rival = -math.log(2) + good, -math.log(2) + bad
    other = 3 - math.log(math.e**3 + math.e) + bad
    loss = list_loss(logits, codes, torch.tensor([[True, True, False]]))
    assert loss.item() == pytest.approx(math.log(1 + math.exp(rival - target)), abs=1e-6)
    loss = list_loss(logits, codes, torch.tensor([[True, True, True]]))
    expected = math.log(1 + math.exp(rival - target) + math.exp(other - target))
    assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_small_pools_are_searched_whole_and_large_ones_by_a_sample() -> None:
    draw = Rivals(drawn=8).sample
    assert draw(5, torch.Generator()).tolist() == [0, 1, 2, 3, 4]
    sample = draw(100, torch.Generator().manual_seed(0))
    assert len(sample) == 8
    assert sample.max() > 8
