"""BLIP's published retrieval models, such as UniIR's BLIP-SF, to a folder that the `blip` encoder reads.

Files have the image tower under `visual_encoder.`, the text tower under `text_encoder.` and the projections
beside. Sizes come from the tensors. Momentum copies and queues, which only training needs, are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genius.convert.encoders import refuse_full, tokenizer_folder
from genius.encode.blip import EXAMPLE, VISION_EPS
from genius.encode.preprocess import Preprocess
from genius.encode.pretrained import load_tokenizer, save_folder
from genius.errors import ModelMismatch
from genius.weights import check_fit, read_pickled_weights

HEAD_WIDTH = 64  # of every BLIP; it cannot be read off the weights
PIECES = 100  # where UniIR cuts a text
_TRAINING = re.compile(r"(?:\w+_m\..*|temp|.*queue.*|.*position_ids)")
_ONCE = {
    "visual_encoder.cls_token": "vision_model.embeddings.class_embedding",
    "visual_encoder.pos_embed": "vision_model.embeddings.position_embedding",
    "visual_encoder.patch_embed.proj.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual_encoder.patch_embed.proj.bias": "vision_model.embeddings.patch_embedding.bias",
    "visual_encoder.norm.weight": "vision_model.post_layernorm.weight",
    "visual_encoder.norm.bias": "vision_model.post_layernorm.bias",
}
_BLOCK = re.compile(r"visual_encoder\.blocks\.(\d+)\.(norm[12]|attn\.qkv|attn\.proj|mlp\.fc[12])\.(.+)")
_IN_BLOCK = {"norm1": "layer_norm1", "norm2": "layer_norm2", "attn.qkv": "self_attn.qkv"}
_IN_BLOCK |= {"attn.proj": "self_attn.projection", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
_SHAPE_KEYS = (  # their shapes give the config
    "visual_encoder.pos_embed",
    "visual_encoder.patch_embed.proj.weight",
    "visual_encoder.blocks.0.mlp.fc1.weight",
    "text_encoder.embeddings.word_embeddings.weight",
    "text_encoder.embeddings.position_embeddings.weight",
    "text_encoder.encoder.layer.0.intermediate.dense.weight",
    "text_proj.weight",
)


def convert_blip_sf(source: str, to: Path, tokenizer: str | None = None) -> None:
    """A file with BLIP's names to a folder that the `blip` encoder reads; texts are cut as UniIR does.

    `tokenizer` is a folder or hub id; by default that of a BLIP on the hub.
    """
    refuse_full(to)
    tensors = read_pickled_weights(Path(source))
    save_blip(tensors, to, tokenizer, Path(source), {"crossattention", "itm_head"})


def save_blip(
    found: Mapping[str, Tensor], to: Path, tokenizer: str | None, file: Path, unused: Set[str]
) -> None:
    """Write the tensors of `file` as a folder that the `blip` encoder reads.

    Modules named in `unused` may be missing among them; they become zeros, since nothing calls them.
    """
    from transformers import BlipForImageTextRetrieval

    tensors = {name: t for name, t in found.items() if not _TRAINING.fullmatch(name)}
    config = blip_config(tensors, file)
    with torch.device("meta"):
        expected: dict[str, Tensor] = BlipForImageTextRetrieval(config).state_dict()
    renamed = {_name(name): tensor.float() for name, tensor in tensors.items()}
    absent = [name for name in expected.keys() - renamed.keys() if unused & set(name.split("."))]
    renamed |= {name: torch.zeros(expected[name].shape) for name in absent}
    check_fit(expected, renamed, file)
    loaded = load_tokenizer(tokenizer_folder(tokenizer or EXAMPLE), config.text_config.vocab_size)
    loaded.model_max_length = min(PIECES, config.text_config.max_position_embeddings)
    side = config.vision_config.image_size
    save_folder(to, config, renamed, loaded, Preprocess(side, keep_ratio=False))


def blip_config(tensors: Mapping[str, Tensor], file: Path) -> Any:
    """transformers' config of the BLIP with these tensors, read off their shapes."""
    from transformers import BlipConfig

    missing = [name for name in _SHAPE_KEYS if name not in tensors]
    if missing:
        raise ModelMismatch(f"{file} is no BLIP for retrieval: missing {', '.join(missing)}")
    positions, patches, image_hidden, words, text_positions, text_hidden, projection = (
        tensors[name].shape for name in _SHAPE_KEYS
    )
    image_width, text_width, patch = patches[0], words[1], patches[-1]
    if image_width % HEAD_WIDTH or text_width % HEAD_WIDTH:
        raise ModelMismatch(
            f"{file}: towers of widths {image_width} and {text_width} are not those of a BLIP"
        )
    return BlipConfig(
        image_text_hidden_size=projection[0],
        projection_dim=projection[0],
        vision_config={
            "hidden_size": image_width,
            "intermediate_size": image_hidden[0],
            "num_hidden_layers": _layers(tensors, "visual_encoder.blocks."),
            "num_attention_heads": image_width // HEAD_WIDTH,
            "image_size": math.isqrt(positions[1] - 1) * patch,
            "patch_size": patch,
            "layer_norm_eps": VISION_EPS,
        },
        text_config={
            "hidden_size": text_width,
            "encoder_hidden_size": image_width,
            "intermediate_size": text_hidden[0],
            "num_hidden_layers": _layers(tensors, "text_encoder.encoder.layer."),
            "num_attention_heads": text_width // HEAD_WIDTH,
            "vocab_size": words[0],
            "max_position_embeddings": text_positions[0],
        },
    )


def _name(name: str) -> str:
    """transformers' name of a tensor; the text tower's are the same."""
    if block := _BLOCK.fullmatch(name):
        return f"vision_model.encoder.layers.{block[1]}.{_IN_BLOCK[block[2]]}.{block[3]}"
    return _ONCE.get(name, name)


def _layers(tensors: Mapping[str, Tensor], start: str) -> int:
    return len({name[len(start) :].split(".")[0] for name in tensors if name.startswith(start)})
