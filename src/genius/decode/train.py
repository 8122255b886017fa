"""Stage 2: the decoder learns the codes of a query's target (paper 4.3).

Everything lies on the device: vectors of items and queries are fused once, by a quantizer that is frozen and
in eval mode, and a step draws its rows without any Python per sample: a fresh order every epoch, and for each
query a fresh positive and a fresh instruction every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from genius.decode.augment import Augmentation, augment
from genius.decode.model import Decoder
from genius.decode.plain_beam import CodePool, best_items, hit_rates
from genius.decode.targets import Softness, SoftTargets, level_losses, mean_nearest
from genius.encode.weights import fingerprint_tensors
from genius.errors import BadInput
from genius.quantize.model import Quantizer
from genius.quantize.pairs import Pairs
from genius.training.loop import Result, run
from genius.training.schedule import Plan, generator_for

ROWS_AT_ONCE = 16_384


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the decoder is taught; the fields are those of the recipe's `decoder_training` table."""

    augmentation: Augmentation = "paper"
    alpha: float = 2.0  # Beta(alpha, alpha)
    plain: float = 0.0  # share of queries that are not augmented
    soft: Softness | None = None  # None: hard targets
    indexing: float = 0.0  # share of rows that are an item asking for itself


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
    plan: Plan,
    lesson: Lesson,
    *,
    folder: Path,
    seed: int,
    check: Check = Check(),  # noqa: B008 (frozen)
    resident_bytes: int = 16 << 30,
    show: bool = True,
) -> Result:
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
    item_z, item_codes = encode_items(quantizer, train)
    queries = QueryVectors(quantizer, train, resident_bytes)
    loss = _loss_of(decoder, quantizer, item_z, item_codes, lesson.soft)
    if plan.compile:
        loss = _compiled(loss, train.device)

    def step(number: int) -> Mapping[str, Tensor]:
        batch = train.sample(number, plan.batch, seed)
        generator = generator_for(train.device, seed, "augment", number)
        item, z_query = batch.item, queries(batch.query, batch.text)
        if lesson.indexing:
            own = torch.rand(len(item), generator=generator, device=item.device) < lesson.indexing
            any_item = torch.randint(train.items, item.shape, generator=generator, device=item.device)
            item = torch.where(own, any_item, item)
            z_query = torch.where(own[:, None], item_z[item].float(), z_query)
        z_item = item_z[item].float()
        z = augment(z_query, z_item, lesson.augmentation, generator, lesson.alpha, lesson.plain)
        levels = loss(z[batch.part], z_item[batch.part], item_codes[item][batch.part])
        return {"loss": levels.mean(), "loss_0": levels[0], "loss_last": levels[-1]}

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


@torch.no_grad()
def encode_items(quantizer: Quantizer, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """z (items, dim), narrow on CUDA, and codes (items, levels) of all items."""
    z = torch.empty(pairs.items, quantizer.dim, dtype=_kept(pairs.device), device=pairs.device)
    codes = torch.empty(pairs.items, quantizer.levels, dtype=torch.long, device=pairs.device)
    for rows in _chunks(torch.arange(pairs.items, device=pairs.device), ROWS_AT_ONCE):
        part = quantizer(*pairs.item_parts(rows))
        z[rows], codes[rows] = part.to(z.dtype), quantizer.encode(part, pairs.item_modality[rows])
    return z, codes


class QueryVectors:
    """z of a query under one of its instructions; fused once for every such pair if there is room."""

    def __init__(self, quantizer: Quantizer, pairs: Pairs, resident_bytes: int) -> None:
        self.quantizer, self.pairs = quantizer, pairs
        owner = torch.arange(pairs.queries, device=pairs.device).repeat_interleave(
            pairs.query_text_start.diff()
        )
        self.keys = torch.unique(owner * len(pairs.texts) + pairs.query_text)  # ascending
        self.z: Tensor | None = None
        kept = _kept(pairs.device)
        if len(self.keys) * pairs.dim * kept.itemsize <= resident_bytes:
            parts = [
                self._fuse(key // len(pairs.texts), key % len(pairs.texts))
                for key in _chunks(self.keys, ROWS_AT_ONCE)
            ]
            self.z = torch.cat([part.to(kept) for part in parts])

    def __call__(self, query: Tensor, text: Tensor) -> Tensor:
        """z (n, dim), float32, of query rows and the text rows drawn for them."""
        if self.z is None:
            return self._fuse(query, text)
        return self.z[torch.searchsorted(self.keys, query * len(self.pairs.texts) + text)].float()

    @torch.no_grad()
    def _fuse(self, query: Tensor, text: Tensor) -> Tensor:
        z: Tensor = self.quantizer(*self.pairs.query_parts(query, text))
        return z


def validator(
    decoder: Decoder, quantizer: Quantizer, val: Pairs, check: Check, precision: str = "float32"
) -> Callable[[], dict[str, float]]:
    """A function that gives the hit rates of the decoder's own score in the pool of `val`."""
    pool = CodePool.build(encode_items(quantizer, val)[1], decoder.shape.sizes)
    spread = torch.linspace(0, val.queries - 1, min(check.queries, val.queries), device=val.device)
    rows = spread.round().long()
    with torch.no_grad():
        z = torch.cat([quantizer(*val.query_parts(part)) for part in _chunks(rows, ROWS_AT_ONCE)])

    def validate() -> dict[str, float]:
        with torch.autocast(val.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            found = [best_items(decoder, pool, part, check.beam, 10) for part in _chunks(z, check.rows)]
        return hit_rates(val, rows, torch.cat(found))

    return validate


Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # (query z, item z, item codes) -> loss of each level


def _loss_of(decoder: Decoder, quantizer: Quantizer, z: Tensor, codes: Tensor, soft: Softness | None) -> Loss:
    if soft is None:
        return lambda z_query, z_item, code: level_losses(decoder(z_query, code), code)
    books = quantizer.residual.codebooks()
    nearest = mean_nearest(z, codes, books)
    targets = SoftTargets(books, nearest, soft, first_level=quantizer.residual.first)
    share = soft.hard_share

    def loss(z_query: Tensor, z_item: Tensor, code: Tensor) -> Tensor:
        return level_losses(decoder(z_query, code), code, targets(z_query, z_item, code), share)

    return loss


def _compiled(loss: Loss, device: torch.device) -> Loss:
    """`loss` compiled; on CUDA it is replayed as a graph, since small batches wait for kernel launches."""
    if device.type != "cuda":
        return torch.compile(loss, dynamic=False)
    fast = torch.compile(loss, dynamic=False, mode="reduce-overhead")

    def replayed(z_query: Tensor, z_item: Tensor, code: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return fast(z_query, z_item, code).clone()  # the graph's own output is overwritten by the next step

    return replayed


def _kept(device: torch.device) -> torch.dtype:
    return torch.float16 if device.type == "cuda" else torch.float32


def _chunks(rows: Tensor, size: int) -> Iterator[Tensor]:
    return (rows[start : start + size] for start in range(0, len(rows), size))
