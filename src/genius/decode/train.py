"""Stage 2: the decoder learns the codes of a query's target (paper 4.3).

Everything lies on the device: vectors of items and queries are fused once, by a quantizer that is frozen and
in eval mode, and a step draws its rows without any Python per sample: a fresh order every epoch, and for each
query a fresh positive and a fresh instruction every time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from genius.config import OptimiserConfig
from genius.data.pairs import Pairs
from genius.decode.augment import Augmentation, augment
from genius.decode.model import Decoder
from genius.decode.plain_beam import CodePool, best_items, hit_rates
from genius.decode.rivals import Rivals, line_up, list_loss
from genius.decode.targets import Softness, SoftTargets, level_losses, mean_nearest
from genius.decode.vectors import QueryVectors, chunks, encode_items
from genius.errors import BadInput
from genius.quantize.model import Quantizer
from genius.seeding import generator_for
from genius.training.distributed import rank_slice
from genius.training.loop import TrainingResult, run
from genius.weights import fingerprint_tensors


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the decoder is taught; the defaults are the paper's."""

    augmentation: Augmentation = "paper"
    alpha: float = 2.0  # Beta(alpha, alpha)
    plain: float = 0.0  # share of queries that are not augmented
    soft: Softness | None = None  # None: hard targets
    rivals: Rivals | None = None  # None: no listwise term
    indexing: float = 0.0  # share of rows that are an item asking for itself
    balance: float = 1.0  # tasks are drawn by size ** balance


@dataclass(frozen=True, slots=True)
class Check:
    """How the decoder is validated: by the hit rate of its own score in a plain beam search."""

    queries: int = 5000  # at most that many, evenly spread over all
    beam: int = 50
    rows: int = 256  # queries searched at once


def train_decoder(
    decoder: Decoder,
    quantizer: Quantizer,
    train: Pairs,
    val: Pairs | None,
    plan: OptimiserConfig,
    lesson: Lesson,
    *,
    folder: Path,
    seed: int,
    check: Check = Check(),  # noqa: B008 (frozen)
    resident_bytes: int = 16 << 30,
    show: bool = True,
) -> TrainingResult:
    """Train `decoder` on `train` and leave the weights with the best val hit@5 in it.

    All modules and pairs are on one device. `folder` gets checkpoint, log and best weights; a run found there
    is resumed. Query vectors are kept if they need no more than `resident_bytes`, else fused in every step.
    """
    if tuple(quantizer.sizes) != decoder.shape.sizes or quantizer.dim != decoder.shape.dim:
        raise BadInput(
            f"decoder for codes {decoder.shape.sizes} of width {decoder.shape.dim}, quantizer with "
            f"{tuple(quantizer.sizes)} of width {quantizer.dim}: build one for the other"
        )
    quantizer.eval()
    train = train.balanced(lesson.balance)
    item_z, item_codes = encode_items(quantizer, train)
    queries = QueryVectors(quantizer, train, resident_bytes)
    loss = _loss_of(decoder, quantizer, item_z, item_codes, lesson)
    if plan.compile:
        loss = _compiled(loss, train.device)

    part = rank_slice(plan.batch)

    def step(number: int) -> Mapping[str, Tensor]:
        batch, rivals = train.sample(number, plan.batch, seed), lesson.rivals
        generator = generator_for(train.device, seed, "augment", number)
        item, z_query = batch.item, queries(batch.query, batch.text)
        if lesson.indexing:
            own = torch.rand(len(item), generator=generator, device=item.device) < lesson.indexing
            any_item = torch.randint(train.items, item.shape, generator=generator, device=item.device)
            item = torch.where(own, any_item, item)
            z_query = torch.where(own[:, None], item_z[item].float(), z_query)
        z_item = item_z[item].float()
        z = augment(z_query, z_item, lesson.augmentation, generator, lesson.alpha, lesson.plain)
        z, z_item, query, item = (rows[part] for rows in (z, z_item, batch.query, item))
        row, usable = item[:, None], torch.ones(len(item), 1, dtype=torch.bool, device=item.device)
        if rivals is not None:
            drawn = rivals.draw(train.items, generator)
            row, usable = line_up(z, query, item, drawn, item_z, item_codes, train, rivals.count)
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
        plan,
        folder=folder,
        seed=seed,
        validate=None if val is None else validator(decoder, quantizer, val, check, plan.precision),
        settings={
            "lesson": asdict(lesson),
            "shape": asdict(decoder.shape),
            "quantizer": fingerprint_tensors(quantizer.state_dict(), [repr(quantizer.shape())]),
            "data": [train.queries, train.items],
        },
        show=show,
    )


def validator(
    decoder: Decoder, quantizer: Quantizer, val: Pairs, check: Check, precision: str = "float32"
) -> Callable[[], dict[str, float]]:
    """A function that gives the hit rates of the decoder's own score in the pool of `val`."""
    pool = CodePool.build(encode_items(quantizer, val)[1], decoder.shape.sizes)
    spread = torch.linspace(0, val.queries - 1, min(check.queries, val.queries), device=val.device)
    rows = spread.round().long()
    with torch.no_grad():
        z = torch.cat([quantizer(*val.query_parts(part)) for part in chunks(rows)])

    def validate() -> dict[str, float]:
        with torch.autocast(val.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            found = [best_items(decoder, pool, part, check.beam, 10) for part in chunks(z, check.rows)]
        return hit_rates(val, rows, torch.cat(found))

    return validate


# (query z, item z, codes (batch, n, levels) with the item's own first, which of them count (batch, n))
# -> the loss of each level and, with rivals, the listwise loss
Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _loss_of(decoder: Decoder, quantizer: Quantizer, z: Tensor, codes: Tensor, lesson: Lesson) -> Loss:
    soft, books = lesson.soft, quantizer.residual.codebooks()
    first = quantizer.residual.first
    targets = SoftTargets(books, mean_nearest(z, codes, books), soft, first_level=first) if soft else None

    def loss(z_query: Tensor, z_item: Tensor, codes: Tensor, usable: Tensor) -> Tensor:
        logits = decoder(z_query, codes)
        wanted = targets(z_query, z_item, codes[:, 0]) if targets else None
        own = [scores[:, 0] for scores in logits]
        levels = level_losses(own, codes[:, 0], wanted, soft.hard_share if soft else 0.0)
        if lesson.rivals is None:
            return levels
        return torch.cat([levels, list_loss(logits, codes, usable)[None]])

    return loss


def _compiled(loss: Loss, device: torch.device) -> Loss:
    """`loss` compiled; on CUDA it is replayed as a graph, since small batches wait for kernel launches."""
    if device.type != "cuda":
        return torch.compile(loss, dynamic=False)
    fast = torch.compile(loss, dynamic=False, mode="reduce-overhead")

    def replayed(*inputs: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return fast(*inputs).clone()  # the graph's own output is overwritten by the next step

    return replayed
