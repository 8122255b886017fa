"""One layer of the decoder, and T5's relative positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from genius.decode.shape import DecoderShape

BUCKETS = 32
MAX_DISTANCE = 128

Cross = tuple[Tensor, Tensor]  # keys and values of the prefix, (batch, heads, prefix, head_width)


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention to the prefix, feed-forward: each after RMSNorm, added to its input."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        width, inner = shape.width, shape.inner
        self.heads, self.head_width = shape.heads, shape.head_width
        self.attention_dropout = shape.dropout
        self.self_norm = nn.RMSNorm(width, eps=1e-6)
        self.self_in = nn.Linear(width, 3 * inner, bias=False)  # query, key, value
        self.self_out = nn.Linear(inner, width, bias=False)
        self.cross_norm = nn.RMSNorm(width, eps=1e-6)
        self.cross_query = nn.Linear(width, inner, bias=False)
        self.cross_in = nn.Linear(width, 2 * inner, bias=False)  # key, value
        self.cross_out = nn.Linear(inner, width, bias=False)
        self.feed_norm = nn.RMSNorm(width, eps=1e-6)
        self.feed_in = nn.Linear(width, shape.feed_forward, bias=False)
        self.activation: nn.Module = nn.ReLU()
        self.feed_out = nn.Linear(shape.feed_forward, width, bias=False)
        self.dropout = nn.Dropout(shape.dropout)

    def read_prefix(self, prefix: Tensor) -> Cross:
        """Keys and values of the prefix (batch, prefix, width), each (batch, heads, prefix, head_width)."""
        both = self.cross_in(prefix).unflatten(-1, (2, self.heads, self.head_width))
        keys, values = both.permute(2, 0, 3, 1, 4).unbind(0)
        return keys, values

    def forward(self, x: Tensor, cross: Cross, bias: Tensor, cache: Tensor | None = None) -> Tensor:
        """`x` (batch, beam, time, width) after this layer; its keys and values fill the end of `cache`."""
        x = x + self.dropout(self._attend_self(self.self_norm(x), bias, cache))
        x = x + self.dropout(self._attend_prefix(self.cross_norm(x), cross))
        fed: Tensor = self.feed_out(self.dropout(self.activation(self.feed_in(self.feed_norm(x)))))
        out: Tensor = x + self.dropout(fed)
        return out

    def _attend_self(self, x: Tensor, bias: Tensor, cache: Tensor | None) -> Tensor:
        projected = self.self_in(x).flatten(0, 1).unflatten(-1, (3, self.heads, self.head_width))
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)  # (beams, heads, time, head_width)
        if cache is not None:  # (time, beams, 2, heads, head_width)
            cache[-x.shape[2] :].copy_(projected[:, :, 1:].transpose(0, 1))
            key, value = cache.permute(2, 1, 3, 0, 4).unbind(0)
        out: Tensor = self.self_out(self._attention(query, key, value, bias).view(*x.shape[:3], -1))
        return out

    def _attend_prefix(self, x: Tensor, cross: Cross) -> Tensor:
        # All beams and times of a query are one attention call, so its keys and values are never copied.
        query = self.cross_query(x).flatten(1, 2).unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)
        out: Tensor = self.cross_out(self._attention(query, *cross, None).view(*x.shape[:3], -1))
        return out

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        dropout = self.attention_dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, bias, dropout_p=dropout, scale=1.0)
        return mixed.transpose(1, 2).flatten(2)  # (…, time, inner)


def distance_buckets(levels: int) -> Tensor:
    """T5's causal bucket of each (position, earlier position), (levels, levels).

    Distances below half of the buckets have their own; the others share buckets of logarithmic width.
    """
    exact = BUCKETS // 2
    distance = (torch.arange(levels)[:, None] - torch.arange(levels)[None]).clamp_min(0)
    ratio = torch.log(distance.clamp_min(exact) / exact) / math.log(MAX_DISTANCE / exact)
    far = (exact + (ratio * (BUCKETS - exact)).long()).clamp_max(BUCKETS - 1)
    return torch.where(distance < exact, distance, far)
