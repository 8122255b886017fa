"""The losses of stage 1 that look at codes (eq. 7, 8); its contrastive loss is that of stage 0, on z."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional as F

AgreementGradient = Literal["once", "levels", "rotation"]


def residual_loss(z: Tensor, partial: Tensor) -> Tensor:
    """L_rq (eq. 7): mean over rows, levels and dimensions of (r_{i-1} - sg(e_i))^2.

    `partial` (n, levels, dim) holds the quantized vectors e_1 + ... + e_i after each level; r_{i-1} - e_i is
    z minus that. A mean where the paper has a sum: its weight of 100 was tuned for the mean.
    """
    return (z[:, None] - partial.detach()).square().mean()


def agreement_loss(
    query: Tensor,
    item: Tensor,
    query_partial: Tensor,
    item_partial: Tensor,
    gradient: AgreementGradient = "once",
) -> Tensor:
    """L_mse: mean squared difference of the quantized query and item, both L2-normalised.

    `query` and `item` (n, dim) are z; the partial sums (n, levels, dim) are as in `residual_loss`.
    """
    ours = F.normalize(quantized(query, query_partial, gradient), dim=1)
    theirs = F.normalize(quantized(item, item_partial, gradient), dim=1)
    return (ours - theirs).square().mean()


def quantized(z: Tensor, partial: Tensor, gradient: AgreementGradient = "once") -> Tensor:
    """The quantized vectors (n, dim), the last of the `partial` sums (n, levels, dim), with a gradient to z.

    `once` passes the gradient straight through the sum. `levels` passes it through every level's code vector
    to that level's residual, so that z gets it as many times as there are levels. `rotation` is `levels` with
    each code vector made of its residual by a rotation and a scaling, which the gradient goes through
    (arXiv 2410.06424, 4.2). The last two are what ResidualVQ of vector-quantize-pytorch gives, whose default
    is `rotation`; checked against version 1.32.
    """
    partial = partial.detach()
    if gradient == "once":
        return straight_through(z, partial[:, -1])
    before = F.pad(partial, (0, 0, 1, 0))[:, :-1]  # what is subtracted from z before each level
    residual, codes = z[:, None] - before, partial - before  # (n, levels, dim)
    move = straight_through if gradient == "levels" else rotated
    return move(residual, codes).sum(1)


def straight_through(source: Tensor, target: Tensor) -> Tensor:
    """The value of `target` with the gradient of `source`."""
    return source + (target - source).detach()


def rotated(source: Tensor, target: Tensor) -> Tensor:
    """The value of `target`, as `source` (..., dim) rotated and scaled by constants."""
    lengths = (source.norm(dim=-1, keepdim=True), target.norm(dim=-1, keepdim=True))
    start, end = (
        (vector / length.clamp(min=1e-6)).detach()
        for vector, length in zip((source, target), lengths, strict=True)
    )
    middle = F.normalize(start + end, dim=-1, eps=1e-6)
    along, first = ((source * axis).sum(-1, keepdim=True) for axis in (middle, start))
    turned: Tensor = source - 2 * along * middle + 2 * first * end
    scale: Tensor = lengths[1] / lengths[0].clamp(min=1e-6)
    return turned * scale.detach()
