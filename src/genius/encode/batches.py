"""Inference in batches for encoders with two towers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from genius.encode.base import Array, TrainableEncoder
from genius.encode.images import MANY_CORES, cores

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn


class TextEncoder(Protocol):
    """What embedding texts needs of an encoder."""

    @property
    def module(self) -> nn.Module:
        """Everything that is trained."""

    def prepare_texts(self, texts: Sequence[str]) -> Tensor:
        """Padded token ids (n, length)."""

    def text_vectors(self, token_ids: Tensor) -> Tensor:
        """Token ids to raw vectors (n, dim)."""


@torch.inference_mode()
def embed_images(encoder: TrainableEncoder, images: Sequence[Image], dim: int, batch: int) -> Array:
    """Raw vectors of RGB images, (n, dim)."""
    _stop_training(encoder.module)
    vectors = np.empty((len(images), dim), dtype=np.float32)
    with _prepare_images(encoder, len(images)) as prepare:
        for start in range(0, len(images), batch):
            part = images[start : start + batch]
            vectors[start : start + len(part)] = encoder.image_vectors(prepare(part)).float().cpu().numpy()
    return vectors


@contextmanager
def _prepare_images(encoder: TrainableEncoder, count: int) -> Iterator[Callable[[Sequence[Image]], Tensor]]:
    """What makes pixels of images: in threads where there are many cores, which a GPU waits for otherwise."""
    if count < MANY_CORES or cores() < MANY_CORES:
        yield lambda part: torch.stack([encoder.prepare_image(image) for image in part])
    else:
        with ThreadPoolExecutor(cores()) as threads:
            yield lambda part: torch.stack([*threads.map(encoder.prepare_image, part)])


@torch.inference_mode()
def embed_texts(encoder: TextEncoder, texts: Sequence[str], dim: int, batch: int) -> Array:
    """Raw vectors of texts, (n, dim); texts of like length share a batch, so padding costs little."""
    _stop_training(encoder.module)
    vectors = np.empty((len(texts), dim), dtype=np.float32)
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        token_ids = encoder.prepare_texts([texts[row] for row in rows])
        vectors[rows] = encoder.text_vectors(token_ids).float().cpu().numpy()
    return vectors


def _stop_training(module: nn.Module) -> None:
    """`module.eval()`, which visits some hundred parts, only where it changes something."""
    if module.training:
        module.eval()
