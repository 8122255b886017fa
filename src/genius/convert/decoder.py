"""The authors' published decoder, in and out: into a model folder of ours, and back under their names.

The file has transformers' T5 names under `id_generator.` and a projector under `embed_projector.0.`.
Each of our tensors is one of theirs, or several stacked (query, key and value are one matrix here). Sizes
come from the tensors. Whatever is missing, extra, misshaped or not tied as it must be is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

import torch
from torch import Tensor

from genius.decode.model import Decoder
from genius.decode.shape import SPECIAL_ROWS, DecoderShape
from genius.decode.weights import save_decoder
from genius.errors import BadInput, ModelMismatch
from genius.model_toml import read_model_toml, set_table
from genius.weights import check_fit, read_pickled_weights

T5 = "id_generator."
SHARED = f"{T5}shared.weight"
COPIES = (f"{T5}lm_head.weight", f"{T5}encoder.embed_tokens.weight", f"{T5}decoder.embed_tokens.weight")
PROJECTOR = "embed_projector.0"
POSITION = f"{T5}decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
CODEBOOK = re.compile(r"(?:.*\.)?residual_rq\.layers\.(\d+)\._codebook\.embed")
OTHERS = ("quantizer.", "clip_model.")  # parts of the same file that other converters read


def convert_decoder(source: str | Path, to: Path) -> None:
    """The published decoder file `source` into the model folder `to`: weights, and a table of model.toml.

    The codes per level are those of the quantizer in the same file, or of the one converted before.
    """
    tensors = read_pickled_weights(Path(source))
    known = read_model_toml(to).get("quantizer", {}).get("sizes")
    inside = any(CODEBOOK.fullmatch(name) for name in tensors)
    if known and inside and tuple(known) != code_sizes(tensors):
        raise ModelMismatch(
            f"{source} was trained on codes {code_sizes(tensors)}, but the quantizer in {to} makes "
            f"{tuple(known)}: convert the quantizer that belongs to it"
        )
    decoder = from_released(tensors, None if inside else known)
    set_table(to, "decoder", save_decoder(decoder, to))


def names(layers: int) -> dict[str, list[str]]:
    """Our name of each tensor -> their names, in the order in which they are stacked."""
    table = {
        "embedding.weight": [SHARED],
        "projector.weight": [f"{PROJECTOR}.weight"],
        "projector.bias": [f"{PROJECTOR}.bias"],
        "prefix_norm.weight": [f"{T5}encoder.final_layer_norm.weight"],
        "position.weight": [POSITION],
        "final_norm.weight": [f"{T5}decoder.final_layer_norm.weight"],
    }
    for layer in range(layers):
        own, block = f"layers.{layer}", f"{T5}decoder.block.{layer}.layer"
        attention, cross = f"{block}.0.SelfAttention", f"{block}.1.EncDecAttention"
        table |= {
            f"{own}.self_norm.weight": [f"{block}.0.layer_norm.weight"],
            f"{own}.self_in.weight": [f"{attention}.{part}.weight" for part in "qkv"],
            f"{own}.self_out.weight": [f"{attention}.o.weight"],
            f"{own}.cross_norm.weight": [f"{block}.1.layer_norm.weight"],
            f"{own}.cross_query.weight": [f"{cross}.q.weight"],
            f"{own}.cross_in.weight": [f"{cross}.{part}.weight" for part in "kv"],
            f"{own}.cross_out.weight": [f"{cross}.o.weight"],
            f"{own}.feed_norm.weight": [f"{block}.2.layer_norm.weight"],
            f"{own}.feed_in.weight": [f"{block}.2.DenseReluDense.wi.weight"],
            f"{own}.feed_out.weight": [f"{block}.2.DenseReluDense.wo.weight"],
        }
    return table


def to_released(decoder: Decoder) -> dict[str, Tensor]:
    """The weights of `decoder` under the published names, the tied output included."""
    if decoder.query_logits is not None:
        raise BadInput("a decoder with query_logits has no published form: train one without")
    state = decoder.state_dict()
    tensors: dict[str, Tensor] = {}
    for own, theirs in names(decoder.shape.layers).items():
        tensors.update(zip(theirs, state[own].chunk(len(theirs)), strict=True))
    return tensors | {COPIES[0]: tensors[SHARED]}


def from_released(tensors: Mapping[str, Tensor], sizes: Sequence[int] | None = None) -> Decoder:
    """A decoder (in eval mode) with the weights published under `tensors`.

    `sizes`, the codes per level, are read from the codebooks in the same file unless given.
    """
    found = {name: tensor for name, tensor in tensors.items() if not name.startswith(OTHERS)}
    for copy in COPIES:
        tied = found.pop(copy, None)
        if tied is not None and not (SHARED in found and torch.equal(tied, found[SHARED])):
            raise ModelMismatch(f"{copy} differs from {SHARED}: only a tied embedding can be converted")
    shape = _shape(found, tuple(sizes) if sizes is not None else code_sizes(tensors))
    decoder = Decoder(shape).eval()
    check_fit(to_released(decoder), found | {COPIES[0]: found[SHARED]}, "the published decoder")
    state = {own: torch.cat([found[name] for name in theirs]) for own, theirs in names(shape.layers).items()}
    decoder.load_state_dict(state, strict=True)
    return decoder


def code_sizes(tensors: Mapping[str, Tensor]) -> tuple[int, ...]:
    """Codes per level, from the published codebooks (1, codes, dim) among `tensors`."""
    found = {int(m[1]): book.shape[-2] for name, book in tensors.items() if (m := CODEBOOK.fullmatch(name))}
    if sorted(found) != list(range(len(found))) or not found:
        raise ModelMismatch(
            f"codebooks of levels {sorted(found)} in the file: every level from 0 on is needed; "
            "convert the quantizer first, its sizes are used then"
        )
    return tuple(found[level] for level in sorted(found))


def _shape(found: Mapping[str, Tensor], sizes: tuple[int, ...]) -> DecoderShape:
    """The shape that the tensors themselves show; details are checked afterwards, tensor by tensor."""
    blocks = (f"{T5}decoder.block.{layer}.layer." for layer in range(len(found)))
    layers = len(list(takewhile(lambda block: any(name.startswith(block) for name in found), blocks)))
    first = names(1)
    telling = ["embedding.weight", "projector.weight", "position.weight"]
    telling += ["layers.0.self_out.weight", "layers.0.feed_in.weight"]
    absent = [name for own in telling for name in first[own] if name not in found or found[name].ndim != 2]
    if absent:
        raise ModelMismatch(f"not a published decoder: no matrix named {', '.join(absent)} in the file")
    embedding, projector, position, self_out, feed_in = (found[first[own][0]] for own in telling)
    rows, width = embedding.shape
    heads, inner = position.shape[1], self_out.shape[1]
    if rows != SPECIAL_ROWS + sum(sizes):
        raise ModelMismatch(
            f"{SHARED} has {rows} rows, but {SPECIAL_ROWS} special ones and codes {sizes} make "
            f"{SPECIAL_ROWS + sum(sizes)}: the quantizer belongs to another decoder"
        )
    if inner % heads or projector.shape[0] % width:
        raise ModelMismatch(
            f"{heads} heads do not divide the attention's {inner} rows, "
            f"or width {width} does not divide the projector's {projector.shape[0]}"
        )
    return DecoderShape(
        dim=projector.shape[1],
        sizes=sizes,
        layers=layers,
        width=width,
        heads=heads,
        head_width=inner // heads,
        feed_forward=feed_in.shape[0],
        prefix=projector.shape[0] // width,
        normalise="vocabulary",  # the published loss and search know no levels
    )
