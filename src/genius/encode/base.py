"""The encoder protocols and the registry of encoders."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadInput

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn

    from genius.encode.preprocess import Preprocess

Array = NDArray[np.float32]


@runtime_checkable
class Encoder(Protocol):
    """Images and texts to raw (not normalised) vectors of width `dim`."""

    @property
    def dim(self) -> int:
        """Width of the vectors."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the same input could give another vector."""

    def encode_images(self, images: Sequence[Image]) -> Array:
        """Vectors of RGB images, (n, dim)."""

    def encode_texts(self, texts: Sequence[str]) -> Array:
        """Vectors of cleaned texts, (n, dim)."""


@runtime_checkable
class FusingEncoder(Protocol):
    """An encoder that fuses image and text itself: one vector per item or query."""

    @property
    def dim(self) -> int:
        """Width of the vectors."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the same input could give another vector."""

    def encode_items(self, images: Sequence[Image | None], texts: Sequence[str | None]) -> Array:
        """One vector for each (image, text), either of which may be absent, (n, dim)."""


@runtime_checkable
class CountsTokens(Protocol):
    """An encoder that says how much of a text it reads: then longer ones can be indexed in passages."""

    @property
    def max_tokens(self) -> int:
        """Most tokens that are read of a text; the rest is cut."""

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """How many tokens texts have, with those that begin and end every text."""


class Trainable(Protocol):
    """What stage 0 needs of any encoder: preprocessing apart from the towers, and one module to train."""

    @property
    def module(self) -> nn.Module:
        """Everything that is trained."""

    @property
    def preprocess(self) -> Preprocess:
        """How an image becomes pixels; plain values, so that worker processes can do it."""

    def prepare_image(self, image: Image) -> Tensor:
        """One image as uint8 pixels (3, side, side), on the CPU."""

    def prepare_texts(self, texts: Sequence[str]) -> Tensor:
        """Padded token ids (n, length), on the CPU; 0 is padding."""

    def save(self, folder: Path) -> None:
        """Write everything that loading needs."""


@runtime_checkable
class TrainableEncoder(Trainable, Protocol):
    """Two towers with gradients."""

    def image_vectors(self, pixels: Tensor) -> Tensor:
        """Prepared images (n, 3, side, side) to raw vectors (n, dim)."""

    def text_vectors(self, token_ids: Tensor) -> Tensor:
        """Prepared texts (n, length) to raw vectors (n, dim)."""


@runtime_checkable
class TrainableFusingEncoder(Trainable, Protocol):
    """A fusing encoder, with gradients."""

    def item_vectors(
        self, pixels: Tensor, image_rows: Tensor, token_ids: Tensor, text_rows: Tensor
    ) -> Tensor:
        """Vectors (n, dim) of items given as rows of prepared images and texts; -1: that part is absent."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Image and text vectors of the same items or queries; an absent part is a zero row."""

    image: Array  # (n, dim)
    text: Array  # (n, dim)

    def phi(self) -> Array:
        """The fused embedding of the paper's 4.1: image + text, L2-normalised; what exact search compares."""
        total = self.image + self.text
        norm = np.linalg.norm(total, axis=1, keepdims=True)
        return np.asarray(total / np.maximum(norm, 1e-12), dtype=np.float32)


def encode_parts(
    encoder: Encoder | FusingEncoder, images: Sequence[Image | None], texts: Sequence[str | None]
) -> Parts:
    """Vectors of items that have an image, a text or both; `images` and `texts` are parallel."""
    count = len(images)
    image_rows = np.zeros((count, encoder.dim), dtype=np.float32)
    text_rows = np.zeros((count, encoder.dim), dtype=np.float32)
    # the same image or text may occur several times, once for each modality that is asked for
    if isinstance(encoder, FusingEncoder):
        if count:
            rows, places = _first_of_equal([*zip(map(id, images), texts, strict=True)])
            both = encoder.encode_items([images[row] for row in rows], [texts[row] for row in rows])
            image_rows[:] = both[places]
        return Parts(image_rows, text_rows)
    some_images = {row: image for row, image in enumerate(images) if image is not None}
    some_texts = {row: text for row, text in enumerate(texts) if text}
    if some_images:
        rows, places = _first_of_equal([*map(id, some_images.values())])
        own = list(some_images.values())
        image_rows[list(some_images)] = encoder.encode_images([own[row] for row in rows])[places]
    if some_texts:
        rows, places = _first_of_equal([*some_texts.values()])
        words = list(some_texts.values())
        text_rows[list(some_texts)] = encoder.encode_texts([words[row] for row in rows])[places]
    return Parts(image_rows, text_rows)


def _first_of_equal(keys: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """Where each distinct key stands first, and for each key its place among the distinct ones."""
    place: dict[Hashable, int] = {}
    rows: list[int] = []
    for row, key in enumerate(keys):
        if key not in place:
            place[key] = len(rows)
            rows.append(row)
    return rows, [place[key] for key in keys]


# name -> "module:function"; the function gets (source, device) and returns the encoder
ENCODERS: dict[str, str] = {
    "mini": "genius.encode.mini.encoder:load",
    "clip": "genius.encode.clip:load",
    "clip-ff": "genius.encode.uniir:load_clip",
    "clip-fusion": "genius.encode.feature_fusion:load_clip",
    "blip": "genius.encode.blip:load",
    "blip-ff": "genius.encode.uniir:load_blip",
    "blip-fusion": "genius.encode.feature_fusion:load_blip",
    "transformers": "genius.encode.dual:load",
    "sentence-transformers": "genius.encode.sentence:load",
    "auto": "genius.encode.auto:load",
    "precomputed": "genius.encode.precomputed:load",
    "vectors": "genius.encode.vectors:load",
}


def load_encoder(name: str, source: str | Path | None = None, device: str = "cpu") -> Encoder | FusingEncoder:
    """The encoder registered as `name`, from `source` (a folder, file or hub id; `mini` needs none)."""
    if name not in ENCODERS:
        raise BadInput(f"unknown encoder {name!r}: choose one of {', '.join(sorted(ENCODERS))}")
    module, function = ENCODERS[name].split(":")
    loader: Callable[..., Encoder | FusingEncoder] = getattr(import_module(module), function)
    return loader(source, device)
