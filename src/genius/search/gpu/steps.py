"""One step of a beam search of fixed shape: the best children of the beams, and the items under them.

Every shape follows from the batch, the beam and the pool; nothing is copied to the host. Where a fixed width
cannot hold all children, the beams can differ from those of the plain search: `exact` is false then, and such
a query can be searched again in the plain way. Of too many leaves, those of the best prefixes are scored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from genius.search.gpu.fixed_trie import DenseLevel, FixedTrie
from genius.search.gpu.operations import BLOCK, PLAIN, Operations
from genius.search.trie.tensors import Ranges, spread_ranges

CHILDREN_PER_BEAM = 32  # read from ranges, at levels that are not dense
WIDE = 4096  # children of all beams of a query from which on not all sums are written


class CandidateTensors(NamedTuple):
    """The best items of a batch, positions ascending."""

    positions: Tensor  # (batch, k)
    scores: Tensor  # (batch, k), -inf in the padding
    leaves: Tensor  # (batch,) items under the beams
    exact: Tensor  # (batch,) whether the beams are those of the plain search


@dataclass(frozen=True, slots=True)
class FixedShape:
    """The sizes of a program's tensors."""

    beam: int
    k: int
    stop: int  # levels to search; at least those that are taken in the first step
    leaves: int  # items to score
    children: int  # of all beams of a query together, at levels that are not dense


class Beams(NamedTuple):
    """The prefixes of a batch; those with score -inf are padding."""

    start: Tensor  # (batch, beam), and so on
    end: Tensor
    node: Tensor
    scores: Tensor
    exact: Tensor  # (batch,)


def choose_shape(
    trie: FixedTrie, beam: int, k: int, leaves_per_beam: float, stop: int | None = None
) -> FixedShape:
    """The shape for a pool: the search stops where prefixes have few items, and then scores the leaves."""
    leaves = int(leaves_per_beam * beam)
    deepest = min(trie.tree_levels + 1, len(trie.sizes))
    if stop is None:
        stop = len(trie.codes)
        while stop < deepest and trie.mean_items[stop] * beam > leaves:
            stop += 1
    return FixedShape(beam, k, stop, max(leaves, k), CHILDREN_PER_BEAM * beam)


def first_beams(trie: FixedTrie, scores: Tensor, modalities: Tensor, beam: int) -> tuple[Beams, Tensor]:
    """The best of all prefixes of the first levels, and their columns in `scores` (batch, prefixes)."""
    usable = modalities[:, trie.codes[0]]
    scores = scores.masked_fill(~(usable if trie.allowed is None else usable & trie.allowed), -torch.inf)
    column, best = trie.operations.top_k(scores, beam)
    start = trie.start[column]
    end = torch.where(best > -torch.inf, trie.end[column], start)
    exact = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    return Beams(start, end, trie.node[column], best, exact), column


def dense_children(
    beams: Beams, level: DenseLevel, code_scores: Tensor, width: int, operations: Operations = PLAIN
) -> tuple[Beams, Tensor, Tensor]:
    """The best children at a dense level, and the parent beam and code of each.

    `code_scores` (batch, beams or 1, codes). All children are looked at, so this is always exact.
    """
    prefix = (beams.node - level.first).clamp_min(0)
    if code_scores.shape[1] > 1 and beams.scores.shape[1] * level.size > WIDE:
        parent, code, best = _best_of_blocks(beams.scores, level, code_scores, prefix, width, operations)
    else:
        total = (beams.scores[..., None] + code_scores).masked_fill(~level.exists[prefix], -torch.inf)
        cell, best = operations.top_k(total.flatten(1), width)
        parent, code = cell // level.size, cell % level.size
    number, start, end, _ = level.find(beams.node.gather(1, parent), code)
    end = torch.where(best > -torch.inf, end, start)
    return Beams(start, end, number + level.child_first, best, beams.exact), parent, code


