"""Images as pretrained models want them, with Pillow alone: resized to uint8, then scaled on any device."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
FILES = ("preprocessor_config.json", "processor_config.json")  # the first that is there counts
_BYTE = 255


@dataclass(frozen=True, slots=True)
class Preprocess:
    """How an image becomes numbers.

    With `keep_ratio`, the short side is brought to `short` (CLIP); without, the whole image is squeezed into
    a square of `short` (BLIP, SigLIP). Of either, the centre of `side` pixels is kept; where an odd number of
    pixels goes, transformers cuts the larger half behind, torchvision (OpenAI's CLIP) rounds half to even.
    """

    side: int  # of the square that the model sees
    keep_ratio: bool = True
    short: int = 0  # length of the short side before cropping; 0: the same as `side`
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    resample: int = Resampling.BICUBIC
    round_crop: bool = False  # as torchvision

    def pixels(self, image: Image) -> NDArray[np.uint8]:
        """The resized and cropped image, (3, side, side)."""
        rgb = image if image.mode == "RGB" else image.convert("RGB")
        size = self._resized(*rgb.size)
        if size != rgb.size:
            rgb = rgb.resize(size, Resampling(self.resample))
        if size != (self.side, self.side):
            left, top = (self._crop_start(length - self.side) for length in size)
            rgb = rgb.crop((left, top, left + self.side, top + self.side))  # black where there is no image
        return np.ascontiguousarray(np.asarray(rgb, dtype=np.uint8).transpose(2, 0, 1))

    def scale(self, pixels: Tensor) -> Tensor:
        """uint8 pixels (n, 3, side, side) as the floats that the model reads, on the same device."""
        scaled = pixels.float() / _BYTE
        mean = scaled.new_tensor(self.mean).view(-1, 1, 1)
        std = scaled.new_tensor(self.std).view(-1, 1, 1)
        return (scaled - mean) / std

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        """The size of an image before cropping."""
        short = self.short or self.side
        if not self.keep_ratio:
            return short, short
        if width <= height:
            return short, int(short * height / width)
        return int(short * width / height), short

    def _crop_start(self, spare: int) -> int:
        """How many of the `spare` pixels go before the crop."""
        return round(spare / 2) if self.round_crop else spare // 2

    def settings(self) -> dict[str, Any]:
        """The same as transformers writes into `preprocessor_config.json`."""
        short = self.short or self.side
        crop = self.keep_ratio or short != self.side
        table: dict[str, Any] = {
            "size": {"shortest_edge": short} if self.keep_ratio else {"height": short, "width": short}
        }
        if crop:
            table["crop_size"] = {"height": self.side, "width": self.side}
        if self.round_crop:
            table["round_crop"] = True
        steps = {"do_resize": True, "do_center_crop": crop, "do_rescale": True, "do_normalize": True}
        return {
            **table,
            **steps,
            "do_convert_rgb": True,
            "resample": int(self.resample),
            "rescale_factor": 1 / _BYTE,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }


def read_preprocess(folder: Path, default: Preprocess) -> Preprocess:
    """The preprocessing that a model folder asks for, or `default` where it says nothing."""
    table: dict[str, Any] = {}
    for name in FILES:
        if (folder / name).is_file():
            table = _table(folder / name)
            break
    if not table:
        return default
    where = f"{folder}: preprocessing"
    if table.get("do_resize") is False:
        raise ModelMismatch(f"{where} without do_resize is not supported; set it to true")
    size = table.get("size", default.short or default.side)
    crop = table.get("do_center_crop", default.keep_ratio)
    short = _length(size, where)
    side = _length(table.get("crop_size", short), where) if crop else short
    keep_ratio = "shortest_edge" in size if isinstance(size, dict) else default.keep_ratio
    if keep_ratio and not crop:
        raise ModelMismatch(f"{where} to {size} without a crop gives no square: set do_center_crop to true")
    mean, std = _mean_and_std(table, default, where)
    resample = table.get("resample", default.resample)
    if resample not in list(Resampling):
        raise ModelMismatch(f"{where} with resample {resample!r}: use one of Pillow's filters, 0 to 5")
    round_crop = bool(table.get("round_crop", default.round_crop))
    return Preprocess(side, keep_ratio, short, mean, std, resample, round_crop)


def _mean_and_std(
    table: Mapping[str, Any], default: Preprocess, where: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation for pixels in 0…1, with whatever rescaling `table` asks for folded in."""
    mean, std = tuple(table.get("image_mean", default.mean)), tuple(table.get("image_std", default.std))
    if len(mean) != 3 or len(std) != 3 or 0 in std:
        raise ModelMismatch(
            f"{where} needs three means and three deviations above zero, not {mean} and {std}"
        )
    factor = table.get("rescale_factor", 1 / _BYTE) if table.get("do_rescale", True) else 1
    if not isinstance(factor, int | float) or factor <= 0:
        raise ModelMismatch(f"{where} with rescale_factor {factor!r}: use a number above zero, as 1/255")
    offset = 1 if table.get("rescale_offset") and table.get("do_rescale", True) else 0
    again = std if table.get("include_top") else (1, 1, 1)  # EfficientNet: divided by the deviation twice
    if not table.get("do_normalize", True):
        mean, std = (0, 0, 0), (1, 1, 1)
    unit = _BYTE * factor  # (x * unit - offset - mean) / std / again, for x in 0…1
    if (unit, offset, again) == (1, 0, (1, 1, 1)):
        return mean, std
    return (
        tuple((value + offset) / unit for value in mean),
        tuple(value * twice / unit for value, twice in zip(std, again, strict=True)),
    )


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
