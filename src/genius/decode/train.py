"""Stage 2: the decoder learns the codes of a query's target (paper 4.3).

All data is on the device: items and queries are fused once, by a quantizer that is frozen and in eval mode,
and a step samples its rows without Python code per row: a new permutation every epoch, and for each query a
new positive and a new instruction every time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genius.config import OptimiserConfig
from genius.data.pairs import Pairs
from genius.decode.augment import Augmentation, augment
from genius.decode.model import Decoder
from genius.decode.rivals import Rivals, list_loss, nearest_rivals
from genius.decode.targets import SoftTargetOptions, SoftTargets, level_losses, temperatures_of
from genius.decode.validation import DecoderValidation, validator
from genius.decode.vectors import QueryVectors, encode_items
from genius.errors import BadInput
from genius.quantize.model import Quantizer
from genius.seeding import generator_for
from genius.training.compiled import compiled
from genius.training.distributed import rank_slice
from genius.training.loop import TrainingResult, run
from genius.weights import fingerprint_tensors


@dataclass(frozen=True, slots=True)
class DecoderObjective:
    """What the decoder is trained to do; the defaults are the paper's."""

    augmentation: Augmentation = "paper"
    alpha: float = 2.0  # Beta(alpha, alpha)
    plain: float = 0.0  # share of queries that are not augmented
    soft: SoftTargetOptions | None = None  # None: hard targets
    rivals: Rivals | None = None  # None: no listwise term
    indexing: float = 0.0  # share of rows whose query is the item itself
    balance: float = 1.0  # tasks are drawn by size ** balance


def train_decoder(
    decoder: Decoder,
    quantizer: Quantizer,
    train: Pairs,
    val: Pairs | None,
    optimiser: OptimiserConfig,
    objective: DecoderObjective,
    *,
    folder: Path,
    seed: int,
    validation: DecoderValidation = DecoderValidation(),  # noqa: B008 (frozen)
    resident_bytes: int = 16 << 30,
    notes: Mapping[str, Any] | None = None,
    show: bool = True,
) -> TrainingResult:
    """Train `decoder` on `train`; it ends with the weights that had the best val hit@5.

    All modules and pairs are on one device. `folder` gets checkpoint, log and best weights; a run found there
    is resumed, or refused if its `notes` (plain values that say where vectors and first weights come from)
    were others. Query vectors are kept if they need no more than `resident_bytes`, else fused in every step.
    """
    if tuple(quantizer.sizes) != decoder.shape.sizes or quantizer.dim != decoder.shape.dim:
        raise BadInput(
            f"decoder for codes {decoder.shape.sizes} of width {decoder.shape.dim}, quantizer with "
            f"{tuple(quantizer.sizes)} of width {quantizer.dim}: build one for the other"
        )
    quantizer.eval()
    train = train.balanced(objective.balance)
    item_z, item_codes = encode_items(quantizer, train)
    queries = QueryVectors(quantizer, train, resident_bytes)
    loss = _loss_of(decoder, quantizer, item_z, item_codes, objective)
    if optimiser.compile:
        loss = compiled(loss, train.device)

    part = rank_slice(optimiser.batch)

    def step(number: int) -> Mapping[str, Tensor]:
        batch, rivals = train.sample(number, optimiser.batch, seed), objective.rivals
        generator = generator_for(train.device, seed, "augment", number)
        item, z_query = batch.item, queries(batch.query, batch.text)
        if objective.indexing:
            replaced = torch.rand(len(item), generator=generator, device=item.device) < objective.indexing
            any_item = torch.randint(train.items, item.shape, generator=generator, device=item.device)
            item = torch.where(replaced, any_item, item)
            z_query = torch.where(replaced[:, None], item_z[item].float(), z_query)
        z_item = item_z[item].float()
        z = augment(z_query, z_item, objective.augmentation, generator, objective.alpha, objective.plain)
        z, z_item, query, item = (rows[part] for rows in (z, z_item, batch.query, item))
        row, usable = item[:, None], torch.ones(len(item), 1, dtype=torch.bool, device=item.device)
        if rivals is not None:
            sample = rivals.sample(train.items, generator)
            row, usable = nearest_rivals(z, query, item, sample, item_z, item_codes, train, rivals.count)
        losses = loss(z, z_item, item_codes[row], usable)
        levels = losses[: decoder.shape.levels]
        figures = {"loss": levels.mean(), "loss_0": levels[0], "loss_last": levels[-1]}
        if rivals is not None:
            figures |= {"loss": figures["loss"] + rivals.weight * losses[-1], "ranking": losses[-1]}
        return figures

    return run(
        "decoder",
        decoder,
        step,
        optimiser,
        folder=folder,
        seed=seed,
        validate=None if val is None else validator(decoder, quantizer, val, validation, optimiser.precision),
        settings={
            "lesson": asdict(objective),  # the key that checkpoints have
            "shape": asdict(decoder.shape),
            "quantizer": fingerprint_tensors(quantizer.state_dict(), [repr(quantizer.shape())]),
            "data": [train.queries, train.items],
            **(notes or {}),
        },
        show=show,
    )


# (query z, item z, codes (batch, n, levels) the item's own first, which of them are used (batch, n))
# -> the loss of each level and, with rivals, the listwise loss
Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _loss_of(
    decoder: Decoder, quantizer: Quantizer, z: Tensor, codes: Tensor, objective: DecoderObjective
) -> Loss:
    soft, books = objective.soft, quantizer.residual.codebooks()
    first = quantizer.residual.first_level
    normalised = decoder.shape.normalise == "vocabulary"
    targets = (
        SoftTargets(books, temperatures_of(z, codes, books, soft), soft, first_level=first) if soft else None
    )

    def loss(z_query: Tensor, z_item: Tensor, codes: Tensor, usable: Tensor) -> Tensor:
        logits = decoder(z_query, codes)
        soft_targets = targets(z_query, z_item, codes[:, 0]) if targets else None
        own = [scores[:, 0] for scores in logits]
        hard_share = soft.hard_share if soft else 0.0
        levels = level_losses(own, codes[:, 0], soft_targets, hard_share, normalised=normalised)
        if objective.rivals is None:
            return levels
        return torch.cat([levels, list_loss(logits, codes, usable, normalised=normalised)[None]])

    return loss
