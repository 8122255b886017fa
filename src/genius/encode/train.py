"""Stage 0: an encoder learns what queries with instructions want (paper 4.1, eq. 2).

    genius train encoder recipes/mini-encoder.toml
    torchrun --nproc-per-node 4 -m genius train encoder recipes/mbeir.toml

Several processes share each batch: every one sends its own rows through the towers, and the loss is that of
the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.training_set import TrainingSet
from genius.encode.base import Trainable, TrainableEncoder, TrainableFusingEncoder
from genius.encode.pictures import Pictures
from genius.encode.sampling import Batch, Sampler
from genius.encode.views import random_views
from genius.training import distributed
from genius.training.contrastive import contrastive_loss
from genius.training.loop import Result, run
from genius.training.schedule import Plan, generator_for

# how the image towers of our encoders are called inside their modules: mini, CLIP, BLIP
IMAGE_TOWERS = ("image.", "vision_model.", "visual_projection.", "vision_proj.")

Learner = TrainableEncoder | TrainableFusingEncoder
Tower = Callable[[Tensor], Tensor]  # rows to vectors, or to what a tower reads
Things = Callable[[Tensor, Tensor], Tensor]  # image rows and text rows (-1: absent) to vectors (n, dim)


def batch_loss(
    things: Things, batch: Batch, sampler: Sampler, temperature: float, *, mask_positives: bool = True
) -> Tensor:
    """Eq. 2 of a batch; each process makes the vectors of its own part of it."""
    part = distributed.my_part(len(batch.query))
    both = things(
        torch.cat([batch.query_image[part], batch.item_image[part]]),
        torch.cat([batch.query_text[part], batch.item_text[part]]),
    )
    query, item = both.chunk(2)
    same = batch.item[:, None] == batch.item
    if mask_positives:
        same = sampler.also_positive(batch.query, batch.item)
    return contrastive_loss(query, item, temperature, same)


def scatter_rows(vectors: Tensor, rows: Tensor) -> Tensor:
    """`vectors[rows]`, with zeros where a row is -1: an absent part."""
    there = rows >= 0
    return torch.where(there[:, None], vectors[rows.clamp(min=0)], torch.zeros_like(vectors[:1]))


def distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that occur, each once, and the place of each of `rows` among them; -1 stays -1."""
    found, place = torch.unique(rows, return_inverse=True)
    absent = int((found < 0).sum())
    return found[absent:], place - absent


def fused(image_rows: Tensor, text_rows: Tensor, image: Tower, text: Tower) -> Tensor:
    """phi before its norm: image + text vectors of the rows, each tower called once on the distinct rows."""
    parts = []
    for rows, tower in ((image_rows, image), (text_rows, text)):
        found, place = distinct(rows)
        if len(found):
            parts.append(scatter_rows(tower(found).float(), place))
    return torch.stack(parts).sum(dim=0)


class Texts:
    """Prepared texts by row, no longer than the longest of those asked for."""

    def __init__(self, texts: Sequence[str], encoder: Trainable, device: torch.device) -> None:
        self.pieces = encoder.prepare_texts(texts).to(device)
        self.lengths = (self.pieces != 0).sum(dim=1)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Padded ids (n, length)."""
        longest = int(self.lengths[rows].max()) if len(rows) else 0
        return self.pieces[rows, :longest]


def things_of(
    encoder: Learner, pixels: Tower, texts: Tower, seen: Callable[[Tensor, Tensor], None] | None = None
) -> Things:
    """The function that gives vectors of things with a picture, a text or both, named by their rows.

    `pixels` and `texts` give what the encoder reads, by row; `seen` is shown pixels and their vectors.
    """
    if isinstance(encoder, TrainableFusingEncoder):

        def together(image_rows: Tensor, text_rows: Tensor) -> Tensor:
            (images, image_place), (words, text_place) = distinct(image_rows), distinct(text_rows)
            return encoder.item_vectors(pixels(images), image_place, texts(words), text_place).float()

        return together

    def image(rows: Tensor) -> Tensor:
        shown = pixels(rows)
        vectors = encoder.image_vectors(shown)
        if seen is not None:
            seen(shown, vectors)
        return vectors

    return lambda image_rows, text_rows: fused(
        image_rows, text_rows, image, lambda rows: encoder.text_vectors(texts(rows))
    )


@torch.no_grad()
def in_chunks(tower: Callable[[Tensor], Tensor], count: int, device: torch.device) -> Tensor:
    """`tower(rows)` for rows 0 … count-1, a chunk at a time, as float32."""
    chunk = 512 if device.type == "cuda" else 32
    parts = [
        tower(torch.arange(start, min(start + chunk, count), device=device)).float()
        for start in range(0, count, chunk)
    ]
    return torch.cat(parts) if parts else torch.empty(0, 0, device=device)


def train_encoder(
    encoder: Learner,
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
    pictures: Pictures | None = None,
    teacher: Callable[[Tensor], Tensor] | None = None,
    teacher_weight: float = 0.0,
    validate: Callable[[], Mapping[str, float]] | None = None,
    show: bool = True,
) -> Result:
    """Train `encoder` on `data`; its module holds the best weights afterwards.

    `pictures` are those of `data` where they are decoded already. With a `teacher` (float pixels 0 … 255 to
    vectors), the image vectors of two towers are also held to its directions.
    """
    pictures = pictures or Pictures(data.images, encoder, device, resident=resident)
    texts = Texts(data.texts, encoder, device)
    sampler = Sampler(data, device, balance)
    part = distributed.my_part(plan.batch)
    changed = smallest_view < 1 or colour > 0

    def draw(number: int) -> Batch:
        return sampler.draw(plan.batch, generator_for(device, seed, "encoder", number))

    def step(number: int) -> dict[str, Tensor]:
        batch = draw(number)
        chance = generator_for(device, seed, "views", number, distributed.rank())
        held: list[Tensor] = []

        def pixels(rows: Tensor) -> Tensor:
            shown = pictures[rows].to(device)
            if not changed or not len(rows):
                return shown
            return random_views(shown, chance, smallest=smallest_view, flip=False, colour=colour)

        def hold(shown: Tensor, vectors: Tensor) -> None:
            if teacher is not None:
                held.append(1 - F.cosine_similarity(vectors.float(), teacher(shown).float()).mean())

        things = things_of(encoder, pixels, texts.__getitem__, hold)
        loss = batch_loss(things, batch, sampler, temperature, mask_positives=mask_positives)
        if number + 1 < plan.steps:
            after = draw(number + 1)
            pictures.expect(distinct(torch.cat([after.query_image[part], after.item_image[part]]))[0])
        losses = {"contrastive": loss, "loss": loss}
        if teacher is not None:
            losses["teacher"] = torch.stack(held).mean() if held else loss.new_zeros(())
            losses["loss"] = loss + teacher_weight * losses["teacher"]
        return losses

    def rate_factor(name: str) -> float:
        return image_rate if name.removeprefix("towers.").startswith(IMAGE_TOWERS) else 1.0

    settings = {
        "temperature": temperature, "mask_positives": mask_positives, "balance": balance,
        "image_rate": image_rate, "views": [smallest_view, colour],
        "teacher": teacher_weight if teacher else 0.0, "data": [len(data.query_ids), len(data.item_ids)],
    }  # fmt: skip
    return run(
        "encoder", encoder.module, step, plan, folder=folder, seed=seed, validate=validate,
        settings=settings, rate_factor=rate_factor, show=show,
    )  # fmt: skip
