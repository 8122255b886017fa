"""Converted weights give the vectors of the original; what does not fit is refused by name."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from genius.cli.convert import KINDS
from genius.convert.encoders import convert_clip_sf, convert_weights
from genius.encode.base import FusingEncoder, load_encoder
from genius.encode.clip import load
from genius.errors import BadInput, GeniusError, ModelMismatch, ModelNotFound

TEXTS = ["a red dog", "cat", "the blue cat on the mat!"]


def openai_names(model: Any) -> dict[str, Tensor]:
    """The weights of a transformers CLIP as OpenAI's own code names them."""
    state = model.state_dict()
    named: dict[str, Tensor] = {
        "logit_scale": state["logit_scale"],
        "text_projection": state["text_projection.weight"].T,
        "visual.proj": state["visual_projection.weight"].T,
        "token_embedding.weight": state["text_model.embeddings.token_embedding.weight"],
        "positional_embedding": state["text_model.embeddings.position_embedding.weight"],
        "visual.class_embedding": state["vision_model.embeddings.class_embedding"],
        "visual.positional_embedding": state["vision_model.embeddings.position_embedding.weight"],
        "visual.conv1.weight": state["vision_model.embeddings.patch_embedding.weight"],
    }
    for kind in ("weight", "bias"):
        named[f"ln_final.{kind}"] = state[f"text_model.final_layer_norm.{kind}"]
        named[f"visual.ln_pre.{kind}"] = state[f"vision_model.pre_layrnorm.{kind}"]
        named[f"visual.ln_post.{kind}"] = state[f"vision_model.post_layernorm.{kind}"]
    for stem, tower, layers in (("", "text_model", 2), ("visual.", "vision_model", 3)):
        for layer in range(layers):
            theirs, ours = f"{stem}transformer.resblocks.{layer}", f"{tower}.encoder.layers.{layer}"
            for kind in ("weight", "bias"):
                parts = [state[f"{ours}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
                named[f"{theirs}.attn.in_proj_{kind}"] = torch.cat(parts)
                named[f"{theirs}.attn.out_proj.{kind}"] = state[f"{ours}.self_attn.out_proj.{kind}"]
                named[f"{theirs}.ln_1.{kind}"] = state[f"{ours}.layer_norm1.{kind}"]
                named[f"{theirs}.ln_2.{kind}"] = state[f"{ours}.layer_norm2.{kind}"]
                named[f"{theirs}.mlp.c_fc.{kind}"] = state[f"{ours}.mlp.fc1.{kind}"]
                named[f"{theirs}.mlp.c_proj.{kind}"] = state[f"{ours}.mlp.fc2.{kind}"]
    assert sum(value.numel() for value in named.values()) == sum(value.numel() for value in state.values())
    return {name: value.contiguous() for name, value in named.items()}


@pytest.fixture
def weights(make_clip: Callable[..., Any]) -> dict[str, Tensor]:
    return openai_names(make_clip())


def pth(folder: Path, weights: dict[str, Tensor], prefix: str = "clip_model.") -> str:
    file = folder / "clip_sf.pth"
    torch.save({"model": {f"{prefix}{name}": value for name, value in weights.items()}, "epoch": 9}, file)
    return str(file)


@pytest.mark.parametrize("prefix", ["clip_model.", "module.clip_model.", ""])
def test_a_converted_clip_gives_the_same_vectors(
    weights: dict[str, Tensor], clip_folder: Path, photos: list[Image.Image], tmp_path: Path, prefix: str
) -> None:
    convert_clip_sf(pth(tmp_path, weights, prefix), tmp_path / "clip", str(clip_folder))
    ours, theirs = load(tmp_path / "clip"), load(clip_folder)
    assert np.allclose(ours.encode_images(photos), theirs.encode_images(photos), atol=1e-5)
    assert np.allclose(ours.encode_texts(TEXTS), theirs.encode_texts(TEXTS), atol=1e-5)
    assert not list((tmp_path / "clip").glob("*.pth"))


def test_wider_towers_with_several_heads(
    make_clip: Callable[..., Any], clip_folder: Path, photos: list[Image.Image], tmp_path: Path
) -> None:
    """How many heads a width has cannot be read off the weights: it is OpenAI's rule."""
    from transformers import CLIPModel

    model = make_clip(width=128)
    convert_clip_sf(pth(tmp_path, openai_names(model)), tmp_path / "clip", str(clip_folder))
    config = CLIPModel.from_pretrained(tmp_path / "clip").config
    assert (config.text_config.num_attention_heads, config.vision_config.num_attention_heads) == (2, 4)
    encoder = load(tmp_path / "clip")
    pixels = torch.stack([encoder.prepare_image(photo) for photo in photos])
    with torch.no_grad():
        expected = model(
            input_ids=torch.tensor([[198, 199]]), pixel_values=encoder.scaled(pixels)
        ).image_embeds
        found = torch.nn.functional.normalize(encoder.image_vectors(pixels), dim=1)
    assert torch.allclose(found, expected, atol=1e-5)


def test_half_precision_becomes_float32(
    weights: dict[str, Tensor], clip_folder: Path, photos: list[Image.Image], tmp_path: Path
) -> None:
    half = {name: value.half() for name, value in weights.items()}
    convert_clip_sf(pth(tmp_path, half), tmp_path / "clip", str(clip_folder))
    found = load_file(tmp_path / "clip" / "model.safetensors")
    assert {value.dtype for value in found.values()} == {torch.float32}
    assert np.allclose(
        load(tmp_path / "clip").encode_images(photos),
        load(clip_folder).encode_images(photos),
        rtol=0.05,
        atol=0.05,
    )


Change = Callable[[dict[str, Tensor]], object]
WRONG: dict[str, tuple[Change, str]] = {
    "unknown": (lambda w: w.update({"t5_layers.x": torch.ones(1)}), r"no CLIP has: t5_layers\.x"),
    "a resnet": (lambda w: w.update({"visual.layer1.0.conv1.weight": torch.ones(1)}), r"visual\.layer1"),
    "odd block": (
        lambda w: w.update({"transformer.resblocks.0.attn.odd.weight": torch.ones(1)}),
        r"attn\.odd",
    ),
    "no projection": (lambda w: w.pop("visual.proj"), r"missing visual_projection\.weight"),
    "no telling name": (lambda w: w.pop("visual.conv1.weight"), r"missing visual\.conv1\.weight"),
    "a hole": (
        lambda w: w.pop("transformer.resblocks.1.ln_2.bias"),
        r"missing text_model.*1\.layer_norm2\.bias",
    ),
    "no blocks": (
        lambda w: [w.pop(n) for n in list(w) if n.startswith("transformer")],
        "resblocks of width 64",
    ),
    "misshaped": (lambda w: w.update({"visual.proj": torch.ones(3, 3)}), r"misshaped visual_projection"),
    "spoilt": (lambda w: w["logit_scale"].fill_(torch.nan), "NaN or Inf in clip_model.logit_scale"),
    "odd width": (lambda w: w.update({"token_embedding.weight": torch.ones(200, 60)}), "width 60"),
}


@pytest.mark.parametrize("what", WRONG)
def test_weights_of_another_model_are_refused_by_name(
    weights: dict[str, Tensor], clip_folder: Path, tmp_path: Path, what: str
) -> None:
    change, message = WRONG[what]
    weights = {name: value.clone() for name, value in weights.items()}
    change(weights)
    with pytest.raises(ModelMismatch, match=message):
        convert_clip_sf(pth(tmp_path, weights), tmp_path / "clip", str(clip_folder))
    assert not (tmp_path / "clip").exists()


def test_mixed_prefixes_are_refused(weights: dict[str, Tensor], clip_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "w.pth"
    torch.save({**{f"clip_model.{n}": v for n, v in weights.items()}, "head.weight": torch.ones(1)}, file)
    with pytest.raises(ModelMismatch, match=r"beside clip_model\.\* it holds head\.weight"):
        convert_clip_sf(str(file), tmp_path / "clip", str(clip_folder))


def test_the_tokenizer_must_be_there_and_fit(
    weights: dict[str, Tensor],
    clip_folder: Path,
    blip_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import huggingface_hub

    asked: list[list[str]] = []

    def unreachable(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append([name, *allow_patterns])
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    file = pth(tmp_path, weights)
    with pytest.raises(ModelNotFound, match=r"no route.*--tokenizer DIR"):
        convert_clip_sf(file, tmp_path / "clip")
    assert asked[0][0] == "openai/clip-vit-large-patch14"
    assert not any("safetensors" in pattern or pattern == "*" for pattern in asked[0])  # not the whole model
    with pytest.raises(ModelMismatch, match="ends texts with"):
        convert_clip_sf(file, tmp_path / "clip", str(blip_folder))
    (tmp_path / "none").mkdir()
    with pytest.raises(ModelNotFound, match="no tokenizer in"):
        convert_clip_sf(file, tmp_path / "clip", str(tmp_path / "none"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(clip_folder))
    convert_clip_sf(file, tmp_path / "clip")


def test_an_old_folder_is_not_overwritten(
    weights: dict[str, Tensor], clip_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(BadInput, match="choose a new folder"):
        convert_clip_sf(pth(tmp_path, weights), tmp_path / "full", str(clip_folder))
    assert os.listdir(tmp_path / "full") == ["mine"]  # noqa: PTH208


def test_any_pickled_weights_become_safetensors(clip_folder: Path, tmp_path: Path) -> None:
    """What a folder that has only pytorch_model.bin needs."""
    import shutil

    shutil.copytree(clip_folder, tmp_path / "model")
    state = load_file(tmp_path / "model" / "model.safetensors")
    torch.save(state, tmp_path / "model" / "pytorch_model.bin")
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(ModelMismatch, match="genius convert weights"):
        load(tmp_path / "model")
    convert_weights(str(tmp_path / "model" / "pytorch_model.bin"), tmp_path / "model")
    assert load(tmp_path / "model").fingerprint == load(clip_folder).fingerprint
    with pytest.raises(BadInput, match="exists already"):
        convert_weights(str(tmp_path / "model" / "pytorch_model.bin"), tmp_path / "model")


def test_the_verb(weights: dict[str, Tensor], clip_folder: Path, blip_folder: Path, tmp_path: Path) -> None:
    from genius.cli import app

    def genius(*words: object) -> Any:
        return CliRunner().invoke(app, ["convert", *map(str, words)])

    done = genius("clip-sf", pth(tmp_path, weights), "--to", tmp_path / "clip", "--tokenizer", clip_folder)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(tmp_path / "clip")
    assert load(tmp_path / "clip").dim == 24
    for kind, towers in (("clip-fusion", clip_folder), ("blip-fusion", blip_folder)):
        assert genius(kind, towers, "--to", tmp_path / kind).exit_code == 0
        assert isinstance(load_encoder(kind, tmp_path / kind), FusingEncoder)
    for words, error in (
        (("nonsense", "x", "--to", tmp_path / "new"), "unknown kind 'nonsense': choose one of clip-sf"),
        (("weights", "x", "--to", tmp_path / "new", "--tokenizer", "y"), "takes no --tokenizer"),
        (("weights", tmp_path / "none.pth", "--to", tmp_path / "new"), "no weights at"),
    ):
        failed = genius(*words)
        assert isinstance(failed.exception, GeniusError)
        assert error in str(failed.exception)
    help_text = genius("--help").output
    assert all(kind in help_text for kind in KINDS)
