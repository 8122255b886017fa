"""Query augmentation: both published forms, the plain share, and reproducible draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from genius.decode.augment import Augmentation, augment, beta
from genius.errors import BadInput


def vectors(rows: int = 4000, dim: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return tuple(F.normalize(torch.randn(2, rows, dim, generator=generator), dim=2))  # type: ignore[return-value]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("alpha", [0.5, 2.0, 7.0])
def test_beta_has_the_moments_of_its_distribution(alpha: float) -> None:
    draws = beta((50_000,), alpha, seeded())
    assert draws.mean().item() == pytest.approx(0.5, abs=0.01)
    assert draws.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.03)


def test_paper_form_lies_on_the_line_between_query_and_target() -> None:
    query, target = vectors()
    mixed = augment(query, target, "paper", seeded())
    step = ((mixed - target) * (query - target)).sum(1) / (query - target).square().sum(1)
    torch.testing.assert_close(mixed, target + step[:, None] * (query - target), atol=1e-5, rtol=1e-5)
    assert step.min() > 0
    assert step.max() < 1
    assert step.var().item() == pytest.approx(0.05, rel=0.1)  # Beta(2, 2)


def test_released_form_draws_per_dimension_and_normalises() -> None:
    query, target = vectors()
    mixed = augment(query, target, "released", seeded())
    share = beta(tuple(query.shape), 2.0, seeded())
    expected = F.normalize(share.sqrt() * query + (1 - share).sqrt() * target, dim=1)
    torch.testing.assert_close(mixed, expected)
    torch.testing.assert_close(mixed.norm(dim=1), torch.ones(len(query)))
    assert share[0].unique().numel() == query.shape[1]


@pytest.mark.parametrize("form", ["paper", "released"])
def test_plain_share_leaves_that_many_queries_alone(form: Augmentation) -> None:
    query, target = vectors()
    mixed = augment(query, target, form, seeded(), plain=0.3)
    untouched = (mixed == query).all(1)
    assert untouched.float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert (augment(query, target, form, seeded(), plain=1.0) == query).all()


def test_none_is_the_query_and_unknown_forms_are_refused() -> None:
    query, target = vectors()
    assert augment(query, target, "none", seeded()) is query
    with pytest.raises(BadInput, match="paper, released or none"):
        augment(query, target, "mixup", seeded())  # type: ignore[arg-type]


def test_same_generator_same_draw() -> None:
    query, target = vectors()
    one, two, other = (augment(query, target, "paper", seeded(s), plain=0.2) for s in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
