"""The quantizer: fusion and codebooks in one module, with NumPy in and out, saved to a model folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from genius.errors import ModelMismatch
from genius.quantize.fusion import Fusion
from genius.quantize.residual import ResidualQuantizer
from genius.weights import load_weights, save_weights

FILE = "quantizer.safetensors"
ROWS_AT_ONCE = 8192  # vectors that go through the fusion together

Floats = NDArray[np.float32]


class Quantizer(nn.Module):
    """Image and text vectors to z (`forward`), z to codes (`encode`), codes to vectors (`decode`)."""

    def __init__(
        self,
        dim: int,
        sizes: Sequence[int],
        *,
        fusion: str = "released",
        modality: str = "assigned",
        shared_codebooks: bool = False,
        codebooks: str = "common",
        encoding: bool = False,
        weighted: bool = False,
        encode_beam: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.fusion = Fusion(dim, fusion, dropout)
        self.residual = ResidualQuantizer(
            dim,
            sizes,
            modality=modality,
            shared=shared_codebooks,
            codebooks=codebooks,
            encoding=encoding,
            weighted=weighted,
        )
        self.encode_beam = encode_beam

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self.residual.dim

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codes per level."""
        return self.residual.sizes

    @property
    def levels(self) -> int:
        """M, how many codes a vector gets."""
        return self.residual.levels

    @property
    def device(self) -> torch.device:
        """Where the codebooks are."""
        return self.residual.vectors.device

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        """z of image and text vectors (n, dim), absent parts being zero: (n, dim), unit length."""
        z: Tensor = self.fusion(image, text)
        return z

    def encode(self, z: Tensor, modality: Tensor | None = None, beam: int | None = None) -> Tensor:
        """Codes of z (n, dim), int64 (n, levels); `modality` (n,) where it is assigned."""
        return self.residual.encode(z, modality, self.encode_beam if beam is None else beam)

    def decode(self, codes: Tensor) -> Tensor:
        """Quantized vectors of codes (n, levels), (n, dim)."""
        return self.residual.decode(codes)

    def directions(self, codes: Tensor) -> Tensor:
        """Quantized vectors of codes (n, levels) at unit length, (n, dim): what codes alone are scored by."""
        return self.residual.directions(codes)

    @torch.no_grad()
    def z_of(self, image: Floats, text: Floats) -> Floats:
        """`forward` from and to NumPy, in chunks."""
        z = np.empty((len(image), self.dim), dtype=np.float32)
        for start in range(0, len(z), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            parts = (torch.from_numpy(np.ascontiguousarray(part[rows])) for part in (image, text))
            z[rows] = self(*(part.to(self.device) for part in parts)).cpu().numpy()
        return z

    @torch.no_grad()
    def codes_of(self, z: Floats, modality: NDArray[np.integer[Any]] | None = None) -> NDArray[np.uint16]:
        """`encode` from and to NumPy: codes (n, levels) uint16."""
        known = None if modality is None else torch.from_numpy(modality.astype(np.int64)).to(self.device)
        codes = self.encode(torch.from_numpy(np.ascontiguousarray(z)).to(self.device), known)
        return codes.cpu().numpy().astype(np.uint16)

    @torch.no_grad()
    def vectors_of(self, codes: NDArray[np.integer[Any]]) -> Floats:
        """`decode` from and to NumPy: quantized vectors (n, dim)."""
        vectors = self.decode(torch.from_numpy(codes.astype(np.int64)).to(self.device)).cpu().numpy()
        return np.asarray(vectors, dtype=np.float32)

    def shape(self) -> dict[str, Any]:
        """The arguments that build this quantizer again, as plain values."""
        flags = {"encoding": self.residual.encoding, "weighted": self.residual.metric}
        more = {name: True for name, tensor in flags.items() if tensor is not None}
        by_modality = {"codebooks": "modality"} if self.residual.by_modality else {}
        return {
            "dim": self.dim,
            "sizes": list(self.sizes),
            "fusion": self.fusion.preset,
            "modality": self.residual.modality,
            "shared_codebooks": self.residual.shared,
            "encode_beam": self.encode_beam,
            **more,
            **by_modality,
        }


def save_quantizer(quantizer: Quantizer, folder: Path) -> dict[str, Any]:
    """Write the weights into the model folder; returns the `quantizer` table of its model.toml."""
    save_weights(quantizer.state_dict(), folder / FILE)
    return quantizer.shape()


def load_quantizer(folder: Path, table: dict[str, Any], device: torch.device | str = "cpu") -> Quantizer:
    """The quantizer of a model folder, ready to use; `table` is what `save_quantizer` returned."""
    try:
        quantizer = Quantizer(**table)
    except TypeError as error:
        raise ModelMismatch(
            f"model.toml in {folder}, table quantizer: {error}; convert or train it again"
        ) from None
    load_weights(quantizer, folder / FILE)
    return quantizer.to(device).eval().requires_grad_(False)
