import numpy as np
import pytest
import torch

from genius.data.pairs import build_pairs
from genius.hit_rate import mean_over_tasks
from genius.quantize import recall as module
from genius.quantize.model import Quantizer
from genius.quantize.recall import code_recall, exact_hits, phi_recall


def world():
    """Three captions ask for three pictures on a circle; the third caption looks at the wrong picture."""
    images = np.array([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]], np.float32)
    texts = np.array([[1.0, 0.1], [0.2, 1.0], [0.0, 1.0]], np.float32)
    return build_pairs(
        images,
        texts,
        query_image=[-1] * 3,
        query_texts=[[0], [1], [2]],
        positives=[[0], [1, 2], [2]],
        item_image=[0, 1, 2],
        item_text=[-1] * 3,
        task=[0, 0, 1],
    )


def test_hits_and_the_mean_over_tasks_by_hand(monkeypatch):
    pairs = world()
    query, item = pairs.query_parts(torch.arange(3))[1], pairs.item_parts(torch.arange(3))[0]
    found = exact_hits(query, item, pairs, 1)
    assert found.tolist() == [True, True, False]
    assert mean_over_tasks(found, pairs.task) == 0.5  # 1 and 0
    monkeypatch.setattr(module, "SCORES_AT_ONCE", 3)
    assert torch.equal(exact_hits(query, item, pairs, 1), found)
    assert exact_hits(query, item, pairs, 99).all()  # more than there are
    assert phi_recall(pairs, 1) == 0.5


def test_codes_are_scored_by_their_direction():
    pairs = world()
    quantizer = Quantizer(2, (3, 3), fusion="sum")
    quantizer.residual.codebook(1).copy_(torch.tensor([[0.1, 0.0], [0.9, 0.9], [-1.0, 0.0]]))
    figures = code_recall(quantizer, pairs, 1)
    # codes (0.1, 0), (0.9, 0.9), (-1, 0): by length, caption 0 would choose the second picture
    assert figures["hit@1"] == 0.5
    assert figures["hit@1_sum"] == 0.25
    assert figures["hit@1_z"] == 0.5
    errors = [0.9**2, 0.9**2 + 0.1**2, 0.0]
    assert figures["error"] == pytest.approx(np.mean(errors), rel=1e-5)
