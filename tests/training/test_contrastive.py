import math

import pytest
import torch

from genius.training.contrastive import contrastive_loss

Q = torch.tensor([[1.0, 0.0], [0.0, 2.0]])  # lengths do not matter: cosine
C = torch.tensor([[3.0, 0.0], [1.0, 1.0]])
H = math.sqrt(0.5)


def test_contrastive_by_hand():
    # cosines: q0: (1, H), q1: (0, H); temperature 0.5 doubles them
    to_items = (math.log(1 + math.exp(2 * H - 2)) + math.log(1 + math.exp(0 - 2 * H))) / 2
    to_queries = (math.log(1 + math.exp(0 - 2)) + math.log(1 + math.exp(2 * H - 2 * H))) / 2
    loss = contrastive_loss(Q, C, 0.5)
    assert float(loss) == pytest.approx((to_items + to_queries) / 2, rel=1e-6)


def test_another_positive_is_no_negative():
    positive = torch.tensor([[True, True], [False, True]])  # item 1 is a positive of query 0 too
    to_items = (0.0 + math.log(1 + math.exp(0 - 2 * H))) / 2
    to_queries = (math.log(1 + math.exp(0 - 2)) + 0.0) / 2
    loss = contrastive_loss(Q, C, 0.5, positive)
    assert float(loss) == pytest.approx((to_items + to_queries) / 2, rel=1e-6)


def test_contrastive_is_exact_at_the_papers_temperature_under_autocast():
    generator = torch.Generator().manual_seed(0)
    q, c = (torch.randn(16, 8, generator=generator) for _ in range(2))
    plain = contrastive_loss(q, c, 0.01)
    with torch.autocast("cpu", torch.bfloat16):
        assert (q @ c.T).dtype == torch.bfloat16  # what it would be without care
        assert torch.equal(contrastive_loss(q, c, 0.01), plain)


def test_queries_against_items_alone():
    q, c = torch.nn.functional.normalize(Q, dim=1), torch.nn.functional.normalize(C, dim=1)
    expected = torch.nn.functional.cross_entropy(q @ c.T / 0.5, torch.arange(len(q)))
    torch.testing.assert_close(contrastive_loss(Q, C, 0.5, symmetric=False), expected)
    assert contrastive_loss(Q, C, 0.5) != contrastive_loss(Q, C, 0.5, symmetric=False)
