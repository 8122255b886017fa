"""A decoder whose weights are packed for the processor: the same numbers, up to rounding, sooner.

Torch keeps the weights of a layer row by row, and every product on a CPU copies them into the blocks that its
vector instructions read. oneDNN, which comes with torch, keeps them in blocks, and applies ReLU to what it
writes. A packed decoder is for searching on this processor: it cannot be trained, moved or saved.
"""

from __future__ import annotations

import copy
import platform

import torch
from torch import Tensor, nn

from genius.decode.layer import DecoderLayer
from genius.decode.model import Decoder

ROWS = 1024  # of a product that blocks are chosen for: 16 queries with 50 beams or more


class PackedLinear(nn.Module):
    """x @ weight.T + bias, then ReLU if wanted, with a weight (out, in) in oneDNN's blocks."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), ROWS)
        self._bias = None if bias is None else bias.detach()
        self._after = "relu" if relu else "none"

    def forward(self, x: Tensor) -> Tensor:
        """`x` (…, in) to (…, out)."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, self._after, [], "")
        return out


def can_pack(decoder: Decoder) -> bool:
    """Whether this torch packs weights for this processor, and the decoder is in float32 on it."""
    weight = decoder.embedding.weight
    here = weight.device.type == "cpu" and platform.machine() in ("x86_64", "AMD64")
    known = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(
        here
        and known
        and weight.dtype == torch.float32
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def packed(decoder: Decoder) -> Decoder:
    """A copy with packed weights; layers that are not plain ones (int8) stay as they are."""
    own = copy.deepcopy(decoder).eval().requires_grad_(False)
    for layer in own.layers:
        assert isinstance(layer, DecoderLayer)
        for name, child in list(layer.named_children()):
            if type(child) is nn.Linear:
                setattr(layer, name, PackedLinear(child.weight, child.bias, relu=name == "feed_in"))
        if isinstance(layer.feed_in, PackedLinear):
            layer.activation = nn.Identity()
    own.heads = nn.ModuleList(PackedLinear(own.level_rows(level)) for level in range(own.shape.levels))
    return own
