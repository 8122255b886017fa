"""Stage 0: a two-tower encoder learns what queries with instructions want (paper 4.1, eq. 2).

genius train encoder recipes/mini-encoder.toml
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.images import open_image
from genius.data.training_set import TrainingSet
from genius.encode.base import TrainableEncoder
from genius.encode.views import random_views
from genius.training import distributed
from genius.training.loop import Result, run
from genius.training.schedule import Plan, generator_for


class Pictures:
    """Prepared pictures by row: all of them on the device when `resident`, else decoded when asked for."""

    def __init__(
        self, files: Sequence[Path], encoder: TrainableEncoder, device: torch.device, *, resident: bool
    ) -> None:
        self.files, self.encoder, self.device = files, encoder, device
        self.pool = ThreadPoolExecutor()
        self.table = self._decode(range(len(files))) if resident else None

    def _decode(self, rows: Sequence[int]) -> Tensor:
        def one(row: int) -> Tensor:
            return self.encoder.prepare_image(open_image(self.files[row]))

        return torch.stack(list(self.pool.map(one, rows, chunksize=16))).to(self.device)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """uint8 pixels (n, 3, height, width)."""
        return self._decode(rows.tolist()) if self.table is None else self.table[rows]


@dataclass(frozen=True, slots=True)
class Batch:
    """A draw of queries with one positive each, as rows of the training set's tables (-1: absent)."""

    query_image: Tensor
    query_text: Tensor
    item_image: Tensor
    item_text: Tensor
    item: Tensor  # rows of the items
    query: Tensor  # rows of the queries


class Sampler:
    """Draws batches on the device: a fresh positive and a fresh instruction every time."""

    def __init__(self, data: TrainingSet, device: torch.device, balance: float) -> None:
        self.weights = torch.from_numpy(data.query_weights(balance)).to(device)
        names = ("query_image", "query_texts", "item_image", "item_text", "offsets", "positives")
        self.rows = {name: torch.from_numpy(getattr(data, name)).to(device) for name in names}

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        """`count` queries, each with one of its positives."""
        rows = self.rows
        query = torch.multinomial(self.weights, count, replacement=True, generator=generator)
        first, last = rows["offsets"][query], rows["offsets"][query + 1]
        share = torch.rand(count, generator=generator, device=query.device)
        item = rows["positives"][first + (share * (last - first)).long()]
        variant = torch.randint(
            rows["query_texts"].shape[1], (count,), generator=generator, device=query.device
        )
        return Batch(
            query_image=rows["query_image"][query],
            query_text=rows["query_texts"][query, variant],
            item_image=rows["item_image"][item],
            item_text=rows["item_text"][item],
            item=item,
            query=query,
        )

    def also_positive(self, query: Tensor, item: Tensor) -> Tensor:
        """Whether item column j is a positive of query row i, (queries, items): no negative of it."""
        offsets, positives = self.rows["offsets"], self.rows["positives"]
        first, last = offsets[query], offsets[query + 1]
        most = int((last - first).max())
        place = first[:, None] + torch.arange(most, device=query.device)  # (queries, most)
        known = torch.where(place < last[:, None], positives[place.clamp(max=len(positives) - 1)], -1)
        return (known[:, :, None] == item[None, None, :]).any(dim=1)


def contrastive(query: Tensor, item: Tensor, same: Tensor, temperature: float) -> Tensor:
    """Eq. 2, both ways, by cosine: row i of `query` belongs to row i of `item`.

    Pairs in `same` (queries, items) are no negatives. In float32 whatever surrounds it: at a temperature of
    0.01 the rounding of half precision would drown the differences.
    """
    with torch.autocast(query.device.type, enabled=False):
        logits = F.normalize(query.float(), dim=1) @ F.normalize(item.float(), dim=1).T / temperature
    own = torch.eye(len(same), dtype=torch.bool, device=same.device)
    logits = logits.masked_fill(same & ~own, -torch.inf)
    target = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def scatter_rows(vectors: Tensor, rows: Tensor) -> Tensor:
    """`vectors[rows]`, with zeros where a row is -1: an absent part."""
    there = rows >= 0
    return torch.where(there[:, None], vectors[rows.clamp(min=0)], torch.zeros_like(vectors[:1]))


def fused(
    image_rows: Tensor, text_rows: Tensor, image: Callable[[Tensor], Tensor], text: Callable[[Tensor], Tensor]
) -> Tensor:
    """phi before its norm: image + text vectors of the rows, each tower called once on the distinct rows."""
    parts = []
    for rows, tower in ((image_rows, image), (text_rows, text)):
        distinct, place = torch.unique(rows, return_inverse=True)
        absent = bool(distinct[0] < 0)
        if absent and len(distinct) == 1:
            continue
        vectors = tower(distinct[1:] if absent else distinct).float()
        parts.append(scatter_rows(vectors, place - 1 if absent else place))
    return torch.stack(parts).sum(dim=0)


def train_encoder(
    encoder: TrainableEncoder,
    data: TrainingSet,
    plan: Plan,
    *,
    folder: Path,
    seed: int,
    device: torch.device,
    temperature: float = 0.01,
    mask_positives: bool = True,
    balance: float = 1.0,
    image_rate: float = 1.0,
    smallest_view: float = 1.0,
    colour: float = 0.0,
    resident: bool = False,
    teacher: Callable[[Tensor], Tensor] | None = None,
    teacher_weight: float = 0.0,
    validate: Callable[[], Mapping[str, float]] | None = None,
    show: bool = True,
) -> Result:
    """Train both towers on `data`; the encoder's module holds the best weights afterwards.

    With a `teacher` (float pixels 0 … 255 to vectors), image vectors are also held to its directions.
    """
    pictures = Pictures(data.images, encoder, device, resident=resident)
    pieces = encoder.prepare_texts(data.texts).to(device)
    lengths = (pieces != 0).sum(dim=1)
    sampler = Sampler(data, device, balance)
    part = distributed.my_part(plan.batch)

    def text_tower(rows: Tensor) -> Tensor:
        return encoder.text_vectors(pieces[rows, : int(lengths[rows].max())])

    def step(number: int) -> dict[str, Tensor]:
        generator = generator_for(device, seed, "encoder", number)
        batch = sampler.draw(plan.batch, generator)
        held: list[Tensor] = []

        def image_tower(rows: Tensor) -> Tensor:
            pixels = pictures[rows]
            if smallest_view < 1 or colour:
                pixels = random_views(pixels, generator, smallest=smallest_view, flip=False, colour=colour)
            vectors = encoder.image_vectors(pixels)
            if teacher is not None:
                held.append(1 - F.cosine_similarity(vectors.float(), teacher(pixels).float()).mean())
            return vectors

        both = fused(
            torch.cat([batch.query_image[part], batch.item_image[part]]),
            torch.cat([batch.query_text[part], batch.item_text[part]]),
            image_tower,
            text_tower,
        )
        query, item = (distributed.gather_rows(rows.contiguous()) for rows in both.chunk(2))
        same = (
            sampler.also_positive(batch.query, batch.item)
            if mask_positives
            else batch.item[:, None] == batch.item
        )
        loss = contrastive(query, item, same, temperature)
        losses = {"contrastive": loss, "loss": loss}
        if held:
            losses["teacher"] = torch.stack(held).mean()
            losses["loss"] = loss + teacher_weight * losses["teacher"]
        return losses

    def rate_factor(name: str) -> float:
        return image_rate if name.startswith("image.") else 1.0

    return run(
        "encoder", encoder.module, step, plan, folder=folder, seed=seed,
        validate=validate, rate_factor=rate_factor, show=show,
    )  # fmt: skip
