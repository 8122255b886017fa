"""A plain beam search over the codes of a pool: how training looks at what the decoder has learned so far.

It keeps to tensors but not to the memory and speed that a search engine needs; that one is in `search/`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.data.pairs import Pairs
from genius.decode.model import Decoder


@dataclass(frozen=True, slots=True)
class CodePool:
    """The codes of a pool as a tree; a node of level l is the number of a distinct prefix of l codes."""

    sizes: tuple[int, ...]
    keys: tuple[
        Tensor, ...
    ]  # per level: node * sizes[level] + code of each edge, ascending; edge = child node
    items: Tensor  # item rows, leaf after leaf, ascending within a leaf
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
        there = beam < leaves.shape[1]
        beam = beam.clamp_max(leaves.shape[1] - 1)
        offset = rank - (ends - counts).gather(1, beam)
        place = self.first[leaves.gather(1, beam)] + offset
        return torch.where(there, self.items[place.clamp_max(len(self.items) - 1)], -1)


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
    """Hit rate at each k of found items (n, >= k) for query rows (n,): the mean over tasks of their means."""
    right = pairs.are_positive(query[:, None], found.clamp_min(0)) & (found >= 0)
    tasks = pairs.task[query]
    counts = torch.bincount(tasks)
    figures = {}
    for k in ks:
        sums = torch.bincount(tasks, weights=right[:, :k].any(1).double())
        figures[f"hit@{k}"] = (sums[counts > 0] / counts[counts > 0]).mean().item()
    return figures