def _best_of_blocks(
    scores: Tensor, level: DenseLevel, code_scores: Tensor, prefix: Tensor, width: int, operations: Operations
) -> tuple[Tensor, Tensor, Tensor]:
    """Parent, code and score of the best children, (batch, width) each; see `top_k_by_blocks`.

    Not all sums of beams and codes are written, but the maxima of their blocks, and those of the best blocks.
    """
    maxima = operations.child_maxima(scores, code_scores, level.exists, prefix, BLOCK)
    blocks = maxima.shape[2]
    block, _ = operations.top_k(maxima.flatten(1), width)  # (batch, width)
    lanes = torch.arange(BLOCK, device=scores.device)
    codes = (block % blocks)[..., None] * BLOCK + lanes  # (batch, width, BLOCK)
    inside, codes = codes < level.size, codes.clamp_max(level.size - 1)
    parents = block // blocks
    there = inside & level.exists[prefix.gather(1, parents)[..., None], codes]
    cells = (parents[..., None] * level.size + codes).flatten(1)
    total = scores.gather(1, parents)[..., None] + code_scores.flatten(1).gather(1, cells).view(codes.shape)
    column, best = operations.top_k(total.masked_fill(~there, -torch.inf).flatten(1), width)
    return parents.gather(1, column // BLOCK), codes.flatten(1).gather(1, column), best


def sparse_children(
    trie: FixedTrie, beams: Beams, level: int, code_scores: Tensor, shape: FixedShape
) -> tuple[Beams, Tensor, Tensor]:
    """The best children read from ranges, and the parent beam and code of each.

    `code_scores` (batch, beams or 1, codes). Exact where all children fit into the shape.
    """
    ranges = Ranges(beams.start, beams.end, beams.node)
    children = trie.tensors.children(ranges, level, shape.children)
    beam = children.parent if code_scores.shape[1] > 1 else torch.zeros_like(children.parent)
    gained = code_scores.flatten(1).gather(1, beam * code_scores.shape[2] + children.code)
    total = (beams.scores.gather(1, children.parent) + gained).masked_fill(~children.valid, -torch.inf)
    column, best = trie.operations.top_k(total, shape.beam)
    taken = children.take(column)
    end = torch.where(best > -torch.inf, taken.end, taken.start)
    fits = _columns_needed(trie, ranges, level) <= shape.children
    longer = Beams(taken.start, end, taken.node, best, beams.exact & fits)
    return longer, children.parent.gather(1, column), children.code.gather(1, column)


def _columns_needed(trie: FixedTrie, ranges: Ranges, level: int) -> Tensor:
    """How many columns the children of a query's prefixes need, (batch,)."""
    if level >= trie.tree_levels:
        return (ranges.end - ranges.start).sum(1)
    first = trie.tensors.node_first
    return ((first[ranges.node + 1] - first[ranges.node]) * (ranges.end > ranges.start)).sum(1)


def leaves_of(trie: FixedTrie, beams: Beams, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Items under the beams: beam, position, valid; where they do not fit, those of the best beams."""
    items = beams.end - beams.start
    order = beams.scores.sort(dim=1, descending=True, stable=True).indices
    sizes = items.gather(1, order)
    before = sizes.cumsum(1) - sizes
    kept = torch.zeros_like(items).scatter(1, order, (before < width).long())
    beam, positions, valid = spread_ranges(beams.start, items * kept, width)
    mask = trie.tensors.mask
    return beam, positions, valid if mask is None else valid & mask[positions]


def best_leaves(trie: FixedTrie, total: Tensor, positions: Tensor, beams: Beams, k: int) -> CandidateTensors:
    """The `k` items with the best `total` (batch, leaves)."""
    column, best = trie.operations.top_k(total, k)
    leaves = trie.tensors.count(Ranges(beams.start, beams.end, beams.node)).sum(1)
    return CandidateTensors(positions.gather(1, column), best, leaves, beams.exact)
