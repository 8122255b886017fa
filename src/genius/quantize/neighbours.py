"""Code vectors that keep the order of neighbours: the last step of a fit to a collection of some thousands.

Refinement brings the sum of an item's code vectors near to its z, in any direction. But a query changes the
order of its answers by the error along the differences between an item and those around it. So, with codes
fixed, the code vectors are trained on

    |e|^2 + weight * mean over neighbours of <neighbour - z, e>^2,     e = sum of code vectors - z

where the neighbours are items of any modality. No query is needed: queries lie where items do. The codes of
an item are still found by the code vectors as they were refined, which `ResidualQuantizer.encoding` holds.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.quantize.residual import ResidualQuantizer

NEIGHBOURS = 32  # of an item; some of them are drawn for each step
DRAWN = 8
WEIGHT = 50.0
BATCH, PASSES, LEAST_STEPS = 1024, 25, 150
RATE, LAST_RATE = 1e-3, 0.05  # the last as a share of the first
ITEMS_AT_ONCE = 1024


def keep_neighbours(
    quantizer: ResidualQuantizer, z: Tensor, codes: Tensor, generator: torch.Generator
) -> tuple[float, ...]:
    """Train the code vectors, in place, on items z (n, dim) with codes (n, levels); returns the losses."""
    rows, near = quantizer.rows(codes), nearest_items(z)
    vectors = quantizer.vectors.clone().requires_grad_(True)
    steps = max(LEAST_STEPS, PASSES * len(z) // BATCH)
    optimiser = torch.optim.Adam([vectors], lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, LAST_RATE, steps)
    losses = []
    for _ in range(steps):
        batch = torch.randint(len(z), (BATCH,), generator=generator, device=z.device)
        drawn = torch.randint(near.shape[1], (BATCH, DRAWN), generator=generator, device=z.device)
        item = z[batch]
        error = F.embedding_bag(rows[batch], vectors, mode="sum") - item
        apart = z[near[batch].gather(1, drawn)] - item[:, None]  # (batch, drawn, dim)
        along = (apart @ error[:, :, None]).square().mean()
        loss = error.square().sum(1).mean() + WEIGHT * along
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        losses.append(loss.detach())
    with torch.no_grad():
        quantizer.vectors.copy_(vectors)
    return tuple(torch.stack(losses).tolist())


@torch.no_grad()
def nearest_items(z: Tensor) -> Tensor:
    """The items of z (n, dim) that are nearest to each of them, itself included, (n, NEIGHBOURS or fewer)."""
    count = min(NEIGHBOURS, len(z))
    parts = torch.split(z, ITEMS_AT_ONCE)
    return torch.cat([(part @ z.T).topk(count, sorted=False).indices for part in parts])
