"""Train only the heads of `mini`: the features of its frozen towers are computed once, so it takes minutes.

This adapts the embedded encoder to one's own labelled data without a GPU:

    genius train encoder recipes/mini-heads.toml
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from genius.config import OptimiserConfig
from genius.data.pairs import rows_of
from genius.data.training_set import TrainingSet
from genius.encode.images import ImageTable
from genius.encode.mini.encoder import MiniEncoder
from genius.encode.train import EmbedRows, TokenTable, batch_loss, fuse_towers, in_chunks, row_chunks
from genius.training.loop import TrainingResult, run


class Heads(nn.Module):
    """The heads of both towers; their features in, raw vectors out."""

    def __init__(self, encoder: MiniEncoder, dropout: float = 0.0) -> None:
        super().__init__()
        image, text = encoder.module.image, encoder.module.text
        self.image = nn.ModuleList([image.hidden, image.out])
        self.text = nn.ModuleList([text.hidden, text.out])
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, kind: str) -> Tensor:
        """Vectors (n, dim) of the features of one tower, `image` or `text`."""
        hidden, out = self.image if kind == "image" else self.text
        return out(self.dropout(F.gelu(hidden(self.dropout(features)))))  # type: ignore[no-any-return]

    def embedder(self, images: Tensor, texts: Tensor) -> EmbedRows:
        """The function that embeds rows of the features of images and texts."""
        return lambda image_rows, text_rows: fuse_towers(
            image_rows,
            text_rows,
            lambda rows: self(images[rows], "image"),
            lambda rows: self(texts[rows], "text"),
        )


def features_of(encoder: MiniEncoder, images: ImageTable, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Features of the towers before their heads: (images, 1280) and (texts, 384), on the device."""
    module, device = encoder.module.eval(), encoder.device
    tokens = TokenTable(texts, encoder, device)
    images.prefetch(row_chunks(len(images), device))
    return (
        in_chunks(lambda rows: module.image.features(encoder.scaled(images[rows])), len(images), device),
        in_chunks(lambda rows: module.text.features(tokens[rows]), len(texts), device),
    )


def train_heads(
    encoder: MiniEncoder,
    images: Tensor,
    texts: Tensor,
    data: TrainingSet,
    config: OptimiserConfig,
    *,
    folder: Path,
    seed: int,
    temperature: float = 0.01,
    balance: float = 1.0,
    dropout: float,
    validate: Callable[[Heads], Mapping[str, float]] | None = None,
    show: bool = True,
) -> TrainingResult:
    """Eq. 2 on the heads of `encoder`; `images` and `texts` are the features of the rows of `data`."""
    heads = Heads(encoder, dropout).to(encoder.device)
    pairs = rows_of(data).to(encoder.device).balanced(balance)
    embed = heads.embedder(images, texts)

    def step(number: int) -> dict[str, Tensor]:
        batch = pairs.sample(number, config.batch, seed)
        return {"loss": batch_loss(embed, pairs, batch, temperature)}

    check = None if validate is None else lambda: validate(heads)
    return run("heads", heads, step, config, folder=folder, seed=seed, validate=check, show=show)
