"""`clip-fusion` and `blip-fusion`: feature fusion of two towers.

The design is ours; UniIR's are `clip-ff` and `blip-ff`. A small transformer
reads the features of both towers at all their positions; the mean of its output is the one vector of an item
or query. An absent part is masked. A model is a folder: `towers/` (as `clip` and `blip` read it),
`fusion.json` and `fusion.safetensors`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from genius.encode import blip, clip
from genius.encode.fusing import DESCRIPTION, TOWERS, FusingTowers, read_description
from genius.encode.hub import find_folder
from genius.encode.towers import FeatureTowers
from genius.errors import ModelMismatch, ModelNotFound
from genius.files import write_folder
from genius.weights import load_weights, save_weights

LOADERS: dict[str, Callable[[str | Path | None, str], FeatureTowers]] = {
    "clip-fusion": clip.load,
    "blip-fusion": blip.load,
}
WEIGHTS = "fusion.safetensors"


@dataclass(frozen=True, slots=True)
class FusionShape:
    """The sizes of a fusion; they are what `fusion.json` holds."""

    image_width: int
    text_width: int
    dim: int  # of the one vector
    width: int  # inside
    layers: int = 2
    heads: int = 12


class FusionTransformer(nn.Module):
    """Features of two towers to one vector."""

    def __init__(self, shape: FusionShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.width
        self.image_in = nn.Sequential(nn.LayerNorm(shape.image_width), nn.Linear(shape.image_width, width))
        self.text_in = nn.Sequential(nn.LayerNorm(shape.text_width), nn.Linear(shape.text_width, width))
        self.part = nn.Parameter(0.02 * torch.randn(2, width))  # tells image positions from text positions
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, shape.heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(shape.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, shape.dim)

    def forward(self, image: Tensor, image_mask: Tensor, text: Tensor, text_mask: Tensor) -> Tensor:
        """Features (n, positions, width of the tower) with masks (n, positions) to vectors (n, dim).

        A row without any part gives zeros.
        """
        x = torch.cat([self.image_in(image) + self.part[0], self.text_in(text) + self.part[1]], dim=1)
        mask = torch.cat([image_mask, text_mask], dim=1)  # (n, positions)
        there = mask.any(dim=1, keepdim=True)
        hidden = ~mask & there  # attention over no position would be NaN
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=hidden)
        count = mask.sum(dim=1, keepdim=True).clamp(min=1)
        pooled = (self.norm(x) * mask[..., None]).sum(dim=1) / count
        vectors: Tensor = self.out(pooled) * there
        return vectors


class FeatureFusionEncoder(FusingTowers):
    """Two towers and the fusion of their features."""

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return int(self.fusion.shape.dim)

    def item_vectors(
        self, pixels: Tensor, image_rows: Tensor, token_ids: Tensor, text_rows: Tensor
    ) -> Tensor:
        """Vectors (n, dim), with gradients, of items made of prepared images and texts.

        Item i has image `pixels[image_rows[i]]` and text `token_ids[text_rows[i]]`; -1 says that it has none.
        """
        device, shape = self.towers.device, self.fusion.shape
        image_rows, text_rows = image_rows.to(device), text_rows.to(device)
        image = torch.zeros(1, 1, shape.image_width, device=device)
        text, text_mask = torch.zeros(1, 1, shape.text_width, device=device), token_ids.new_zeros(1, 1)
        if len(pixels):
            image = self.towers.image_features(pixels)  # (images, positions, image width)
        if len(token_ids):
            text, text_mask = self.towers.text_features(token_ids), token_ids  # (texts, length, text width)
        has_image = (image_rows >= 0)[:, None].expand(-1, image.shape[1])
        has_text = (text_rows >= 0)[:, None] & (text_mask.to(device) > 0)[text_rows.clamp(min=0)]
        vectors: Tensor = self.fusion(
            image[image_rows.clamp(min=0)], has_image, text[text_rows.clamp(min=0)], has_text
        )
        return vectors

    def save(self, folder: Path) -> None:
        """Write everything that loading needs: all of it or nothing."""
        with write_folder(folder) as new:
            self.towers.save(new / TOWERS)
            save_weights(self.fusion.state_dict(), new / WEIGHTS)
            table = {"kind": self.kind, **asdict(self.fusion.shape)}
            (new / DESCRIPTION).write_text(json.dumps(table, indent=2), encoding="utf-8")


def create(
    kind: str, source: str | Path, device: str = "cpu", *, width: int = 0, layers: int = 2, seed: int = 0
) -> FeatureFusionEncoder:
    """A new `clip-fusion` or `blip-fusion` to be trained: the towers of `source` and a random fusion.

    `width` is that of the fusion's transformer; 0 takes the width of the towers' own vectors.
    """
    towers = LOADERS[kind](source, device)
    width = width or towers.dim
    heads = next(heads for heads in range(max(1, width // 64), 0, -1) if width % heads == 0)
    config = towers.module.config
    shape = FusionShape(
        image_width=config.vision_config.hidden_size,
        text_width=config.text_config.hidden_size,
        dim=towers.dim,
        width=width,
        layers=layers,
        heads=heads,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fusion = FusionTransformer(shape)
    return FeatureFusionEncoder(kind, towers, fusion)


def load_clip(source: str | Path | None, device: str = "cpu") -> FeatureFusionEncoder:
    """The `clip-fusion` model in a folder or under a hub id."""
    return _load("clip-fusion", source, device)


def load_blip(source: str | Path | None, device: str = "cpu") -> FeatureFusionEncoder:
    """The `blip-fusion` model in a folder or under a hub id."""
    return _load("blip-fusion", source, device)


def _load(kind: str, source: str | Path | None, device: str) -> FeatureFusionEncoder:
    folder = find_folder(source, f"me/my-{kind}")
    if not (folder / DESCRIPTION).is_file():
        raise ModelNotFound(
            f"no {DESCRIPTION} in {folder}: start a model from plain towers with "
            f"`genius convert {kind} {folder} --to DIR`, then train it"
        )
    shape = _read_shape(folder, kind)
    towers = LOADERS[kind](folder / TOWERS, device)
    fusion = FusionTransformer(shape)
    load_weights(fusion, folder / WEIGHTS)
    config = towers.module.config
    widths = (config.vision_config.hidden_size, config.text_config.hidden_size)
    if widths != (shape.image_width, shape.text_width):
        raise ModelMismatch(
            f"{folder}: the towers have widths {widths}, {DESCRIPTION} says otherwise: use its own towers"
        )
    return FeatureFusionEncoder(kind, towers, fusion)


def _read_shape(folder: Path, kind: str) -> FusionShape:
    file, table = folder / DESCRIPTION, read_description(folder, kind)
    try:
        shape = FusionShape(**{name: value for name, value in table.items() if name != "kind"})
    except TypeError as error:
        raise ModelMismatch(f"{file} does not describe a fusion ({error}): fetch or make it again") from None
    sizes = asdict(shape)
    wrong = [
        f"{name} = {value!r}" for name, value in sizes.items() if not isinstance(value, int) or value < 1
    ]
    if wrong or shape.width % shape.heads:
        problem = ", ".join(wrong) or f"width {shape.width} does not divide into {shape.heads} heads"
        raise ModelMismatch(f"{file}: {problem}: whole numbers above 0 are wanted; fetch or make it again")
    return shape
