"""A decoder in another precision: half the bytes, or a quarter, for the same search.

float32    as trained
bfloat16   all weights; scores stay float32
int8       the matrices of the layers, scaled per row; activations are scaled in every call (CPU only)
"""

from __future__ import annotations

import copy
import warnings

import torch

from genius.decode.model import Decoder
from genius.errors import BadInput


def with_precision(decoder: Decoder, precision: str) -> Decoder:
    """The decoder in this precision; float32 is the decoder itself, others are copies."""
    if precision == "float32":
        return decoder
    own = copy.deepcopy(decoder).eval()
    if precision == "bfloat16":
        return own.bfloat16()
    if precision == "int8":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch names a successor that is a package of its own
            layers = torch.ao.quantization.quantize_dynamic(own.layers, {torch.nn.Linear}, dtype=torch.qint8)  # type: ignore[no-untyped-call]
        own.layers = layers
        return own
    raise BadInput(f"unknown precision {precision!r}: use float32, bfloat16 or int8")
