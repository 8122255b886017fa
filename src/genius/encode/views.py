"""Random augmented views of images, made for a whole batch at once on its device."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def random_views(
    pixels: Tensor, generator: torch.Generator, *, smallest: float, flip: bool, colour: float
) -> Tensor:
    """One view of each uint8 image (n, 3, s, s), as float32 in 0 … 255.

    A view is a random crop of at least the share `smallest` of the image, resized to the full square; with
    `flip`, half of them are mirrored. Brightness, contrast and saturation change by up to the share `colour`.
    """
    theta = random_crops(len(pixels), generator, smallest=smallest, flip=flip)
    views = cropped(pixels, theta, (pixels.shape[2], pixels.shape[3]))
    if colour:
        by = [_uniform(len(pixels), generator, 1 - colour, 1 + colour).view(-1, 1, 1, 1) for _ in range(3)]
        views = views * by[0]
        middle = views.mean(dim=(1, 2, 3), keepdim=True)
        views = (views - middle) * by[1] + middle
        grey = views.mean(dim=1, keepdim=True)
        views = ((views - grey) * by[2] + grey).clamp(0, 255)
    return views


def random_crops(count: int, generator: torch.Generator, *, smallest: float, flip: bool) -> Tensor:
    """Affine maps (count, 2, 3) to crops of at least the share `smallest`; with `flip`, half are mirrored."""

    def uniform(low: float, high: float) -> Tensor:
        return _uniform(count, generator, low, high)

    area, aspect = uniform(smallest, 1.0), torch.exp(uniform(-math.log(4 / 3), math.log(4 / 3)))
    aspect = torch.clamp(aspect, area, 1 / area)  # no side is longer than the image's
    wide, high = (area * aspect).sqrt(), (area / aspect).sqrt()
    theta = torch.zeros(count, 2, 3, device=generator.device)
    theta[:, 0, 0] = wide * (1 - 2 * (uniform(0, 1) < 0.5).float()) if flip else wide
    theta[:, 1, 1] = high
    theta[:, 0, 2] = (1 - wide) * uniform(-1, 1)
    theta[:, 1, 2] = (1 - high) * uniform(-1, 1)
    return theta


def cropped(pixels: Tensor, theta: Tensor, size: tuple[int, int]) -> Tensor:
    """The crop of each uint8 image (n, 3, h, w) that `theta` gives, resized to `size` (height, width)."""
    grid = F.affine_grid(theta, [len(pixels), 3, *size], align_corners=False)
    return F.grid_sample(pixels.float(), grid, padding_mode="reflection", align_corners=False)


def _uniform(count: int, generator: torch.Generator, low: float, high: float) -> Tensor:
    return torch.rand(count, generator=generator, device=generator.device) * (high - low) + low


def mixed(views: Tensor, generator: torch.Generator, share: float) -> Tensor:
    """A `share` of the views blended with another view of the batch, half and half at the most."""
    count = len(views)
    weight = torch.rand(count, 1, 1, 1, generator=generator, device=views.device) * 0.5
    chosen = torch.rand(count, 1, 1, 1, generator=generator, device=views.device) < share
    weight = torch.where(chosen, weight, torch.zeros_like(weight))
    return views * (1 - weight) + views.roll(1, dims=0) * weight
