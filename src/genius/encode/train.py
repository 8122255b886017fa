"""Stage 0: contrastive training of an encoder on queries with instructions (paper 4.1, eq. 2).

    genius train encoder recipes/mini-encoder.toml
    torchrun --nproc-per-node 4 -m genius train encoder recipes/mbeir-encoder.toml

Several processes share each batch: each embeds its own rows, and the loss is that of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.config import OptimiserConfig
from genius.data.pairs import PairBatch, PairRows, rows_of
from genius.data.training_set import TrainingSet
from genius.encode.base import Trainable, TrainableEncoder, TrainableFusingEncoder
from genius.encode.images import ImageTable
from genius.encode.views import random_views
from genius.errors import BadInput
from genius.seeding import generator_for
from genius.training import distributed
from genius.training.contrastive import contrastive_loss
from genius.training.loop import STARTED_FROM, TrainingResult, run
from genius.weights import fingerprint_tensors

# prefixes of the image towers' parameters: mini, CLIP, BLIP
IMAGE_TOWERS = ("image.", "vision_model.", "visual_projection.", "vision_proj.")

AnyTrainable = TrainableEncoder | TrainableFusingEncoder
Tower = Callable[[Tensor], Tensor]  # rows to embeddings, or to what a tower reads
EmbedRows = Callable[[Tensor, Tensor], Tensor]  # image rows and text rows (-1: absent) to embeddings (n, dim)


def batch_loss(
    embed: EmbedRows,
    pairs: PairRows,
    batch: PairBatch,
    temperature: float | Tensor,
    *,
    mask_positives: bool = True,
    symmetric: bool = True,
) -> Tensor:
    """Eq. 2 of a batch; each process embeds its own part of it."""
    query, item = embed(*batch_rows(pairs, batch)).chunk(2)
    if mask_positives:
        positive = pairs.are_positive(batch.query[:, None], batch.item)
    else:
        positive = batch.item[:, None] == batch.item
    return contrastive_loss(query, item, temperature, positive, symmetric=symmetric)


def batch_rows(pairs: PairRows, batch: PairBatch) -> tuple[Tensor, Tensor]:
    """Image rows and text rows of this process's part of a batch: its queries, then their items, (2n,)."""
    part = distributed.rank_slice(len(batch.query))
    query, item = batch.query[part], batch.item[part]
    return (
        torch.cat([pairs.query_image[query], pairs.item_image[item]]),
        torch.cat([batch.text[part], pairs.item_text[item]]),
    )


def scatter_rows(vectors: Tensor, rows: Tensor) -> Tensor:
    """`vectors[rows]`, with zeros where a row is -1: an absent part."""
    there = rows >= 0
    return torch.where(there[:, None], vectors[rows.clamp(min=0)], torch.zeros_like(vectors[:1]))


def distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows, ascending, and the index of each of `rows` among them; -1 stays -1."""
    found, place = torch.unique(rows, return_inverse=True)
    absent = int((found < 0).sum())
    return found[absent:], place - absent


def fuse_towers(image_rows: Tensor, text_rows: Tensor, image: Tower, text: Tower) -> Tensor:
    """phi before its L2 norm: the sum of both towers' vectors; each tower runs once, on distinct rows."""
    parts = []
    for rows, tower in ((image_rows, image), (text_rows, text)):
        found, place = distinct(rows)
        if len(found):
            parts.append(scatter_rows(tower(found).float(), place))
    return torch.stack(parts).sum(dim=0)


