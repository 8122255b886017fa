"""A decoder on disk: `decoder.safetensors`, and plain values for the `decoder` table of `model.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from genius.decode.model import Decoder
from genius.decode.shape import DecoderShape
from genius.errors import ModelMismatch
from genius.weights import load_weights, save_weights

FILE = "decoder.safetensors"


def save_decoder(decoder: Decoder, folder: Path) -> dict[str, Any]:
    """Write the weights into `folder`; returns the values that `load_decoder` needs."""
    save_weights(decoder.state_dict(), folder / FILE)
    return {**asdict(decoder.shape), "sizes": list(decoder.shape.sizes)}


def load_decoder(folder: Path, values: Mapping[str, Any]) -> Decoder:
    """The decoder saved in `folder`, in eval mode, on the CPU; ModelMismatch if the values are not its."""
    values = {"normalise": "level", "query_logits": False, **values}  # models saved without them
    known = {field.name for field in fields(DecoderShape)}
    wrong = sorted(known ^ values.keys())
    if wrong:
        raise ModelMismatch(f"{folder}: values of the decoder missing or unknown: {', '.join(wrong)}")
    decoder = Decoder(DecoderShape(**{**values, "sizes": tuple(values["sizes"])}))
    load_weights(decoder, folder / FILE)
    return decoder.eval()
