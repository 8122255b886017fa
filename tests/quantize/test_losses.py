import pytest
import torch

from genius.quantize.losses import agreement_loss, quantized, residual_loss, straight_through
from genius.quantize.train import QuantizerObjective, stage_losses


def test_residual_by_hand():
    z = torch.tensor([[1.0, 2.0]], requires_grad=True)
    partial = torch.tensor([[[1.0, 0.0], [0.5, 1.5]]], requires_grad=True)
    loss = residual_loss(z, partial)
    # (0, 2) and (0.5, 0.5): (4 + 0.25 + 0.25) / (2 levels * 2 dimensions)
    assert float(loss.detach()) == pytest.approx(4.5 / 4)
    loss.backward()
    assert partial.grad is None  # sg: code vectors get no gradient
    torch.testing.assert_close(z.grad, torch.tensor([[2 * 0.5 / 4, 2 * 2.5 / 4]]))


def test_agreement_by_hand():
    z_q, z_c = torch.zeros(1, 2, requires_grad=True), torch.zeros(1, 2, requires_grad=True)
    loss = agreement_loss(z_q, z_c, torch.tensor([[[2.0, 0.0]]]), torch.tensor([[[0.0, 4.0]]]))
    # normalised: (1, 0) and (0, 1): (1 + 1) / 2 dimensions
    assert float(loss.detach()) == pytest.approx(1.0)
    loss.backward()
    # d/da of mean((a/|a| - b)^2) at a = (2, 0), b = (0, 1): (I - aa'/|a|^2)/|a| (a/|a| - b) = (0, -1/2)
    torch.testing.assert_close(z_q.grad, torch.tensor([[0.0, -0.5]]))
    torch.testing.assert_close(z_c.grad, torch.tensor([[-0.25, 0.0]]))


@pytest.mark.parametrize("gradient", ["levels", "rotation"])
def test_the_gradient_of_residual_vq(gradient):
    """The released quantizer is ResidualVQ of vector-quantize-pytorch; rotation_trick is its default."""
    from vector_quantize_pytorch import ResidualVQ

    torch.manual_seed(0)
    options = {"rotation_trick": False} if gradient == "levels" else {}
    oracle = ResidualVQ(dim=6, codebook_size=(3, 7, 7), num_quantizers=3, **options)
    for layer in oracle.layers:
        layer._codebook.initted.fill_(True)
    books = [layer._codebook.embed[0].clone() for layer in oracle.layers]
    z = torch.nn.functional.normalize(torch.randn(20, 6), dim=1)
    theirs, ours = z.clone().requires_grad_(), z.clone().requires_grad_()
    total, codes, _ = oracle(theirs[None], freeze_codebook=True)
    partial = torch.stack([book[codes[0, :, level]] for level, book in enumerate(books)], 1).cumsum(1)
    own = quantized(ours, partial, gradient)
    torch.testing.assert_close(own, total[0], atol=1e-5, rtol=1e-4)
    weight = torch.randn(20, 6)
    (total[0] * weight).sum().backward()
    (own * weight).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4)
    if gradient == "levels":
        torch.testing.assert_close(ours.grad, 3 * weight)
    else:
        assert not torch.allclose(ours.grad, 3 * weight, rtol=0.1)


def test_the_gradient_of_the_objective_is_passed_on():
    torch.manual_seed(0)
    partial = torch.randn(8, 9, 4).mul(0.3).cumsum(1)
    start, sizes = torch.nn.functional.normalize(torch.randn(8, 4), dim=1), {}
    for gradient in ("once", "levels", "rotation"):
        z = start.clone().requires_grad_()
        objective = QuantizerObjective(contrastive=0, residual=0, agreement_gradient=gradient)
        stage_losses(z, partial, objective)["loss"].backward()
        sizes[gradient] = float(z.grad.norm())
    assert sizes["levels"] == pytest.approx(9 * sizes["once"], rel=1e-4)
    assert sizes["rotation"] != pytest.approx(sizes["once"], rel=0.1)
    assert sizes["rotation"] != pytest.approx(sizes["levels"], rel=0.1)


def test_straight_through():
    z = torch.tensor([1.0, 2.0], requires_grad=True)
    out = straight_through(z, torch.tensor([5.0, 7.0]))
    assert out.tolist() == [5.0, 7.0]
    (out * torch.tensor([3.0, 4.0])).sum().backward()
    assert z.grad.tolist() == [3.0, 4.0]


def test_equation_8_and_its_switches():
    z = torch.nn.functional.normalize(torch.tensor([[1.0, 0.2], [1.0, 0.1], [0.3, 1.0], [0.0, 1.0]]), dim=1)
    partial = torch.stack([z * 0.5, z * 0.9], dim=1)
    every = stage_losses(z, partial, QuantizerObjective(temperature=0.1))
    parts = [every[name] for name in ("contrastive", "residual", "agreement")]
    assert float(every["loss"]) == pytest.approx(float(parts[0] + 100 * parts[1] + 100 * parts[2]), rel=1e-6)
    # (0.5 z)^2 and (0.1 z)^2 over two dimensions and two levels
    assert float(every["residual"]) == pytest.approx((0.25 + 0.01) / 4, rel=1e-5)
    for name in ("contrastive", "residual", "agreement"):
        others = stage_losses(z, partial, QuantizerObjective(temperature=0.1, **{name: 0.0}))
        assert name not in others
        assert float(others["loss"]) < float(every["loss"])
