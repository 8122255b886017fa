"""Encoders of others: UniIR's CLIP-SF, any pickled weights, and new feature-fusion models.

Everything written is safetensors; nothing in a converted file is run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genius.encode.feature_fusion import create
from genius.encode.hub import find_folder
from genius.encode.preprocess import Preprocess
from genius.encode.pretrained import load_tokenizer, save_folder
from genius.errors import BadInput, ModelMismatch, ModelNotFound
from genius.weights import check_fit, read_pickled_weights, save_weights

PREFIX = "clip_model."
TOKENIZER = "openai/clip-vit-large-patch14"  # all of OpenAI's CLIPs share it
TOKENIZER_PARTS = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "config.json")
HEAD_WIDTH = 64  # of every OpenAI CLIP; it cannot be read off the weights

# OpenAI's names -> transformers'
_ONCE = {
    "logit_scale": "logit_scale",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.weight": "text_model.final_layer_norm.weight",
    "ln_final.bias": "text_model.final_layer_norm.bias",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.ln_pre.weight": "vision_model.pre_layrnorm.weight",
    "visual.ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "visual.ln_post.weight": "vision_model.post_layernorm.weight",
    "visual.ln_post.bias": "vision_model.post_layernorm.bias",
}
_SHAPE_KEYS = (  # their shapes give the config
    "visual.conv1.weight",
    "visual.positional_embedding",
    "token_embedding.weight",
    "positional_embedding",
    "text_projection",
)
_TRANSPOSED = {"visual.proj": "visual_projection.weight", "text_projection": "text_projection.weight"}
_IN_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
    "attn.out_proj": "self_attn.out_proj",
}
_BLOCK = re.compile(r"(visual\.)?transformer\.resblocks\.(\d+)\.(.+)[._](weight|bias)")


def convert_clip_sf(source: str, to: Path, tokenizer: str | None = None) -> None:
    """UniIR's CLIP-SF, or any file with OpenAI's CLIP names, to a folder that the `clip` encoder reads.

    `tokenizer` is a folder or hub id; by default OpenAI's own, from the hub.
    """
    refuse_full(to)
    save_clip(read_pickled_weights(Path(source)), to, tokenizer, Path(source))


def save_clip(found: Mapping[str, Tensor], to: Path, tokenizer: str | None, file: Path) -> None:
    """Write the tensors of `file` as a folder that the `clip` encoder reads."""
    tensors = _without_prefix(found, file)
    config = clip_config(tensors, file)
    renamed = rename_clip(tensors, file)
    check_fit(_empty_clip(config), renamed, file)
    vocabulary = config.text_config.vocab_size
    loaded = load_tokenizer(tokenizer_folder(tokenizer or TOKENIZER), vocabulary)
    if loaded.eos_token_id != config.text_config.eos_token_id:
        raise ModelMismatch(
            f"the tokenizer ends texts with {loaded.eos_token_id}, this CLIP with {vocabulary - 1}: "
            "use OpenAI's"
        )
    save_folder(to, config, renamed, loaded, Preprocess(config.vision_config.image_size, round_crop=True))


def convert_weights(source: str, to: Path) -> None:
    """Any pickled weights to `model.safetensors` in the folder `to`, names and numbers kept."""
    target = to / "model.safetensors"
    if target.exists():
        raise BadInput(f"{target} exists already: remove it or choose another folder")
    save_weights(read_pickled_weights(Path(source)), target, {"format": "pt"})


def start_clip_fusion(source: str, to: Path) -> None:
    """A new `clip-fusion` model, to be trained: the towers of a CLIP folder and a random fusion."""
    refuse_full(to)
    create("clip-fusion", source).save(to)


def start_blip_fusion(source: str, to: Path) -> None:
    """A new `blip-fusion` model, to be trained: the towers of a BLIP folder and a random fusion."""
    refuse_full(to)
    create("blip-fusion", source).save(to)


def clip_config(tensors: Mapping[str, Tensor], file: Path) -> Any:
    """transformers' config of the CLIP whose tensors carry OpenAI's names, read off their shapes."""
    from transformers import CLIPConfig

    missing = [name for name in _SHAPE_KEYS if name not in tensors]
    if missing:
        raise ModelMismatch(
            f"{file} is no CLIP with a vision transformer under OpenAI's names: missing {', '.join(missing)}"
        )
    image_width, _, patch, _ = tensors["visual.conv1.weight"].shape
    side = math.isqrt(len(tensors["visual.positional_embedding"]) - 1) * patch
    vocabulary, text_width = tensors["token_embedding.weight"].shape
    dim = tensors["text_projection"].shape[1]
    marks = {"bos_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1, "pad_token_id": vocabulary - 1}
    return CLIPConfig(
        projection_dim=dim,
        text_config={
            **_tower(tensors, "transformer.", text_width, dim, file),
            **marks,
            "vocab_size": vocabulary,
            "max_position_embeddings": len(tensors["positional_embedding"]),
        },
        vision_config={
            **_tower(tensors, "visual.transformer.", image_width, dim, file),
            "image_size": side,
            "patch_size": patch,
        },
    )


def rename_clip(tensors: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """The tensors under transformers' names, in float32; raises ModelMismatch naming those that have none."""
    renamed: dict[str, Tensor] = {}
    unknown = []
    for name, tensor in tensors.items():
        value = tensor.float()
        block = _BLOCK.fullmatch(name)
        if name in _ONCE:
            renamed[_ONCE[name]] = value
        elif name in _TRANSPOSED:
            renamed[_TRANSPOSED[name]] = value.T.contiguous()
        elif block and block[3] == "attn.in_proj":
            stem = f"{_layer(block)}.self_attn"
            for part, third in zip("qkv", value.chunk(3), strict=True):
                renamed[f"{stem}.{part}_proj.{block[4]}"] = third.contiguous()
        elif block and block[3] in _IN_BLOCK:
            renamed[f"{_layer(block)}.{_IN_BLOCK[block[3]]}.{block[4]}"] = value
        else:
            unknown.append(name)
    if unknown:
        raise ModelMismatch(f"{file} holds weights that no CLIP has: {', '.join(sorted(unknown))}")
    return renamed


