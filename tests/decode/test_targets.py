"""Soft targets against values computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from genius.decode.init import fresh_decoder
from genius.decode.shape import DecoderShape
from genius.decode.targets import (
    SoftTargetOptions,
    SoftTargets,
    level_losses,
    mean_nearest,
    residuals,
    temperatures_of,
)

BOOKS = [
    torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
    torch.tensor([[0.0, 0.0], [0.0, 0.5], [0.5, 0.0]]),
]
Z = torch.tensor([[1.0, 0.3]])
CODES = torch.tensor([[0, 1]])


def softmax(*values: float) -> list[float]:
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def test_residual_and_nearest_distance_by_hand() -> None:
    left = list(residuals(Z, CODES, BOOKS))
    torch.testing.assert_close(left[1], torch.tensor([[0.0, 0.3]]))
    torch.testing.assert_close(left[2], torch.tensor([[0.0, -0.2]]))
    assert mean_nearest(Z, CODES, BOOKS) == pytest.approx([0.09, 0.04])


def test_soft_target_by_hand() -> None:
    make = SoftTargets(BOOKS, [0.045, 0.02], SoftTargetOptions())  # T = 0.02 at level 1
    (target,) = make(Z, Z, CODES)
    # r = (0, 0.3): squared distances 0.09, 0.04 and 0.25 + 0.09
    expected = softmax(-0.09 / 0.02, -0.04 / 0.02, -0.34 / 0.02)
    torch.testing.assert_close(target, torch.tensor([expected]))


def test_soft_target_follows_the_items_own_codes_not_the_nearest() -> None:
    make = SoftTargets(BOOKS, [1.0, 1.0], SoftTargetOptions(softness=1.0))
    (target,) = make(Z, Z, torch.tensor([[1, 0]]))
    # r = (1, -0.7): squared distances 1.49, 1 + 1.44, 0.25 + 0.49
    torch.testing.assert_close(target, torch.tensor([softmax(-1.49, -2.44, -0.74)]))


def test_a_small_temperature_gives_the_nearest_code() -> None:
    (target,) = SoftTargets(BOOKS, [0.0009, 0.0004], SoftTargetOptions())(Z, Z, CODES)
    torch.testing.assert_close(target, torch.tensor([[0.0, 1.0, 0.0]]))


def test_query_turns_the_target() -> None:
    query = torch.tensor([[1.6, 0.3]])
    (half,) = SoftTargets(BOOKS, [1.0, 1.0], SoftTargetOptions(softness=1.0, toward_query=0.5))(
        query, Z, CODES
    )
    # r = (1.3, 0.3) - (1, 0): squared distances 0.18, 0.09 + 0.04, 0.04 + 0.09
    torch.testing.assert_close(half, torch.tensor([softmax(-0.18, -0.13, -0.13)]))


def test_lookup_share_by_hand() -> None:
    query = torch.tensor([[0.6, 0.8]])
    values = SoftTargetOptions(softness=1.0, lookup_share=0.25, lookup_temperature=0.1)
    (target,) = SoftTargets(BOOKS, [1.0, 1.0], values)(query, Z, CODES)
    near, lookup = softmax(-0.09, -0.04, -0.34), softmax(0.0, 4.0, 3.0)
    expected = [0.75 * a + 0.25 * b for a, b in zip(near, lookup, strict=True)]
    torch.testing.assert_close(target, torch.tensor([expected]))


def test_without_a_modality_level_every_level_is_soft() -> None:
    first, second = SoftTargets(BOOKS, [1.0, 1.0], SoftTargetOptions(softness=1.0), first_level=0)(
        Z, Z, CODES
    )
    torch.testing.assert_close(first, torch.tensor([softmax(-0.09, -1.49)]))
    assert second.shape == (1, 3)


def test_loss_of_hard_soft_and_mixed_targets() -> None:
    logits = [torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0, 3.0]])]
    hard = level_losses(logits, CODES)
    total = math.log(1 + math.e + math.e**3)
    expected = [math.log(1 + math.exp(-2.0)), total - 1.0]
    torch.testing.assert_close(hard, torch.tensor(expected))
    soft = torch.tensor([[0.2, 0.5, 0.3]])
    mixed = level_losses(logits, CODES, [soft], hard_share=0.25)
    wanted = 0.25 * (total - 1.0) + 0.75 * (total - 0.5 - 0.9)
    torch.testing.assert_close(mixed, torch.tensor([expected[0], wanted]))


def test_a_hard_term_without_weight_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    plain = F.cross_entropy

    def counted(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls.append(target.dtype)
        return plain(scores, target)

    monkeypatch.setattr(F, "cross_entropy", counted)
    logits = [torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0, 3.0]])]
    soft = torch.tensor([[0.2, 0.5, 0.3]])
    level_losses(logits, CODES, [soft])
    assert calls == [torch.int64, torch.float32]  # the first level, which is always hard, and the soft one
    level_losses(logits, CODES, [soft], hard_share=0.25)
    assert len(calls) == 5


def test_targets_carry_no_gradient_and_ignore_autocast() -> None:
    z = F.normalize(torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), dim=1).requires_grad_()
    codes = torch.tensor([[0, 1]]).expand(8, 2)
    make = SoftTargets(BOOKS, [0.008, 0.008], SoftTargetOptions())
    (plain,) = make(z, z, codes)
    with torch.autocast("cpu", torch.bfloat16):
        (cast,) = make(z, z, codes)
    assert not plain.requires_grad
    assert cast.dtype == torch.float32
    torch.testing.assert_close(plain, cast)


def test_temperatures_follow_the_distances_the_perplexity_or_one_value() -> None:
    relative = temperatures_of(Z, CODES, BOOKS, SoftTargetOptions(softness=0.5))
    assert relative == pytest.approx([0.045, 0.02])
    assert temperatures_of(Z, CODES, BOOKS, SoftTargetOptions(target_temperature=0.06)) == [0.06, 0.06]
    generator = torch.Generator().manual_seed(0)
    books = [torch.randn(size, 8, generator=generator) for size in (3, 32, 32)]
    z = torch.randn(400, 8, generator=generator)
    codes = torch.stack([torch.randint(size, (400,), generator=generator) for size in (3, 32, 32)], dim=1)
    values = SoftTargetOptions(perplexity=6)
    targets = SoftTargets(books, temperatures_of(z, codes, books, values), values)(z, z, codes)
    for target in targets:
        entropy = -(target * target.clamp(min=1e-30).log()).sum(1).mean()
        assert float(entropy.exp()) == pytest.approx(6, rel=0.01)


@pytest.mark.parametrize("options", [{}, {"lookup_share": 0.3, "toward_query": 0.2}, {"perplexity": 3.0}])
def test_codebooks_by_modality_give_each_item_the_targets_of_its_own(options: dict[str, float]) -> None:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(3, 6, generator=generator)
    others = [torch.randn(3, 5, 6, generator=generator) for _ in range(2)]
    z_query, z = torch.randn(2, 30, 6, generator=generator)
    codes = torch.randint(5, (30, 3), generator=generator)
    codes[:, 0] = torch.arange(30) % 3
    values = SoftTargetOptions(**options)
    temperatures = temperatures_of(z, codes, [first, *others], values)
    found = SoftTargets([first, *others], temperatures, values)(z_query, z, codes)
    for kind in range(3):
        rows, own = codes[:, 0] == kind, [first, *(book[kind] for book in others)]
        expected = SoftTargets(own, temperatures, values)(z_query[rows], z[rows], codes[rows])
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours[rows], theirs)


def test_a_decoder_starts_from_codebooks_by_modality() -> None:
    shape = DecoderShape(6, (3, 5), layers=1, width=8, heads=2, head_width=4, feed_forward=8, prefix=2)
    books = [torch.randn(3, 6), torch.randn(3, 5, 6)]
    decoder = fresh_decoder(shape, books, seed=0)
    mean = fresh_decoder(shape, [books[0], books[1].mean(0)], seed=0)
    assert torch.equal(decoder.embedding.weight, mean.embedding.weight)
