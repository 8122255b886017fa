"""Validation while the decoder trains: the hit rate of its own score in a plain beam search.

This beam search is short rather than fast; the one for pools of millions is in `genius.search`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.data.pairs import Pairs
from genius.decode.model import Decoder
from genius.decode.vectors import ROWS_AT_ONCE, encode_items
from genius.hit_rate import hits, mean_over_tasks
from genius.quantize.model import Quantizer


@dataclass(frozen=True, slots=True)
class DecoderValidation:
    """How the decoder is validated."""

    queries: int = 5000  # at most that many, evenly spread over all
    beam: int = 50
    rows: int = 256  # queries searched at once


@dataclass(frozen=True, slots=True)
class CodePool:
    """The codes of a pool as a tree; a node of level l is a distinct prefix of l codes, by number."""

    sizes: tuple[int, ...]
    keys: tuple[Tensor, ...]  # per level: node * sizes[level] + code of each child, ascending
    items: Tensor  # item rows, in the order of the leaves, ascending within a leaf
    first: Tensor  # (leaves + 1,) where each leaf's items begin

    @classmethod
    def build(cls, codes: Tensor, sizes: tuple[int, ...]) -> CodePool:
        """The pool of items with these codes (items, levels)."""
        node = torch.zeros(len(codes), dtype=torch.long, device=codes.device)
        keys = []
        for level, size in enumerate(sizes):
            edges, node = torch.unique(node * size + codes[:, level], return_inverse=True)
            keys.append(edges)
        counts = torch.bincount(node, minlength=len(keys[-1]))
        return cls(sizes, tuple(keys), node.argsort(stable=True), F.pad(counts.cumsum(0), (1, 0)))

    def allowed(self, level: int, node: Tensor) -> Tensor:
        """Which codes continue each node (batch, beam): bool (batch, beam, sizes[level])."""
        keys, size = self.keys[level], self.sizes[level]
        start = torch.searchsorted(keys, node.flatten() * size)
        count = torch.searchsorted(keys, (node.flatten() + 1) * size) - start
        owner = torch.arange(len(count), device=node.device).repeat_interleave(count)
        edge = torch.arange(len(owner), device=node.device) + (start - (count.cumsum(0) - count))[owner]
        mask = torch.zeros(len(count), size, dtype=torch.bool, device=node.device)
        mask[owner, keys[edge] % size] = True
        return mask.view(*node.shape, size)

    def child(self, level: int, node: Tensor, code: Tensor) -> Tensor:
        """The node reached by an allowed code; any node where the code is not allowed."""
        place = torch.searchsorted(self.keys[level], node * self.sizes[level] + code)
        return place.clamp_max(len(self.keys[level]) - 1)

    def expand(self, leaves: Tensor, alive: Tensor, k: int) -> Tensor:
        """The first k items under leaves (batch, beam), best leaf first; -1 where there are fewer."""
        counts = (self.first[leaves + 1] - self.first[leaves]) * alive
        ends = counts.cumsum(1)
        rank = torch.arange(k, device=leaves.device).expand(len(leaves), k).contiguous()
        beam = torch.searchsorted(ends, rank, right=True)
        exists = beam < leaves.shape[1]
        beam = beam.clamp_max(leaves.shape[1] - 1)
        offset = rank - (ends - counts).gather(1, beam)
        place = self.first[leaves.gather(1, beam)] + offset
        return torch.where(exists, self.items[place.clamp_max(len(self.items) - 1)], -1)


@torch.no_grad()
def best_items(decoder: Decoder, pool: CodePool, z: Tensor, beam: int, k: int) -> Tensor:
    """Item rows (batch, k) of the best codes of each query by the decoder's score alone; -1: no more.

    The score is the sum of log-probabilities over all codes of a level, restricted to codes in the pool.
    """
    state = decoder.start(z)
    score = torch.zeros(len(z), 1, device=z.device)
    node = torch.zeros(len(z), 1, dtype=torch.long, device=z.device)
    for level, size in enumerate(pool.sizes):
        total = score[:, :, None] + decoder.score_next(state)
        total = total.masked_fill(~pool.allowed(level, node), -torch.inf)
        score, chosen = total.flatten(1).topk(min(beam, total[0].numel()), dim=1)
        parent, code = chosen // size, chosen % size
        node = pool.child(level, node.gather(1, parent), code)
        if level < len(pool.sizes) - 1:
            state = decoder.advance(state, parent, code)
    return pool.expand(node, score > -torch.inf, k)


def hit_rates(
    pairs: Pairs, query: Tensor, found: Tensor, ks: tuple[int, ...] = (1, 5, 10)
) -> dict[str, float]:
    """Hit rate at each k of found items (n, >= k) for query rows (n,), the mean over the tasks."""
    positive = pairs.are_positive(query[:, None], found.clamp_min(0)) & (found >= 0)
    return {f"hit@{k}": mean_over_tasks(hits(positive, k), pairs.task[query]) for k in ks}


def validator(
    decoder: Decoder,
    quantizer: Quantizer,
    val: Pairs,
    validation: DecoderValidation,
    precision: str = "float32",
) -> Callable[[], dict[str, float]]:
    """A function that returns the hit rates of the decoder's own score in the pool of `val`."""
    pool = CodePool.build(encode_items(quantizer, val)[1], decoder.shape.sizes)
    spread = torch.linspace(0, val.queries - 1, min(validation.queries, val.queries), device=val.device)
    rows = spread.round().long()
    with torch.no_grad():
        z = torch.cat([quantizer(*val.query_parts(part)) for part in torch.split(rows, ROWS_AT_ONCE)])

    def validate() -> dict[str, float]:
        with torch.autocast(val.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            found = [
                best_items(decoder, pool, part, validation.beam, 10)
                for part in torch.split(z, validation.rows)
            ]
        return hit_rates(val, rows, torch.cat(found))

    return validate
