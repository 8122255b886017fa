"""The decoder's passes in a search of fixed shape: as `Decoder` computes them, with fewer bytes moved.

- Beams that change places change the numbers of the rows of their keys and values, not the rows.
- Attention is one kernel without padding to large tiles (`genius.search.gpu.operations`).
- Products add their result to the layer's input, or apply ReLU, while they write it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from genius.decode.layer import DecoderLayer
from genius.decode.model import Decoder
from genius.decode.shape import START
from genius.search.gpu.operations import Operations, operations_for

Rows = Tensor  # (any, 2 inner): keys and values of positions, in any order


@dataclass(frozen=True, slots=True)
class PassState:
    """Beams of a batch of queries, each with `level` codes chosen."""

    level: int
    hidden: Tensor  # (batch, beam, width), what the head of `level` reads
    past: list[Rows]  # of the passes before the last one, by layer
    last: list[Rows]  # of the last pass: they are put behind the others when another pass follows
    numbers: Tensor  # (batch, beam, level + 1) which rows are those of each beam
    prefix: Tensor  # (batch, prefix, layers, 2, inner) keys and values of the prefix

    def rows(self) -> list[Rows]:
        """The rows of all passes, by layer."""
        if not self.past:
            return self.last
        return [torch.cat(both) for both in zip(self.past, self.last, strict=True)]


def can_run(decoder: Decoder) -> bool:
    """Whether the layers have plain weights, not int8 or packed ones."""
    layers = [child for layer in decoder.layers for child in layer.children()]
    return all(type(child) in (nn.Linear, nn.RMSNorm, nn.ReLU, nn.Dropout) for child in layers)


class DecoderPasses:
    """`start_from`, `advance` and `read_codes` of a decoder in eval mode; its weights must not change."""

    def __init__(self, decoder: Decoder, operations: Operations | None = None) -> None:
        self.decoder, self.shape = decoder, decoder.shape
        weight = decoder.embedding.weight
        self.operations = operations or operations_for(weight.device, decoder.shape)
        self.layers = [layer for layer in decoder.layers if isinstance(layer, DecoderLayer)]
        with torch.no_grad():
            ahead = torch.ones_like(decoder.buckets, dtype=torch.bool).triu(1)
            bias = decoder.position(decoder.buckets).float().masked_fill(ahead[..., None], -torch.inf)
            self.bias = bias.permute(2, 0, 1).contiguous()  # (heads, position, earlier position)
            self.prefix_weight = torch.cat([layer.cross_in.weight for layer in self.layers])
            self.no_bias = weight.new_zeros(decoder.shape.feed_forward)

    @torch.no_grad()
    def start_from(self, z: Tensor, codes: Tensor) -> tuple[Tensor, PassState]:
        """See `Decoder.start_from`."""
        batch, count = len(z), len(codes)
        tokens = torch.stack([torch.full_like(codes, START), codes + self.decoder.offsets[0]], -1)
        numbers = torch.arange(batch * count * 2, device=z.device).view(batch, count, 2)
        prefix, last = self._read_prefix(z), list[Rows]()
        hidden = self._run(0, tokens.expand(batch, -1, -1), [], numbers[..., :0], prefix, last)
        return hidden[:, 0, 0], PassState(1, hidden[:, :, 1], [], last, numbers, prefix)

    @torch.no_grad()
    def advance(self, state: PassState, parents: Tensor, codes: Tensor) -> PassState:
        """See `Decoder.advance`."""
        known, past, last = _of_parents(state.numbers, parents), state.rows(), list[Rows]()
        tokens = (codes + self.decoder.offsets[state.level])[..., None]
        hidden = self._run(state.level + 1, tokens, past, known, state.prefix, last)
        first = len(past[0])
        new = torch.arange(first, first + parents.numel(), device=parents.device).view(*parents.shape, 1)
        numbers = torch.cat([known, new], -1)
        return PassState(state.level + 1, hidden[:, :, 0], past, last, numbers, state.prefix)

    @torch.no_grad()
    def read_codes(self, state: PassState, parents: Tensor, codes: Tensor) -> Tensor:
        """See `Decoder.read_codes`."""
        tokens = codes + self.decoder.offsets[state.level : state.level + codes.shape[2]]
        known = _of_parents(state.numbers, parents)
        return self._run(state.level + 1, tokens, state.rows(), known, state.prefix)

    def _run(
        self,
        level: int,
        tokens: Tensor,
        past: list[Rows],
        known: Tensor,
        prefix: Tensor,
        last: list[Rows] | None = None,
    ) -> Tensor:
        """Hidden vectors (batch, n, times, width) of `tokens` (batch, n, times) from position `level` on.

        They read the rows `known` (batch, n, level) of `past`; their own are appended to `last`.
        """
        times, inner = tokens.shape[2], self.shape.inner
        bias = self.bias[:, level : level + times, : level + times]
        known = known.flatten(0, 1).contiguous()
        x = self.decoder.embedding(tokens.flatten())
        for number, layer in enumerate(self.layers):
            own = layer.self_in(layer.self_norm(x))  # (n, 3 inner)
            if last is not None:
                last.append(own[:, inner:])
            before = past[number] if past else own[:0, inner:]
            read = self.operations.self_attention(own, before, known, bias, self.shape.heads)
            x.addmm_(read, layer.self_out.weight.T)
            self._attend_prefix(x, layer, prefix[:, :, number])
            self._feed_forward(x, layer)
        hidden: Tensor = self.decoder.final_norm(x)
        return hidden.view(*tokens.shape, -1)

    def _attend_prefix(self, x: Tensor, layer: DecoderLayer, prefix: Tensor) -> None:
        """Add to `x` (n, width) what it reads of the prefix, (batch, prefix, 2, inner)."""
        query = layer.cross_query(layer.cross_norm(x)).view(len(prefix), -1, self.shape.inner)
        keys, values = prefix.unbind(2)
        read = self.operations.prefix_attention(query, keys, values, self.shape.heads)
        x.addmm_(read.flatten(0, 1), layer.cross_out.weight.T)

    def _feed_forward(self, x: Tensor, layer: DecoderLayer) -> None:
        normed = layer.feed_norm(x)
        inner = torch._addmm_activation(self.no_bias, normed, layer.feed_in.weight.T)  # with ReLU
        x.addmm_(inner, layer.feed_out.weight.T)

    def _read_prefix(self, z: Tensor) -> Tensor:
        """Keys and values of all layers, (batch, prefix, layers, 2, inner)."""
        decoder, shape = self.decoder, self.shape
        prefix = decoder.projector(z.to(decoder.projector.weight.dtype))  # eq. 9
        prefix = decoder.prefix_norm(prefix.view(len(z), shape.prefix, shape.width))
        return F.linear(prefix, self.prefix_weight).view(*prefix.shape[:2], len(self.layers), 2, shape.inner)


def _of_parents(numbers: Tensor, parents: Tensor) -> Tensor:
    """The numbers (batch, n, positions) of the rows of these beams (batch, n)."""
    return numbers.gather(1, parents[..., None].expand(-1, -1, numbers.shape[2]))
