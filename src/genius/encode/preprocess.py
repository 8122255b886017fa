"""Images as CLIP and BLIP want them, with Pillow alone: resized to uint8, then scaled on any device."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Resampling

from genius.errors import ModelMismatch

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True)
class Preprocess:
    """How an image becomes numbers.

    With `crop`, the short side is brought to `short` and the centre is kept (CLIP); without, the whole image
    is squeezed into the square (BLIP).
    """

    side: int  # of the square that the model sees
    crop: bool = True
    short: int = 0  # length of the short side before cropping; 0: the same as `side`
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    resample: int = Resampling.BICUBIC

    def pixels(self, image: Image) -> NDArray[np.uint8]:
        """The resized and cropped image, (3, side, side)."""
        rgb = image if image.mode == "RGB" else image.convert("RGB")
        if self.crop:
            rgb = self._centre(rgb)
        elif rgb.size != (self.side, self.side):
            rgb = rgb.resize((self.side, self.side), Resampling(self.resample))
        return np.ascontiguousarray(np.asarray(rgb, dtype=np.uint8).transpose(2, 0, 1))

    def scale(self, pixels: Tensor) -> Tensor:
        """uint8 pixels (n, 3, side, side) as the floats that the model reads, on the same device."""
        scaled = pixels.float() / 255
        mean = scaled.new_tensor(self.mean).view(-1, 1, 1)
        std = scaled.new_tensor(self.std).view(-1, 1, 1)
        return (scaled - mean) / std

    def _centre(self, image: Image) -> Image:
        width, height = image.size
        short = self.short or self.side
        if width <= height:
            size = (short, int(short * height / width))
        else:
            size = (int(short * width / height), short)
        resized = image if size == image.size else image.resize(size, Resampling(self.resample))
        left, top = (size[0] - self.side) // 2, (size[1] - self.side) // 2
        return resized.crop((left, top, left + self.side, top + self.side))  # black where there is no image

    def settings(self) -> dict[str, Any]:
        """The same as transformers writes into `preprocessor_config.json`."""
        square = {"height": self.side, "width": self.side}
        table: dict[str, Any] = {"size": {"shortest_edge": self.short or self.side} if self.crop else square}
        if self.crop:
            table["crop_size"] = square
        steps = {"do_resize": True, "do_center_crop": self.crop, "do_rescale": True, "do_normalize": True}
        return {
            **table,
            **steps,
            "do_convert_rgb": True,
            "resample": int(self.resample),
            "rescale_factor": 1 / 255,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }


def read_preprocess(folder: Path, default: Preprocess) -> Preprocess:
    """The preprocessing that a model folder asks for, or `default` where it says nothing."""
    table: dict[str, Any] = {}
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            table = _table(folder / name)
            break
    if not table:
        return default
    where = f"{folder}: preprocessing"
    for step in ("do_resize", "do_rescale", "do_normalize"):
        if table.get(step) is False:
            raise ModelMismatch(f"{where} without {step} is not supported; set it to true")
    size, crop = table.get("size", default.short or default.side), table.get("do_center_crop", default.crop)
    short = _length(size, where)
    side = _length(table.get("crop_size", short), where) if crop else short
    keeps_ratio = "shortest_edge" in size if isinstance(size, dict) else default.crop
    if keeps_ratio != bool(crop) and side != short:
        raise ModelMismatch(f"{where} to {size} and a crop of {side} is not supported; make both the same")
    if keeps_ratio and not crop:
        raise ModelMismatch(f"{where} to {size} without a crop gives no square: set do_center_crop to true")
    mean, std = tuple(table.get("image_mean", default.mean)), tuple(table.get("image_std", default.std))
    if len(mean) != 3 or len(std) != 3 or 0 in std:
        raise ModelMismatch(
            f"{where} needs three means and three deviations above zero, not {mean} and {std}"
        )
    resample = table.get("resample", default.resample)
    if resample not in list(Resampling):
        raise ModelMismatch(f"{where} with resample {resample!r}: use one of Pillow's filters, 0 to 5")
    return Preprocess(side, keeps_ratio, short, mean, std, resample)


def _table(file: Path) -> dict[str, Any]:
    """The settings of the image part in transformers' file, older or newer."""
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        table = table.get("image_processor", table)
        return dict(table)
    except (ValueError, AttributeError, TypeError) as error:
        raise ModelMismatch(f"{file} is no table of settings ({error}): fetch it again") from None


def _length(size: Any, where: str) -> int:
    """One length from the ways transformers writes a size."""
    lengths = set(size.values()) if isinstance(size, dict) else {size}
    if len(lengths) != 1 or not all(isinstance(length, int) and length > 0 for length in lengths):
        raise ModelMismatch(f"{where} to {size} is not supported; it takes squares only")
    return int(lengths.pop())
