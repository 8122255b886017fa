"""Codebooks tuned for ranking: after refinement, code vectors learn to separate items that queries ask for.

Refinement brings the sum of an item's code vectors near to its z; a search needs the query's own item to be
nearer than the others. So, with codes and fusion fixed, the code vectors alone are trained on

    L_cl(z_query, sum of the item's code vectors) + error * |z_item - sum|^2          (not in the paper)

the contrastive loss of stage 1, on the quantized item. The second term keeps the sums near z, so that
encoding still finds the same codes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from genius.config import TuningConfig
from genius.data.pairs import Pairs
from genius.quantize.model import Quantizer
from genius.quantize.recall import fuse_items
from genius.training.contrastive import contrastive_loss
from genius.training.distributed import all_reduce_mean, rank_slice


def tune(quantizer: Quantizer, pairs: Pairs, tuning: TuningConfig, seed: int = 0) -> tuple[float, ...]:
    """Train the code vectors of `quantizer`, in place; returns the loss of each step.

    All processes take their part of each batch. The vectors of level 0 stay unless it is assigned: elsewhere
    they decide which modality a vector gets.
    """
    residual = quantizer.residual
    z_item = fuse_items(quantizer, pairs)
    codes = quantizer.encode(z_item, pairs.item_modality)
    vectors = residual.vectors.clone().requires_grad_(True)
    fixed = 0 if residual.modality == "assigned" else residual.starts[residual.first_level]  # rows of level 0
    optimiser = torch.optim.Adam([vectors], lr=tuning.rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, max(tuning.steps, 1))
    losses: list[Tensor] = []
    part = rank_slice(tuning.batch)
    for step in range(tuning.steps):
        batch = pairs.sample(step, tuning.batch, seed)
        query, item = batch.query[part], batch.item[part]
        with torch.no_grad():
            z_query = quantizer(*pairs.query_parts(query, batch.text[part]))
        total = vectors[residual.rows(codes[item])].sum(1)
        positive = pairs.are_positive(batch.query[:, None], batch.item)
        ranking = contrastive_loss(z_query, total, tuning.temperature, positive)
        loss = ranking + tuning.error * (z_item[item] - total).square().sum(1).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        assert vectors.grad is not None
        all_reduce_mean(vectors.grad)[:fixed] = 0
        optimiser.step()
        schedule.step()
        losses.append(all_reduce_mean(loss.detach()))
    with torch.no_grad():
        residual.vectors.copy_(vectors)
    return tuple(torch.stack(losses).tolist()) if losses else ()
