"""UniIR's feature fusion, CLIP-FF and BLIP-FF, to folders that `clip-ff` and `blip-ff` read.

CLIP-FF has OpenAI's CLIP without its text projection under `clip_model.` and a T5 encoder, with transformers'
names, under `t5_layers.`; BLIP-FF has BLIP's names, no projections, and a pooler. Sizes come from the
tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genius.convert.blip import save_blip
from genius.convert.encoders import PREFIX as CLIP
from genius.convert.encoders import refuse_full, save_clip
from genius.encode.fusing import TOWERS
from genius.encode.uniir import FUSION, WEIGHTS, save_t5, write_description
from genius.errors import ModelMismatch
from genius.files import write_folder
from genius.weights import check_fit, read_pickled_weights, save_weights

PREFIX = "t5_layers."
_ATTENTION = "block.0.layer.0.SelfAttention"
_FEED_FORWARD = "block.0.layer.1.DenseReluDense"
_WORDS = "embed_tokens.weight"  # of a T5 that reads words: never used here
_POOLER = "text_encoder.pooler.dense."
_BLIP_WORDS = "text_encoder.embeddings.word_embeddings.weight"
_PROJECTIONS = {"text_proj", "vision_proj", "itm_head"}  # of BLIP; BLIP-FF has none


def convert_clip_ff(source: str, to: Path, tokenizer: str | None = None) -> None:
    """UniIR's CLIP-FF to a folder that the `clip-ff` encoder reads.

    `tokenizer` is a folder or hub id; by default OpenAI's own, from the hub.
    """
    refuse_full(to)
    file = Path(source)
    tensors = read_pickled_weights(file)
    towers = {name: value for name, value in tensors.items() if not name.startswith(PREFIX)}
    layers = {
        name.removeprefix(PREFIX): value.float()
        for name, value in tensors.items()
        if name.startswith(PREFIX) and name != PREFIX + _WORDS
    }
    config = t5_config(layers, file)
    with write_folder(to) as new:
        save_clip(_with_projection(towers, config.d_model, file), new / TOWERS, tokenizer, file)
        save_t5(config, _t5_tensors(config, layers, file), new / FUSION)
        write_description(new, "clip-ff")


def convert_blip_ff(source: str, to: Path, tokenizer: str | None = None) -> None:
    """UniIR's BLIP-FF to a folder that the `blip-ff` encoder reads; texts are cut as UniIR does.

    `tokenizer` is a folder or hub id; by default that of a BLIP on the hub.
    """
    refuse_full(to)
    file = Path(source)
    tensors = read_pickled_weights(file)
    towers = {name: value for name, value in tensors.items() if not name.startswith(_POOLER)}
    pooler, width = _pooler(tensors, file)
    towers["text_proj.weight"] = torch.zeros(width, width)  # `blip` folders have one; nothing calls it
    with write_folder(to) as new:
        save_blip(towers, new / TOWERS, tokenizer, file, _PROJECTIONS)
        save_weights(pooler, new / FUSION / WEIGHTS)
        write_description(new, "blip-ff")


def t5_config(layers: Mapping[str, Tensor], file: Path) -> Any:
    """transformers' config of the T5 encoder with these tensors, read off their shapes."""
    from transformers import T5Config

    needed = (
        f"{_ATTENTION}.q.weight",
        f"{_ATTENTION}.relative_attention_bias.weight",
        f"{_FEED_FORWARD}.wi.weight",
    )
    missing = [PREFIX + name for name in needed if name not in layers]
    if missing:
        raise ModelMismatch(f"{file} is no CLIP-FF: missing {', '.join(missing)}")
    (inner, width), (buckets, heads), (hidden, _) = (layers[name].shape for name in needed)
    return T5Config(
        vocab_size=1,  # it reads features, not words
        d_model=width,
        d_kv=inner // heads,
        d_ff=hidden,
        num_heads=heads,
        num_layers=len({name.split(".")[1] for name in layers if name.startswith("block.")}),
        relative_attention_num_buckets=buckets,
        feed_forward_proj="relu",
    )


def _with_projection(towers: Mapping[str, Tensor], width: int, file: Path) -> dict[str, Tensor]:
    """`towers` and, since transformers' CLIP wants a text projection, one that changes nothing."""
    projection = f"{CLIP}text_projection"
    if projection in towers:
        raise ModelMismatch(f"{file} is no CLIP-FF: it has {projection}")
    for part, name in (("texts", "token_embedding.weight"), ("images", "visual.proj")):
        found = towers.get(CLIP + name)  # if there is none, save_clip says so
        if found is not None and found.shape[-1] != width:
            raise ModelMismatch(
                f"{file} is no CLIP-FF: its features of {part} have width {found.shape[-1]}, "
                f"{PREFIX}* read {width}"
            )
    return {**towers, projection: torch.eye(width)}


def _t5_tensors(config: Any, layers: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """The tensors as transformers' T5 encoder names them."""
    from transformers import T5EncoderModel

    with torch.device("meta"):
        expected: dict[str, Tensor] = T5EncoderModel(config).state_dict()
    del expected[f"encoder.{_WORDS}"]  # the same as shared.weight
    renamed = {f"encoder.{name}": value for name, value in layers.items()}
    renamed["shared.weight"] = torch.zeros(1, config.d_model)
    check_fit(expected, renamed, file)
    return renamed


def _pooler(tensors: Mapping[str, Tensor], file: Path) -> tuple[dict[str, Tensor], int]:
    """The text tower's pooler, and its width."""
    needed = (_BLIP_WORDS, f"{_POOLER}weight", f"{_POOLER}bias")
    wrong = [f"missing {name}" for name in needed if name not in tensors]
    wrong += [f"extra {name}" for name in tensors if name.split(".")[0] in _PROJECTIONS]
    if wrong:
        raise ModelMismatch(f"{file} is no BLIP-FF: {', '.join(wrong)}")
    width = tensors[_BLIP_WORDS].shape[1]
    expected = {f"{_POOLER}weight": torch.empty(width, width), f"{_POOLER}bias": torch.empty(width)}
    found = {name: value for name, value in tensors.items() if name.startswith(_POOLER)}
    check_fit(expected, found, file)
    return {name.removeprefix(_POOLER): value.float() for name, value in found.items()}, width
