"""Text and image towers of transformers models: what all pretrained encoders have in common."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from genius.encode.base import Array
from genius.encode.batches import embed_images, embed_texts
from genius.encode.preprocess import Preprocess
from genius.encode.pretrained import pick_device, save_folder
from genius.weights import fingerprint_tensors

if TYPE_CHECKING:
    from PIL.Image import Image


class PretrainedTextTower(ABC):
    """A tokenizer and a model of texts; subclasses call their transformers model."""

    lower_case = False  # whether texts are lower-cased before the tokenizer sees them
    variant = ""  # how it reads texts or images otherwise than transformers; a part of the fingerprint

    def __init__(self, module: nn.Module, tokenizer: Any, context: int, device: str) -> None:
        self.device = pick_device(device)
        self.module: Any = module.to(self.device).eval()
        self.tokenizer = tokenizer
        self.context = context  # most tokens of a text; what is longer is cut
        self.batch = 128 if self.device.type == "cuda" else 16

    @property
    @abstractmethod
    def dim(self) -> int:
        """Width of the vectors."""

    @abstractmethod
    def text_vectors(self, token_ids: Tensor) -> Tensor:
        """Prepared texts (n, length) to raw vectors (n, dim), with gradients."""

    def prepare_texts(self, texts: Sequence[str]) -> Tensor:
        """Token ids plus one (n, length) on the CPU, cut at the context length; 0 is padding."""
        if not texts:
            return torch.zeros(0, 0, dtype=torch.long)
        rows = self.tokenizer(self.readable(texts), truncation=True, max_length=self.context)["input_ids"]
        token_ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for row, ids in enumerate(rows):
            token_ids[row, : len(ids)] = torch.tensor(ids) + 1
        return token_ids

    @property
    def max_tokens(self) -> int:
        """Most tokens that are read of a text; the rest is cut."""
        return self.context

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """How many tokens texts have, with those that begin and end every text."""
        rows = self.tokenizer(self.readable(texts), verbose=False)["input_ids"] if texts else []
        return [len(ids) for ids in rows]

    def readable(self, texts: Sequence[str]) -> list[str]:
        """The texts as the tokenizer gets them; lone surrogates become `?`."""
        texts = [text.encode("utf-8", "replace").decode() for text in texts]
        return [text.lower() for text in texts] if self.lower_case else texts

    def ids_and_mask(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Prepared texts on the encoder's device as the model's own ids, and True where there is text."""
        token_ids = token_ids.to(self.device)
        return (token_ids - 1).clamp(min=0), token_ids > 0

    def encode_texts(self, texts: Sequence[str]) -> Array:
        """Raw vectors of texts, (n, dim)."""
        return embed_texts(self, texts, self.dim, self.batch)


class TwoTowers(PretrainedTextTower):
    """An encoder with an image and a text tower."""

    kind: str

    def __init__(
        self, module: nn.Module, tokenizer: Any, preprocess: Preprocess, context: int, device: str
    ) -> None:
        super().__init__(module, tokenizer, context, device)
        self.preprocess = preprocess

    @abstractmethod
    def image_vectors(self, pixels: Tensor) -> Tensor:
        """Prepared images (n, 3, side, side) to raw vectors (n, dim), with gradients."""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of weights, tokenizer and preprocessing as they were loaded; load again after training."""
        tokenizer = json.loads(self.tokenizer.backend_tokenizer.to_str())
        tokenizer = {key: value for key, value in tokenizer.items() if key not in ("truncation", "padding")}
        notes = [tokenizer, self.preprocess.settings(), self.context, self.kind]
        notes += [self.variant] if self.variant else []
        return fingerprint_tensors(self.module.state_dict(), [json.dumps(note) for note in notes])

    def prepare_image(self, image: Image) -> Tensor:
        """uint8 pixels (3, side, side), on the CPU."""
        return torch.from_numpy(self.preprocess.pixels(image))

    def scaled(self, pixels: Tensor) -> Tensor:
        """Prepared images on the encoder's device as the floats that the model reads."""
        return self.preprocess.scale(pixels.to(self.device))

    def encode_images(self, images: Sequence[Image]) -> Array:
        """Raw vectors of RGB images, (n, dim)."""
        return embed_images(self, images, self.dim, self.batch)

    def save(self, folder: Path) -> None:
        """Write a folder that `load` and transformers read: all of it or nothing."""
        save_folder(folder, self.module.config, self.module.state_dict(), self.tokenizer, self.preprocess)


class FeatureTowers(TwoTowers):
    """Two towers whose last layers can be read at every position: what feature fusion needs."""

    @abstractmethod
    def image_features(self, pixels: Tensor) -> Tensor:
        """The image tower's last layer at every position, (n, positions, image width)."""

    @abstractmethod
    def text_features(self, token_ids: Tensor) -> Tensor:
        """The text tower's last layer at every position, (n, length, text width)."""
