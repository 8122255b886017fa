"""What encoders that fuse two towers have in common: preparing, batches, and a folder with `fusion.json`."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from genius.encode.base import Array
from genius.encode.preprocess import Preprocess
from genius.encode.towers import FeatureTowers
from genius.errors import BadInput, ModelMismatch
from genius.weights import fingerprint_tensors

if TYPE_CHECKING:
    from PIL.Image import Image

DESCRIPTION, TOWERS = "fusion.json", "towers"  # the kind and its sizes; the folder of the two towers


class FusingTowers(ABC):
    """Two towers whose features become one vector for an image, a text or both."""

    variant = ""  # how it fuses otherwise than an earlier version; a part of the fingerprint

    def __init__(self, kind: str, towers: FeatureTowers, fusion: nn.Module) -> None:
        self.kind, self.towers = kind, towers
        self.fusion: Any = fusion.to(towers.device).eval()
        self.module = nn.ModuleDict({"towers": towers.module, "fusion": self.fusion})

    @property
    @abstractmethod
    def dim(self) -> int:
        """Width of the vectors."""

    @abstractmethod
    def item_vectors(
        self, pixels: Tensor, image_rows: Tensor, token_ids: Tensor, text_rows: Tensor
    ) -> Tensor:
        """Vectors (n, dim), with gradients, of items made of prepared images and texts.

        Item i has image `pixels[image_rows[i]]` and text `token_ids[text_rows[i]]`; -1 says that it has none.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write everything that loading needs: all of it or nothing."""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of towers and fusion as they were loaded; load again after training."""
        notes = [self.kind, self.towers.fingerprint, *([self.variant] if self.variant else [])]
        return fingerprint_tensors(self.fusion.state_dict(), notes)

    @property
    def preprocess(self) -> Preprocess:
        """How an image becomes pixels."""
        return self.towers.preprocess

    def prepare_image(self, image: Image) -> Tensor:
        """uint8 pixels (3, side, side), on the CPU."""
        return self.towers.prepare_image(image)

    def prepare_texts(self, texts: Sequence[str]) -> Tensor:
        """Padded token ids (n, length), on the CPU; 0 is padding."""
        return self.towers.prepare_texts(texts)

    @property
    def max_tokens(self) -> int:
        """Most tokens that are read of a text; the rest is cut."""
        return self.towers.max_tokens

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """How many tokens texts have, with those that begin and end every text."""
        return self.towers.count_tokens(texts)

    @torch.inference_mode()
    def encode_items(self, images: Sequence[Image | None], texts: Sequence[str | None]) -> Array:
        """One raw vector for each (image, text), either of which may be absent, (n, dim)."""
        if len(images) != len(texts):
            raise BadInput(f"{len(images)} images beside {len(texts)} texts: give as many, None where absent")
        self.module.eval()
        vectors = np.empty((len(images), self.dim), dtype=np.float32)
        for start in range(0, len(images), self.towers.batch):
            part = slice(start, start + self.towers.batch)
            some = [image for image in images[part] if image is not None]
            words = [text for text in texts[part] if text]
            side = self.preprocess.side
            pixels = torch.stack([*map(self.prepare_image, some)]) if some else torch.empty(0, 3, side, side)
            image_rows = _rows([image is not None for image in images[part]])
            text_rows = _rows([bool(text) for text in texts[part]])
            found = self.item_vectors(pixels, image_rows, self.prepare_texts(words), text_rows)
            vectors[part] = found.float().cpu().numpy()
        return vectors


def read_description(folder: Path, kind: str = "") -> dict[str, Any]:
    """What `fusion.json` in `folder` says; its `kind` must be `kind`, if that is given."""
    file = folder / DESCRIPTION
    try:
        table = dict(json.loads(file.read_text(encoding="utf-8")))
        found = table["kind"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelMismatch(f"{file} does not describe a fusion ({error}): fetch or make it again") from None
    if kind and found != kind:
        raise ModelMismatch(f"{file} is a {found!r} model: load it under that name, not as {kind!r}")
    return table


def _rows(there: Sequence[bool]) -> Tensor:
    """Numbers 0, 1, … where there is a part, -1 elsewhere."""
    mask = torch.tensor(there, dtype=torch.long)
    return torch.where(mask > 0, mask.cumsum(0) - 1, -1)
