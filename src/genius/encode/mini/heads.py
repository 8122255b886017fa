"""Train `mini` above features that are computed once: its heads, and the text tower too if wanted.

    genius train encoder recipes/mini-heads.toml            both towers frozen: minutes without a GPU
    genius train encoder recipes/mini-encoder-gpu.toml      image tower frozen after its distillation

Images are not decoded or convolved again in training, so batches are large and steps are fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.config import OptimiserConfig
from genius.data.pairs import rows_of
from genius.data.training_set import TrainingSet
from genius.encode.images import ImageTable
from genius.encode.mini.encoder import MiniEncoder
from genius.encode.train import (
    EmbedRows,
    TokenTable,
    Tower,
    batch_loss,
    fuse_towers,
    in_chunks,
    row_chunks,
)
from genius.encode.views import random_views
from genius.seeding import generator_for
from genius.training.loop import STARTED_FROM, TrainingResult, run
from genius.weights import fingerprint_tensors


class Head(nn.Module):
    """The two last layers of a tower."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.hidden, self.out = tower.hidden, tower.out


class Heads(nn.Module):
    """The heads of both towers: features in, raw vectors out. `text_tower` adds the layers below the head."""

    def __init__(self, encoder: MiniEncoder, dropout: float = 0.0, *, text_tower: bool = False) -> None:
        super().__init__()
        towers = encoder.module
        self.image = Head(towers.image)
        self.text: nn.Module = towers.text if text_tower else Head(towers.text)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, kind: str) -> Tensor:
        """Vectors (n, dim) of the features of one tower, `image` or `text`."""
        head = self.image if kind == "image" else self.text
        vectors: Tensor = head.out(self.dropout(F.gelu(head.hidden(self.dropout(features)))))  # type: ignore[operator]
        return vectors

    def embedder(self, images: Tower, texts: Tower) -> EmbedRows:
        """The function that embeds rows of images and texts, given their features by row."""
        return lambda image_rows, text_rows: fuse_towers(
            image_rows,
            text_rows,
            lambda rows: self(images(rows), "image"),
            lambda rows: self(texts(rows), "text"),
        )


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Random crops of an image in other colours."""

    smallest: float = 1.0  # share of the image that a crop keeps
    colour: float = 0.0


def image_features(
    encoder: MiniEncoder,
    images: ImageTable,
    rows: Tensor | None = None,
    *,
    view: int = 0,
    options: ViewOptions | None = None,
    seed: int = 0,
) -> Tensor:
    """What the image tower's head reads of one view of each image in `rows`, (n, 1280), on the device.

    View 0 is the whole image; the others are random crops in other colours, the same in every run.
    """
    options, device = options or ViewOptions(), encoder.device
    rows = torch.arange(len(images)) if rows is None else rows
    module = encoder.module.eval()

    def features(places: Tensor) -> Tensor:
        chosen = rows[places.to(rows.device)]
        pixels = images[chosen].to(device)
        if view:
            generator = generator_for(device, seed, "features", view, int(chosen[0]))
            pixels = random_views(
                pixels, generator, smallest=options.smallest, flip=True, colour=options.colour
            )
        return module.image.features(encoder.scaled(pixels))

    chunks = row_chunks(len(rows), device)
    images.prefetch(rows[chunk.to(rows.device)] for chunk in chunks)
    return in_chunks(features, len(rows), device)


def text_features(encoder: MiniEncoder, texts: Sequence[str]) -> Tensor:
    """What the text tower's head reads, (texts, 384), on the encoder's device."""
    module, tokens = encoder.module.eval(), TokenTable(texts, encoder, encoder.device)
    return in_chunks(lambda rows: module.text.features(tokens[rows]), len(texts), encoder.device)


@dataclass(frozen=True, slots=True)
class Teacher:
    """Vectors (images, dim) that the image head should stay near, and the weight of their cosine distance."""

    vectors: Tensor
    weight: float


def train_heads(
    encoder: MiniEncoder,
    images: Tensor,
    texts: Tower,
    data: TrainingSet,
    config: OptimiserConfig,
    *,
    folder: Path,
    seed: int,
    temperature: float = 0.01,
    balance: float = 1.0,
    dropout: float,
    image_rate: float = 1.0,
    text_tower: bool = False,
    body_rate: float = 1.0,
    teacher: Teacher | None = None,
    inputs: Mapping[str, Any] | None = None,
    validate: Callable[[Heads], Mapping[str, float]] | None = None,
    show: bool = True,
) -> TrainingResult:
    """Eq. 2 on the heads of `encoder`.

    `images` are features (views, images, 1280) of the rows of `data`, of which each step draws one view;
    `texts` gives the features of text rows. With `text_tower` its layers below the head learn, too, at
    `body_rate` times the rate. `inputs` are plain values that say how features and teacher were made: a
    checkpoint made with others is refused.
    """
    heads = Heads(encoder, dropout, text_tower=text_tower).to(encoder.device)
    pairs = rows_of(data).to(encoder.device).balanced(balance)

    def step(number: int) -> dict[str, Tensor]:
        batch = pairs.sample(number, config.batch, seed)
        generator = generator_for(encoder.device, seed, "views", number)
        distances: list[Tensor] = []

        def image(rows: Tensor) -> Tensor:
            view = torch.randint(len(images), rows.shape, generator=generator, device=rows.device)
            vectors: Tensor = heads(images[view, rows], "image")
            if teacher is not None:
                wanted = teacher.vectors[rows]
                distances.append(1 - F.cosine_similarity(vectors.float(), wanted).mean())
            return vectors

        def embed(image_rows: Tensor, text_rows: Tensor) -> Tensor:
            return fuse_towers(image_rows, text_rows, image, lambda rows: heads(texts(rows), "text"))

        loss = batch_loss(embed, pairs, batch, temperature)
        if teacher is None or not distances:
            return {"loss": loss}
        distance = torch.stack(distances).mean()
        return {"loss": loss + teacher.weight * distance, "contrastive": loss, "teacher": distance}

    def rate_factor(name: str) -> float:
        if name.startswith("image."):
            return image_rate
        return 1.0 if name.startswith(("text.hidden.", "text.out.")) else body_rate

    check = None if validate is None else lambda: validate(heads)
    settings = {
        "temperature": temperature, "balance": balance, "dropout": dropout, "image_rate": image_rate,
        "text_tower": text_tower, "body_rate": body_rate, "views": len(images),
        "teacher": teacher.weight if teacher else 0.0, "data": data.digest, **(inputs or {}),
        STARTED_FROM: fingerprint_tensors(encoder.module.state_dict()),
    }  # fmt: skip
    return run(
        "heads", heads, step, config, folder=folder, seed=seed, validate=check, settings=settings,
        rate_factor=rate_factor, show=show,
    )  # fmt: skip