def _layer(block: re.Match[str]) -> str:
    return f"{'vision_model' if block[1] else 'text_model'}.encoder.layers.{block[2]}"


def _tower(tensors: Mapping[str, Tensor], stem: str, width: int, dim: int, file: Path) -> dict[str, int]:
    """The sizes of one tower."""
    start = f"{stem}resblocks."
    layers = {name[len(start) :].split(".")[0] for name in tensors if name.startswith(start)}
    hidden = tensors.get(f"{start}0.mlp.c_fc.weight")
    if hidden is None or width % HEAD_WIDTH:
        raise ModelMismatch(f"{file}: {stem}resblocks of width {width} are not those of an OpenAI CLIP")
    return {
        "hidden_size": width,
        "intermediate_size": len(hidden),
        "num_hidden_layers": len(layers),
        "num_attention_heads": width // HEAD_WIDTH,
        "projection_dim": dim,
    }


def _without_prefix(tensors: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """OpenAI's bare names, whether or not UniIR's `clip_model.` stands before them."""
    prefixed = [name for name in tensors if name.startswith(PREFIX)]
    if prefixed and len(prefixed) != len(tensors):
        others = ", ".join(sorted(tensors.keys() - set(prefixed)))
        raise ModelMismatch(f"{file} is no CLIP: beside {PREFIX}* it holds {others}")
    return {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}


def _empty_clip(config: Any) -> dict[str, Tensor]:
    """Names and shapes of the weights that `config` asks for, without any memory for them."""
    from transformers import CLIPModel

    with torch.device("meta"):
        state: dict[str, Tensor] = CLIPModel(config).state_dict()
    return state


def tokenizer_folder(source: str) -> Path:
    """The folder of a tokenizer, which may be on the hub; nothing but the tokenizer is fetched."""
    try:
        return find_folder(source, TOKENIZER, TOKENIZER_PARTS)
    except ModelNotFound as error:
        raise ModelNotFound(
            f"the tokenizer: {error}. Give a folder with the tokenizer.json of any such model, or with "
            "vocab.json and merges.txt: --tokenizer DIR"
        ) from None


def refuse_full(folder: Path) -> None:
    """Raise BadInput unless `folder` is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} exists already and is not empty: choose a new folder")
