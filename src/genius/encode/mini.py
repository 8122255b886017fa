"""`mini`: the embedded encoder. An EfficientNet-Lite2 and a MiniLM meet in a space of width 512.

It needs no hub and no network: weights and tokenizer are in the package (`models/mini/`), its card beside
them. Matrices are stored as int8 with one scale per row, the rest as float16; in memory all is float32.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from genius.encode.base import Array
from genius.encode.efficientnet import ImageTower, fold_norms, scale_pixels
from genius.encode.minilm import TextTower, piece_ids
from genius.errors import ModelMismatch, ModelNotFound

if TYPE_CHECKING:
    from PIL.Image import Image

DIM = 512
SIDE = 224
IMAGE_BATCH = 16
TEXT_BATCH = 32
WEIGHTS, TOKENIZER = "encoder.safetensors", "tokenizer.json"
EMBEDDED = Path(__file__).parent.parent / "models" / "mini"


class Towers(nn.Module):
    """Both towers of `mini`."""

    def __init__(self, *, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.image = ImageTower(DIM, norm=norm)
        self.text = TextTower(DIM, dropout)


class MiniEncoder:
    """The two towers with their preparation of images and texts."""

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

    def prepare_image(self, image: Image) -> Tensor:
        """The whole picture squeezed to a square, (3, side, side) uint8: nothing is cropped away."""
        pixels = np.asarray(
            image.convert("RGB").resize((SIDE, SIDE), resample=3), dtype=np.uint8
        )  # 3: bicubic
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1)

    def prepare_texts(self, texts: Sequence[str]) -> Tensor:
        """Padded piece ids, (n, length)."""
        return piece_ids(self.tokenizer, texts)

    def image_vectors(self, pixels: Tensor) -> Tensor:
        """uint8 pixels (n, 3, side, side) to vectors (n, dim)."""
        scaled = scale_pixels(pixels.to(self.device)).contiguous(memory_format=torch.channels_last)
        vectors: Tensor = self.module.image(scaled)
        return vectors

    def text_vectors(self, pieces: Tensor) -> Tensor:
        """Piece ids (n, length) to vectors (n, dim)."""
        vectors: Tensor = self.module.text(pieces.to(self.device))
        return vectors

    @torch.inference_mode()
    def encode_images(self, images: Sequence[Image]) -> Array:
        """Raw vectors (n, dim)."""
        self.module.eval()
        vectors = np.empty((len(images), DIM), dtype=np.float32)
        for start in range(0, len(images), IMAGE_BATCH):
            batch = images[start : start + IMAGE_BATCH]
            pixels = torch.stack([self.prepare_image(image) for image in batch])
            vectors[start : start + len(batch)] = self.image_vectors(pixels).float().cpu().numpy()
        return vectors

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str]) -> Array:
        """Raw vectors (n, dim); texts of like length share a batch, so padding costs little."""
        self.module.eval()
        vectors = np.empty((len(texts), DIM), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        for start in range(0, len(order), TEXT_BATCH):
            rows = order[start : start + TEXT_BATCH]
            pieces = self.prepare_texts([texts[row] for row in rows])
            vectors[rows] = self.text_vectors(pieces).float().cpu().numpy()
        return vectors

    def save(self, folder: Path) -> None:
        """Weights (norms folded, packed) and tokenizer into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            f"image.{name}": value
            for name, value in fold_norms(deepcopy(self.module.image).cpu()).state_dict().items()
        }
        state |= {f"text.{name}": value for name, value in self.module.text.state_dict().items()}
        save_file(pack(state), folder / WEIGHTS)
        self.tokenizer.save(str(folder / TOKENIZER))

    @classmethod
    def open(cls, folder: Path, device: str = "cpu") -> Self:
        """The encoder stored in `folder`; every key must be there and fit."""
        weights = folder / WEIGHTS
        if not weights.is_file():
            raise ModelNotFound(f"no mini encoder in {folder}: it needs {WEIGHTS} and {TOKENIZER}")
        try:
            state = unpack(load_file(weights))
        except SafetensorError as error:
            raise ModelMismatch(f"{weights} cannot be read ({error}): fetch or train it again") from None
        towers = Towers().eval()
        expected = towers.state_dict()
        wrong = sorted(
            name
            for name in expected.keys() | state.keys()
            if name not in expected or name not in state or state[name].shape != expected[name].shape
        )
        if wrong:
            raise ModelMismatch(
                f"{weights} does not fit mini: missing, extra or misshaped {', '.join(wrong[:8])}"
            )
        towers.load_state_dict(state, assign=True)
        digest = hashlib.sha256(weights.read_bytes())
        digest.update((folder / TOKENIZER).read_bytes())
        return cls(towers, Tokenizer.from_file(str(folder / TOKENIZER)), digest.hexdigest()[:16], device)


def load(source: str | Path | None = None, device: str = "cpu") -> MiniEncoder:
    """The embedded encoder, or one trained on one's own data from the folder `source`."""
    return MiniEncoder.open(Path(source) if source else EMBEDDED, device)


def pack(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Float weights as they are stored: matrices as int8 with a scale per row, everything else as float16."""
    packed: dict[str, Tensor] = {}
    for name, value in state.items():
        value = value.detach().cpu().float()
        if value.ndim == 2 and name.startswith("text."):
            scale = value.abs().amax(dim=1).clamp(min=1e-8) / 127
            packed[name] = (value / scale[:, None]).round().to(torch.int8)
            packed[f"{name}.scale"] = scale
        else:
            packed[name] = value.half().contiguous()
    return packed


def unpack(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stored weights back to float32."""
    state: dict[str, Tensor] = {}
    for name, value in packed.items():
        if name.endswith(".scale"):
            continue
        scale = packed.get(f"{name}.scale")
        state[name] = value.float() if scale is None else value.float() * scale[:, None]
    return state
