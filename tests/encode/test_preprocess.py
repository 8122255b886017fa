"""Our preprocessing against transformers' own, pixel by pixel."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from genius.encode.preprocess import Preprocess, read_preprocess
from genius.errors import ModelMismatch

SIZES = [(640, 480), (100, 333), (224, 224), (301, 224), (1, 7), (5, 400), (1, 1)]
OURS = {
    "clip": Preprocess(224),
    "clip, cropped closer": Preprocess(224, short=256, resample=2),
    "clip, padded": Preprocess(65, short=50),
    "clip, squeezed and cropped": Preprocess(33, keep_ratio=False, short=40),
    "blip": Preprocess(384, keep_ratio=False),
    "blip, small and grey": Preprocess(33, keep_ratio=False, mean=(0.5, 0.5, 0.5), std=(0.25, 0.5, 1.0)),
}


def oracle(kind: str, settings: dict[str, Any]) -> Any:
    """transformers' image processor that needs no torchvision."""
    if kind.startswith("clip"):
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil as Processor
    else:
        from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil as Processor
    return Processor(**settings)


def photo(size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    width, height = size
    noise = np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise).convert(mode)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", OURS)
def test_same_numbers_as_transformers(kind: str, size: tuple[int, int]) -> None:
    ours = OURS[kind]
    image = photo(size)
    expected = oracle(kind, ours.settings())(image, return_tensors="pt")["pixel_values"]
    got = ours.scale(torch.from_numpy(ours.pixels(image))[None])
    assert got.shape == expected.shape == (1, 3, ours.side, ours.side)
    assert float((got - expected).abs().max()) < 1e-3


@pytest.mark.parametrize(("spare", "left"), [(0, 0), (1, 0), (2, 1), (3, 2), (5, 2), (7, 4), (9, 4), (10, 5)])
def test_the_crop_of_clip_rounds_half_to_even(spare: int, left: int) -> None:
    """As torchvision's CenterCrop, `int(round((width - side) / 2.0))`; transformers rounds down."""
    columns = np.broadcast_to(np.arange(20 + spare, dtype=np.uint8)[None, :, None], (20, 20 + spare, 3))
    image = Image.fromarray(np.ascontiguousarray(columns))
    assert Preprocess(20, round_crop=True).pixels(image)[0, 0, 0] == left
    assert Preprocess(20).pixels(image)[0, 0, 0] == spare // 2


def test_how_the_crop_rounds_is_stored(tmp_path: Path) -> None:
    ours = Preprocess(20, round_crop=True)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(ours.settings()))
    assert read_preprocess(tmp_path, Preprocess(20)).round_crop
    assert "round_crop" not in Preprocess(20).settings()


def test_defaults_are_those_of_transformers() -> None:
    image = photo((300, 500))
    for kind in ("clip", "blip"):
        expected = oracle(kind, {})(image, return_tensors="pt")["pixel_values"]
        got = OURS[kind].scale(torch.from_numpy(OURS[kind].pixels(image))[None])
        assert float((got - expected).abs().max()) < 1e-3


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "RGBA", "1"])
def test_other_modes_become_rgb(mode: str) -> None:
    pixels = Preprocess(16).pixels(photo((40, 30), mode))
    assert pixels.shape == (3, 16, 16)
    assert pixels.dtype == np.uint8


@pytest.mark.parametrize(
    "settings",
    [
        {"rescale_factor": 1 / 127.5, "rescale_offset": True, "do_normalize": False, "include_top": False},
        {"rescale_offset": True, "include_top": True},
        {"do_normalize": False, "include_top": False},
        {"do_rescale": False, "image_mean": [100, 110, 120], "image_std": [50, 60, 70], "include_top": False},
    ],
)
def test_every_rescaling_of_efficientnet(tmp_path: Path, settings: dict[str, Any]) -> None:
    """ALIGN resizes to a square, crops it and scales it to -1…1."""
    from transformers.models.efficientnet.image_processing_pil_efficientnet import (
        EfficientNetImageProcessorPil,
    )

    sizes = {"size": {"height": 40, "width": 40}, "crop_size": {"height": 33, "width": 33}}
    processor = EfficientNetImageProcessorPil(**sizes, do_center_crop=True, resample=2, **settings)
    processor.save_pretrained(tmp_path)
    ours = read_preprocess(tmp_path, Preprocess(224))
    image = photo((90, 70))
    expected = processor(image, return_tensors="pt")["pixel_values"]
    got = ours.scale(torch.from_numpy(ours.pixels(image))[None])
    assert got.shape == expected.shape == (1, 3, 33, 33)
    assert torch.allclose(got, expected.float(), atol=1e-3)


@pytest.mark.parametrize("kind", OURS)
def test_settings_saved_by_transformers_come_back(tmp_path: Path, kind: str) -> None:
    oracle(kind, OURS[kind].settings()).save_pretrained(tmp_path)
    default = Preprocess(10, keep_ratio=kind.startswith("clip"))
    image = photo((90, 70))
    back = read_preprocess(tmp_path, default)
    assert np.array_equal(back.pixels(image), OURS[kind].pixels(image))
    assert (back.mean, back.std) == (OURS[kind].mean, OURS[kind].std)

    table = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": table}))
    assert read_preprocess(tmp_path, default) == back


def test_a_folder_that_says_nothing_gets_the_default(tmp_path: Path) -> None:
    assert read_preprocess(tmp_path, Preprocess(48)) == Preprocess(48)


def test_older_and_square_sizes(tmp_path: Path) -> None:
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"size": 64, "crop_size": 48}))
    assert read_preprocess(tmp_path, Preprocess(224)) == Preprocess(48, short=64)
    file.write_text(
        json.dumps({"size": {"height": 64, "width": 64}, "crop_size": 64, "do_center_crop": True})
    )
    squeezed = read_preprocess(tmp_path, Preprocess(224))
    assert np.array_equal(
        squeezed.pixels(photo((90, 70))), Preprocess(64, keep_ratio=False).pixels(photo((90, 70)))
    )


@pytest.mark.parametrize(
    "content",
    [
        "[1]",
        "{",
        '{"size": {"height": 10, "width": 20}}',
        '{"size": -1}',
        '{"size": "big"}',
        '{"do_resize": false}',
        '{"rescale_factor": 0}',
        '{"image_std": [1, 1]}',
        '{"image_std": [0, 1, 1]}',
        '{"resample": 17}',
        '{"size": {"shortest_edge": 20}, "do_center_crop": false}',
    ],
)
def test_settings_we_cannot_follow_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(ModelMismatch, match="preproc"):
        read_preprocess(tmp_path, Preprocess(224))