class TokenTable:
    """Token ids of texts by row, padded to the longest of those asked for."""

    def __init__(self, texts: Sequence[str], encoder: Trainable, device: torch.device) -> None:
        self.token_ids = encoder.prepare_texts(texts).to(device)
        self.lengths = (self.token_ids != 0).sum(dim=1)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Padded ids (n, length)."""
        longest = int(self.lengths[rows].max()) if len(rows) else 0
        return self.token_ids[rows, :longest]

    def by_length(self, rows: Tensor, tower: Tower, parts: int = 4) -> Tensor:
        """`tower` of the texts in `rows`, texts of about the same length together: less padding."""
        if len(rows) < 2 * parts:
            return tower(self[rows])
        order = self.lengths[rows].argsort()
        outputs = torch.cat([tower(self[rows[part]]) for part in order.chunk(parts)])
        return outputs[order.argsort()]


def embedder(
    encoder: AnyTrainable,
    pixels: Tower,
    texts: Tower,
    on_images: Callable[[Tensor, Tensor], None] | None = None,
) -> EmbedRows:
    """The function that embeds queries or items with an image, a text or both, named by their rows.

    `pixels` and `texts` give what the encoder reads, by row; `on_images` is called with pixels and their
    embeddings.
    """
    if isinstance(encoder, TrainableFusingEncoder):

        def together(image_rows: Tensor, text_rows: Tensor) -> Tensor:
            (images, image_place), (words, text_place) = distinct(image_rows), distinct(text_rows)
            return encoder.item_vectors(pixels(images), image_place, texts(words), text_place).float()

        return together

    def image(rows: Tensor) -> Tensor:
        inputs = pixels(rows)
        vectors = encoder.image_vectors(inputs)
        if on_images is not None:
            on_images(inputs, vectors)
        return vectors

    return lambda image_rows, text_rows: fuse_towers(
        image_rows, text_rows, image, lambda rows: encoder.text_vectors(texts(rows))
    )


def row_chunks(count: int, device: torch.device) -> tuple[Tensor, ...]:
    """Rows 0 … count-1, as many at a time as a tower takes without gradients."""
    rows = torch.arange(count, device=device)
    return torch.split(rows, 512 if device.type == "cuda" else 32) if count else ()


@torch.no_grad()
def in_chunks(tower: Callable[[Tensor], Tensor], count: int, device: torch.device) -> Tensor:
    """`tower(rows)` for rows 0 … count-1, a chunk at a time, as float32."""
    parts = [tower(rows).float() for rows in row_chunks(count, device)]
    return torch.cat(parts) if parts else torch.empty(0, 0, device=device)


def train_encoder(
    encoder: AnyTrainable,
    data: TrainingSet,
    images: ImageTable,
    config: OptimiserConfig,
    *,
    folder: Path,
    seed: int,
    device: torch.device,
    temperature: float = 0.01,
    learned_temperature: bool = False,
    symmetric: bool = True,
    mask_positives: bool = True,
    balance: float = 1.0,
    image_rate: float = 1.0,
    smallest_view: float = 1.0,
    colour: float = 0.0,
    teacher: Callable[[Tensor], Tensor] | None = None,
    teacher_weight: float = 0.0,
    validate: Callable[[], Mapping[str, float]] | None = None,
    show: bool = True,
) -> TrainingResult:
    """Train `encoder` on `data`; its module holds the best weights afterwards.

    `images` are those of `data`. A `learned_temperature` is the encoder's own. With a `teacher` (float pixels
    0 … 255 to vectors), the cosine distance to its vectors is added to the loss (with two towers).
    """
    texts = TokenTable(data.texts, encoder, device)
    pairs = rows_of(data).to(device).balanced(balance)
    augmented = smallest_view < 1 or colour > 0
    scale = logit_scale(encoder) if learned_temperature else None
    announced: list[int] = []  # the step from which on images are decoded ahead

    def image_rows(number: int) -> Tensor:
        return distinct(batch_rows(pairs, pairs.sample(number, config.batch, seed))[0])[0]

    def step(number: int) -> dict[str, Tensor]:
        if not announced:
            announced.append(number)
            images.prefetch(image_rows(later) for later in range(number, config.steps))
        batch = pairs.sample(number, config.batch, seed)
        generator = generator_for(device, seed, "views", number, distributed.rank())
        distances: list[Tensor] = []  # of the image vectors from the teacher's

        def views(rows: Tensor) -> Tensor:
            pixels = images[rows].to(device)
            if not augmented or not len(rows):
                return pixels
            return random_views(pixels, generator, smallest=smallest_view, flip=False, colour=colour)

        def compare(pixels: Tensor, vectors: Tensor) -> None:
            if teacher is not None:
                distances.append(1 - F.cosine_similarity(vectors.float(), teacher(pixels).float()).mean())

        embed = embedder(encoder, views, texts.__getitem__, compare)
        loss = batch_loss(
            embed, pairs, batch, temperature if scale is None else torch.exp(-scale),
            mask_positives=mask_positives, symmetric=symmetric,
        )  # fmt: skip
        losses = {"contrastive": loss, "loss": loss}
        if teacher is not None:
            losses["teacher"] = torch.stack(distances).mean() if distances else loss.new_zeros(())
            losses["loss"] = loss + teacher_weight * losses["teacher"]
        return losses

    def rate_factor(name: str) -> float:
        return image_rate if name.removeprefix("towers.").startswith(IMAGE_TOWERS) else 1.0

    settings = {
        "temperature": "learned" if learned_temperature else temperature, "symmetric": symmetric,
        "mask_positives": mask_positives, "balance": balance,
        "image_rate": image_rate, "views": [smallest_view, colour],
        "teacher": teacher_weight if teacher else 0.0, "data": data.digest,
        STARTED_FROM: fingerprint_tensors(encoder.module.state_dict()),
    }  # fmt: skip
    return run(
        "encoder", encoder.module, step, config, folder=folder, seed=seed, validate=validate,
        settings=settings, rate_factor=rate_factor, show=show,
    )  # fmt: skip


def logit_scale(encoder: AnyTrainable) -> Tensor:
    """The logarithm of 1 / temperature that the encoder itself has, as CLIP does."""
    scale = getattr(encoder.module, "logit_scale", None)
    if not isinstance(scale, Tensor) or scale.numel() != 1:
        raise BadInput(
            "this encoder has no temperature to learn: set encoder_training.learned_temperature to false"
        )
    return scale.requires_grad_()
