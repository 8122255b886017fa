"""A file with BLIP's names becomes a `blip` folder with the vectors of transformers' BLIP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from genius.convert.blip import convert_blip_sf
from genius.encode.blip import load
from genius.errors import BadInput, ModelMismatch

TEXTS = ["a red dog", "cat", "the blue cat on the mat", "mat " * 500]


@pytest.fixture
def model() -> Any:
    """A random BLIP with several heads, whose sizes all differ."""
    from transformers import BlipConfig, BlipForImageTextRetrieval

    layers = {"num_hidden_layers": 2}
    vision = {"hidden_size": 128, "intermediate_size": 96, "num_attention_heads": 2, "layer_norm_eps": 1e-6}
    text = {"hidden_size": 64, "intermediate_size": 80, "num_attention_heads": 1, "vocab_size": 20}
    config = BlipConfig(
        vision_config={**layers, **vision, "image_size": 32, "patch_size": 8},
        text_config={**layers, **text, "encoder_hidden_size": 128, "max_position_embeddings": 110},
        image_text_hidden_size=24,
    )
    torch.manual_seed(0)
    model = BlipForImageTextRetrieval(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return model


def blip_names(model: Any) -> dict[str, Tensor]:
    """The weights as BLIP's own code names them, with what its training keeps beside."""
    state = model.state_dict()
    named = {name: value for name, value in state.items() if not name.startswith("vision_model.")}
    inner = "vision_model.embeddings"
    named["visual_encoder.cls_token"] = state[f"{inner}.class_embedding"]
    named["visual_encoder.pos_embed"] = state[f"{inner}.position_embedding"]
    for kind in ("weight", "bias"):
        named[f"visual_encoder.patch_embed.proj.{kind}"] = state[f"{inner}.patch_embedding.{kind}"]
        named[f"visual_encoder.norm.{kind}"] = state[f"vision_model.post_layernorm.{kind}"]
        for layer in range(2):
            theirs, ours = f"visual_encoder.blocks.{layer}", f"vision_model.encoder.layers.{layer}"
            named[f"{theirs}.norm1.{kind}"] = state[f"{ours}.layer_norm1.{kind}"]
            named[f"{theirs}.norm2.{kind}"] = state[f"{ours}.layer_norm2.{kind}"]
            named[f"{theirs}.attn.qkv.{kind}"] = state[f"{ours}.self_attn.qkv.{kind}"]
            named[f"{theirs}.attn.proj.{kind}"] = state[f"{ours}.self_attn.projection.{kind}"]
            named[f"{theirs}.mlp.fc1.{kind}"] = state[f"{ours}.mlp.fc1.{kind}"]
            named[f"{theirs}.mlp.fc2.{kind}"] = state[f"{ours}.mlp.fc2.{kind}"]
    training = {"temp": torch.tensor(0.07), "image_queue": torch.ones(24, 4), "ptr_queue": torch.ones(1)}
    copies = {f"visual_encoder_m.{name}": torch.ones(1) for name in ("cls_token", "pos_embed")}
    return {**{name: value.clone() for name, value in named.items()}, **training, **copies}


def pth(folder: Path, tensors: dict[str, Tensor]) -> str:
    torch.save({"model": tensors, "epoch": 3}, folder / "blip_sf.pth")
    return str(folder / "blip_sf.pth")


@pytest.mark.parametrize("without", ["nothing", "matching"])
def test_vectors_are_those_of_transformers(
    model: Any, blip_folder: Path, photos: list[Image.Image], tmp_path: Path, without: str
) -> None:
    tensors = blip_names(model)
    if without == "matching":  # score fusion uses no cross-attention
        tensors = {n: t for n, t in tensors.items() if "crossattention" not in n and "itm_head" not in n}
    convert_blip_sf(pth(tmp_path, tensors), tmp_path / "blip", str(blip_folder))
    encoder = load(tmp_path / "blip")
    pixels = torch.stack([encoder.prepare_image(photo) for photo in photos])
    ids, mask = encoder.ids_and_mask(encoder.prepare_texts(TEXTS))
    assert ids.shape == (4, 100)
    assert ids[3, -1] == encoder.tokenizer.sep_token_id
    with torch.no_grad():
        image = model.vision_proj(model.vision_model(encoder.scaled(pixels)).last_hidden_state[:, 0])
        text = model.text_proj(model.text_encoder(ids, attention_mask=mask).last_hidden_state[:, 0])
    assert np.allclose(encoder.encode_images(photos), image.numpy(), atol=1e-4)
    assert np.allclose(encoder.encode_texts(TEXTS), text.numpy(), atol=1e-4)
    assert image.std() > 0.01
    assert text.std() > 0.01


def test_what_does_not_fit_is_refused(model: Any, blip_folder: Path, tmp_path: Path) -> None:
    whole = blip_names(model)
    for name, value, error in (
        ("text_proj.weight", None, "is no BLIP for retrieval: missing text_proj.weight"),
        (
            "visual_encoder.blocks.1.norm2.bias",
            None,
            r"missing vision_model.*1.layer_norm2.bias",
        ),
        ("t5_layers.x", torch.ones(1), "extra t5_layers.x"),
        ("vision_proj.weight", torch.ones(3, 3), "misshaped vision_proj.weight"),
    ):
        tensors = {n: t for n, t in whole.items() if n != name} | ({} if value is None else {name: value})
        with pytest.raises(ModelMismatch, match=error):
            convert_blip_sf(pth(tmp_path, tensors), tmp_path / "blip", str(blip_folder))
        assert not (tmp_path / "blip").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(BadInput, match="choose a new folder"):
        convert_blip_sf(pth(tmp_path, whole), tmp_path / "full", str(blip_folder))
