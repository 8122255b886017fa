"""Stage 1: fusion and codebooks are trained together (paper 4.2), on embeddings that are on the device.

    L = contrastive * L_cl + residual * L_rq + agreement * L_mse          (eq. 8)

A step samples its batch, fuses queries and items in one pass, quantizes, computes the losses and updates the
codebooks; only the log waits for the device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from genius.config import OptimiserConfig, TuningConfig
from genius.data.pairs import Pairs
from genius.errors import BadInput, TrainingStopped
from genius.quantize.codebooks import MovingAverage, init_codebooks
from genius.quantize.health import LEAST_PURITY, LEAST_USAGE, CodeHealth, measure
from genius.quantize.losses import AgreementGradient, agreement_loss, residual_loss
from genius.quantize.model import Quantizer
from genius.quantize.recall import code_recall, fuse_items, fuse_queries, least_share_of_phi, phi_recall
from genius.quantize.refine import refine
from genius.quantize.tune import tune
from genius.seeding import generator_for
from genius.training.contrastive import contrastive_loss
from genius.training.distributed import barrier, broadcast_module, exists_on_all_ranks, is_main, rank_slice
from genius.training.loop import TrainingResult, run
from genius.training.schedule import trainable
from genius.weights import check_fit, fingerprint_tensors, read_tensors, save_weights

NAME = "quantizer"
HEALTH_SAMPLE = 50_000  # items and queries whose codes are measured, at most
REFINE_SAMPLE = 1_000_000  # items the codebooks are refined on, at most
PHI_SAMPLE = 2_000  # train queries that phi is measured with, at most


@dataclass(frozen=True, slots=True)
class QuantizerObjective:
    """The loss of a step and how the codebooks are updated; the fields are those of the recipe."""

    temperature: float = 0.01
    contrastive: float = 1.0
    residual: float = 100.0  # beta
    agreement: float = 100.0  # gamma
    agreement_gradient: AgreementGradient = "once"
    mask_positives: bool = True
    decay: float = 0.9
    dead_below: float = 2.0


@dataclass(frozen=True, slots=True)
class TrainedQuantizer:
    """The outcome of stage 1."""

    result: TrainingResult | None  # None where the fusion has nothing to learn
    errors: tuple[float, ...]  # of the train items, before each round of refinement and after the last
    figures: Mapping[str, float]  # validation of the final quantizer, and of phi for comparison
    health: CodeHealth


class TrainableQuantizer(nn.Module):
    """The quantizer with the moving averages that only training needs; checkpoints hold its state."""

    def __init__(self, quantizer: Quantizer, objective: QuantizerObjective) -> None:
        super().__init__()
        self.quantizer = quantizer
        self.moving = MovingAverage(quantizer.residual, objective.decay, objective.dead_below)


def train_quantizer(
    quantizer: Quantizer,
    train: Pairs,
    val: Pairs | None,
    optimiser: OptimiserConfig,
    objective: QuantizerObjective,
    *,
    folder: Path,
    seed: int,
    kmeans_sample: int = 100_000,
    refine_rounds: int = 0,
    tuning: TuningConfig | None = None,
    least_purity: float = LEAST_PURITY,
    least_usage: float = LEAST_USAGE,
    notes: Mapping[str, Any] | None = None,
    show: bool = True,
) -> TrainedQuantizer:
    """Train `quantizer` in place, keep the weights that are best on `val`, refine and tune the codebooks.

    `train` must be on the quantizer's device. A run found in `folder` is resumed, or refused if its `notes`
    (plain values that say where the vectors come from) were others. Raises TrainingStopped when a loss is not
    finite or the codes collapse.
    """
    if not (objective.contrastive or objective.residual or objective.agreement):
        raise BadInput("all loss weights are 0: set contrastive, residual or agreement")
    module = TrainableQuantizer(quantizer, objective).to(quantizer.device)
    if not exists_on_all_ranks(folder / "checkpoint.safetensors"):
        broadcast_module(module)
        _start(module, train, optimiser.batch, kmeans_sample, seed)
    result = None
    if any(True for _ in trainable(module)):
        result = run(
            NAME,
            module,
            make_step(module, train, optimiser, objective, seed),
            optimiser,
            folder=folder,
            seed=seed,
            validate=None if val is None else _validation(quantizer, val),
            metric="chosen",
            settings={
                **asdict(objective),
                **quantizer.shape(),
                "kmeans_sample": kmeans_sample,
                **(notes or {}),
            },
            show=show,
        )
    quantizer.eval()
    errors = _finish(quantizer, train, refine_rounds, tuning, folder / "finished.safetensors", seed)
    health = health_of(quantizer, train if val is None else val, seed)
    health.check(least_purity, least_usage)
    figures = {} if val is None else _figures(quantizer, train, val, seed)
    return TrainedQuantizer(result, errors, figures, health)


def make_step(
    module: TrainableQuantizer,
    pairs: Pairs,
    optimiser: OptimiserConfig,
    objective: QuantizerObjective,
    seed: int,
) -> Callable[[int], dict[str, Tensor]]:
    """The function of one step: it updates the codebooks and returns the losses by name."""
    quantizer, residual = module.quantizer, module.quantizer.residual
    fuse: Callable[..., Tensor] = quantizer.fusion
    if optimiser.compile:
        fuse = torch.compile(fuse)

    part = rank_slice(optimiser.batch)

    def step(number: int) -> dict[str, Tensor]:
        batch = pairs.sample(number, optimiser.batch, seed)
        query, item = batch.query[part], batch.item[part]
        parts = zip(pairs.query_parts(query, batch.text[part]), pairs.item_parts(item), strict=True)
        z = fuse(*(torch.stack(both, dim=1).flatten(0, 1) for both in parts))  # query, its item, …: (2n, dim)
        modality = pairs.item_modality[item].repeat_interleave(2)  # of a query: that of its target
        with torch.autocast(z.device.type, enabled=False):
            codes = residual.encode(z.detach(), modality)
            partial = residual.partial_sums(codes)
            positive = None
            if objective.mask_positives:
                positive = pairs.are_positive(batch.query[:, None], batch.item)
            # level 0 of a classifier subtracts nothing
            quantized = partial if residual.classifier is None else partial[:, 1:]
            losses = stage_losses(z, quantized, objective, positive)
            if residual.classifier is not None:
                losses["classifier"] = F.cross_entropy(residual.classifier(z.detach()), modality)
                losses["loss"] = losses["loss"] + losses["classifier"]
            before = z.detach()[:, None] - F.pad(partial, (0, 0, 1, 0))[:, :-1]
            module.moving.update(residual, before, codes, generator_for(z.device, seed, "revive", number))
        return losses

    return step


def stage_losses(
    z: Tensor, partial: Tensor, objective: QuantizerObjective, positive: Tensor | None = None
) -> dict[str, Tensor]:
    """The losses of eq. 8 by name, `loss` being their weighted sum; a loss with weight 0 is left out.

    z (2n, dim) and the quantized vectors after each level, partial (2n, levels, dim): in both, a query and
    its item take turns.
    """
    query, item = z[0::2], z[1::2]
    losses: dict[str, Tensor] = {}
    if objective.contrastive:
        losses["contrastive"] = contrastive_loss(query, item, objective.temperature, positive)
    if objective.residual:
        losses["residual"] = residual_loss(z, partial)
    if objective.agreement:
        losses["agreement"] = agreement_loss(
            query, item, partial[0::2], partial[1::2], objective.agreement_gradient
        )
    weighted = [getattr(objective, name) * value for name, value in losses.items()]
    return {"loss": torch.stack(weighted).sum(), **losses}


def health_of(quantizer: Quantizer, pairs: Pairs, seed: int = 0) -> CodeHealth:
    """Statistics of the items' codes (of a sample, if there are many) and their agreement with the queries'.

    Raises TrainingStopped if z is not a unit vector.
    """
    items = _sample(pairs.items, HEALTH_SAMPLE, pairs.device, seed, "health items")
    queries = _sample(pairs.queries, HEALTH_SAMPLE, pairs.device, seed, "health queries")
    z, modality = fuse_items(quantizer, pairs, items), pairs.item_modality[items]
    shortest = float(z.norm(dim=1).min())
    if not shortest > 0.99:  # a sum that overflows is normalised to 0, which is finite
        raise TrainingStopped(
            f"{NAME}: z of length {shortest} instead of 1, the fusion blew up; lower the rate"
        )
    codes = quantizer.encode(z, modality)
    targets = pairs.positive[pairs.positive_start[queries]]
    target_modality = pairs.item_modality[targets]
    query_codes = quantizer.encode(fuse_queries(quantizer, pairs, queries), target_modality)
    target_codes = quantizer.encode(fuse_items(quantizer, pairs, targets), target_modality)
    return measure(
        codes.cpu().numpy(),
        quantizer.sizes,
        modality=modality.cpu().numpy() if quantizer.residual.first_level else None,
        error=float((z - quantizer.decode(codes)).square().sum(1).mean()),
        query_codes=query_codes.cpu().numpy(),
        target_codes=target_codes.cpu().numpy(),
    )


def _start(module: TrainableQuantizer, pairs: Pairs, batch: int, sample: int, seed: int) -> None:
    """Codebooks by k-means on a sample of items and queries, fused by the untrained fusion."""
    quantizer = module.quantizer.eval()
    items = _sample(pairs.items, (sample + 1) // 2, pairs.device, seed, "k-means items")
    queries = _sample(pairs.queries, sample - len(items), pairs.device, seed, "k-means queries")
    z = torch.cat([fuse_items(quantizer, pairs, items), fuse_queries(quantizer, pairs, queries)])
    if not bool(z.isfinite().all()):
        raise TrainingStopped(
            f"{NAME}: NaN or Inf in z before step 1: check the vectors and the weights it starts from"
        )
    modality = torch.cat([pairs.item_modality[items], pairs.wanted[queries]])
    codes = init_codebooks(quantizer.residual, z, modality, generator_for(pairs.device, seed, "k-means"))
    module.moving.start(quantizer.residual, codes, 2 * batch)


def _finish(
    quantizer: Quantizer, train: Pairs, rounds: int, tuning: TuningConfig | None, file: Path, seed: int
) -> tuple[float, ...]:
    """Refine and tune the codebooks; returns the errors of `_refine`.

    The result is cached in `file` for a run that is resumed: sums on a GPU are not deterministic, and a
    decoder needs exactly the quantizer it was trained with.
    """
    if not rounds and tuning is None:
        return ()
    how = [str(rounds), "" if tuning is None else json.dumps(tuning.model_dump()), str(seed)]
    start = fingerprint_tensors(quantizer.state_dict(), how)
    if exists_on_all_ranks(file):
        tensors, notes = read_tensors(file)
        if notes.get("start") == start:
            check_fit(quantizer.state_dict(), tensors, file)
            quantizer.load_state_dict(tensors)
            return tuple(json.loads(notes["errors"]))
    errors = _refine(quantizer, train, rounds, seed) if rounds else ()
    if tuning is not None:
        tune(quantizer, train, tuning, seed)
    barrier()  # all processes have checked whether the file exists
    if is_main():
        save_weights(quantizer.state_dict(), file, {"start": start, "errors": json.dumps(errors)})
    return errors


def _refine(quantizer: Quantizer, pairs: Pairs, rounds: int, seed: int) -> tuple[float, ...]:
    items = _sample(pairs.items, REFINE_SAMPLE, pairs.device, seed, "refine")
    errors: tuple[float, ...] = ()
    if is_main():
        z, modality = fuse_items(quantizer, pairs, items), pairs.item_modality[items]
        beam = quantizer.encode_beam
        errors = refine(quantizer.residual, z, modality, rounds=rounds, beam=beam, seed=seed)
    broadcast_module(quantizer)
    return errors


def _validation(quantizer: Quantizer, val: Pairs) -> Callable[[], Mapping[str, float]]:
    """Weights are chosen by the mean hit rate of the codes, times the share of phi that z keeps at least.

    A fusion that learns the train pairs by heart can raise the mean while one task loses a fifth.
    """

    def validate() -> Mapping[str, float]:
        health_of(quantizer, val).check(least_purity=0.0)  # early in training purity may still be low
        figures, least = code_recall(quantizer, val), least_share_of_phi(quantizer, val)
        return {**figures, "least_z/phi": least, "chosen": figures["hit@5"] * least}

    return validate


def _figures(quantizer: Quantizer, train: Pairs, val: Pairs, seed: int) -> dict[str, float]:
    """The final quantizer on `val`, with phi on both splits: train far above val was learned by heart.

    Train queries are searched for among as many items as `val` has, their positives among them.
    """
    queries = _sample(train.queries, PHI_SAMPLE, train.device, seed, "phi queries")
    positives = torch.unique(train.positive[train.positive_start[queries]])
    others = torch.ones(train.items, dtype=torch.bool, device=train.device)
    others[positives] = False
    rest = others.nonzero()[:, 0]
    rest = rest[_sample(len(rest), max(0, val.items - len(positives)), train.device, seed, "phi items")]
    items = torch.cat([positives, rest])
    return {
        **code_recall(quantizer, val),
        "least_z/phi": least_share_of_phi(quantizer, val),
        "hit@5_phi": phi_recall(val),
        "hit@5_phi_train": phi_recall(train, queries=queries, items=items),
    }


def _sample(count: int, size: int, device: torch.device, seed: int, what: str) -> Tensor:
    """Rows of a table with `count` rows: all of them, or `size` sampled without replacement."""
    if count <= size:
        return torch.arange(count, device=device)
    return torch.randperm(count, generator=generator_for(device, seed, what), device=device)[:size]
