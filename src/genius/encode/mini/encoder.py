"""`mini`: the embedded encoder. An EfficientNet-Lite2 and a MiniLM share an embedding space of width 512.

It needs no hub and no network: weights and tokenizer are in the package (`models/mini/`), its card beside
them. The text tower's matrices are stored as int8 with one scale per row, the rest as float16; in memory
everything is float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from genius.encode.base import Array
from genius.encode.batches import embed_images, embed_texts
from genius.encode.mini.efficientnet import ImageTower, fold_norms, scale_pixels
from genius.encode.mini.minilm import MAX_LENGTH, VOCABULARY, TextTower, token_ids, tokenize
from genius.encode.preprocess import Preprocess
from genius.errors import ModelMismatch, ModelNotFound
from genius.files import write_folder
from genius.weights import (
    check_fit,
    fingerprint,
    read_tensors,
    save_weights,
    shapes_only,
)

if TYPE_CHECKING:
    from PIL.Image import Image

DIM = 512
SIDE = 224
IMAGE_BATCH, GPU_IMAGE_BATCH = 16, 256
TEXT_BATCH, GPU_TEXT_BATCH = 32, 1024
WEIGHTS, TOKENIZER = "encoder.safetensors", "tokenizer.json"
SCALE = ".scale"  # ends the name of the scales of a matrix
EMBEDDED = Path(__file__).parents[2] / "models" / "mini"


class Towers(nn.Module):
    """Both towers of `mini`."""

    def __init__(self, *, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.image = ImageTower(DIM, norm=norm)
        self.text = TextTower(DIM, dropout)


class MiniEncoder:
    """The two towers with their preprocessing of images and texts."""

    def __init__(self, towers: Towers, tokenizer: Tokenizer, fingerprint: str, device: str = "cpu") -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.module = towers.to(device)
        self.module.image.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint
        self.device = torch.device(device)

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return DIM

    @property
    def preprocess(self) -> Preprocess:
        """The whole image is resized to a square, without a crop."""
        return Preprocess(SIDE, keep_ratio=False)

    def prepare_image(self, image: Image) -> Tensor:
        """uint8 pixels (3, side, side), on the CPU."""
        return torch.from_numpy(self.preprocess.pixels(image))

    def prepare_texts(self, texts: Sequence[str]) -> Tensor:
        """Padded token ids, (n, length)."""
        return tokenize(self.tokenizer, texts)

    @property
    def max_tokens(self) -> int:
        """Most tokens that are read of a text; the rest is cut."""
        return MAX_LENGTH

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """How many tokens texts have, with [CLS] and [SEP]."""
        return [len(ids) for ids in token_ids(self.tokenizer, texts)]

    def scaled(self, pixels: Tensor) -> Tensor:
        """uint8 pixels (n, 3, side, side) as the image tower reads them."""
        return scale_pixels(pixels.to(self.device)).contiguous(memory_format=torch.channels_last)

    def image_vectors(self, pixels: Tensor) -> Tensor:
        """uint8 pixels (n, 3, side, side) to vectors (n, dim)."""
        vectors: Tensor = self.module.image(self.scaled(pixels))
        return vectors

    def text_vectors(self, token_ids: Tensor) -> Tensor:
        """Token ids (n, length) to vectors (n, dim)."""
        vectors: Tensor = self.module.text(token_ids.to(self.device))
        return vectors

    def encode_images(self, images: Sequence[Image]) -> Array:
        """Raw vectors of RGB images, (n, dim)."""
        batch = GPU_IMAGE_BATCH if self.device.type == "cuda" else IMAGE_BATCH
        return embed_images(self, images, DIM, batch)

    def encode_texts(self, texts: Sequence[str]) -> Array:
        """Raw vectors of texts, (n, dim)."""
        batch = GPU_TEXT_BATCH if self.device.type == "cuda" else TEXT_BATCH
        return embed_texts(self, texts, DIM, batch)

    def save(self, folder: Path) -> None:
        """Weights (norms folded, packed) and tokenizer into `folder`: all of it or nothing."""
        state = {f"image.{name}": value for name, value in fold_norms(self.module.image).state_dict().items()}
        state |= {f"text.{name}": value for name, value in self.module.text.state_dict().items()}
        with write_folder(folder) as new:
            save_weights(pack(state), new / WEIGHTS)
            self.tokenizer.save(str(new / TOKENIZER))

    @classmethod
    def open(cls, folder: Path, device: str = "cpu") -> Self:
        """The encoder stored in `folder`; every key must be there and fit."""
        weights, words = folder / WEIGHTS, folder / TOKENIZER
        if not (weights.is_file() and words.is_file()):
            raise ModelNotFound(f"no mini encoder in {folder}: it needs {WEIGHTS} and {TOKENIZER}")
        with ThreadPoolExecutor(1) as background:
            digest = background.submit(fingerprint, weights, words)
            stored, _ = read_tensors(weights)
            with shapes_only():
                towers = Towers().eval()
            check_fit(packed_shapes(towers.state_dict()), stored, weights)
            towers.load_state_dict(unpack(stored), assign=True)
            try:
                tokenizer = Tokenizer.from_file(str(words))
            except Exception as error:  # its parser raises nothing more precise
                raise ModelMismatch(f"{words} is no tokenizer ({error}): fetch it again") from None
        known = tokenizer.get_vocab_size()
        if known > VOCABULARY:
            raise ModelMismatch(f"{words} has {known} tokens, mini knows {VOCABULARY}: use its own tokenizer")
        return cls(towers, tokenizer, digest.result(), device)


def load(source: str | Path | None = None, device: str = "cpu") -> MiniEncoder:
    """The embedded encoder, or one trained on one's own data from the folder `source`."""
    return MiniEncoder.open(Path(source) if source else EMBEDDED, device)


def pack(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Float weights as they are stored: text matrices as int8 with a scale per row, all else as float16."""
    packed: dict[str, Tensor] = {}
    for name, value in state.items():
        value = value.detach().float()
        if _is_text_matrix(name, value):
            scale = value.abs().amax(dim=1).clamp(min=1e-8) / 127
            packed[name] = (value / scale[:, None]).round().to(torch.int8)
            packed[name + SCALE] = scale
        else:
            packed[name] = value.half()
    return packed


def packed_shapes(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Shapes and kinds of what `pack` makes, without values."""
    packed: dict[str, Tensor] = {}
    for name, value in state.items():
        if _is_text_matrix(name, value):
            packed[name] = value.new_empty(value.shape, dtype=torch.int8)
            packed[name + SCALE] = value.new_empty(len(value))
        else:
            packed[name] = value.new_empty(value.shape, dtype=torch.half)
    return packed


def _is_text_matrix(name: str, value: Tensor) -> bool:
    return value.ndim == 2 and name.startswith("text.")


def unpack(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stored weights back to float32; by NumPy, which starts no threads."""
    state: dict[str, Tensor] = {}
    for name, value in packed.items():
        if not name.endswith(SCALE):
            scale, stored = packed.get(name + SCALE), value.numpy()
            if scale is None:
                state[name] = torch.from_numpy(stored.astype(np.float32))
            else:
                state[name] = torch.from_numpy(np.multiply(stored, scale.numpy()[:, None], dtype=np.float32))
    return state
