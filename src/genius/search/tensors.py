"""Tries as torch tensors: the children of many prefixes of many queries at once, on CPU or GPU.

The same walk as `Trie.children`, for a batch: rows of a padded matrix are queries, columns are prefixes. A
padded place is an empty range. Several tries are walked together as one pool (`Forest`), so a large, settled
segment and a small, fresh one answer as a trie built of both would. One number per level travels to the
host: the widest row, which is the width of the padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.search.trie import Filter, Trie


@dataclass(frozen=True, slots=True)
class Ranges:
    """Prefixes of a batch of queries in one trie; `start == end` where there is none."""

    start: Tensor  # (batch, n) first position
    end: Tensor  # (batch, n)
    node: Tensor  # (batch, n) number in the tree; unused below it


class TensorTrie:
    """A trie's arrays on a device, optionally restricted to some items."""

    def __init__(self, trie: Trie, device: torch.device | str = "cpu") -> None:
        self.trie, self.layout, self.tree_levels = trie, trie.layout, trie.tree_levels
        self.device = torch.device(device)
        self.flat = _tensor(trie.flat, self.device)
        self.node_code = _tensor(trie.node_code.astype(np.int32), self.device)
        self.node_start = _tensor(trie.node_start, self.device)
        self.node_first = _tensor(trie.node_first, self.device)
        self.mask: Tensor | None = None
        self.before: Tensor | None = None

    def allowing(self, allowed: Filter | None) -> TensorTrie:
        """The same trie, the same tensors, restricted to some items."""
        if allowed is None:
            return self
        other = copy(self)
        other.mask, other.before = _tensor(allowed.mask, self.device), _tensor(allowed.before, self.device)
        return other

    def root(self, batch: int) -> Ranges:
        """The empty prefix, once per query."""
        zero = torch.zeros(batch, 1, dtype=torch.long, device=self.device)
        return Ranges(zero, zero + self.trie.items, zero)

    def count(self, ranges: Ranges) -> Tensor:
        """How many allowed items are under each prefix, (batch, n)."""
        if self.before is None:
            return ranges.end - ranges.start
        return (self.before[ranges.end] - self.before[ranges.start]).long()

    def children(self, ranges: Ranges, level: int, width: int | None = None) -> TensorChildren:
        """The prefixes one code longer; `level` is that of the new code, `width` as in `spread`."""
        if level < self.tree_levels:
            low = self.node_first[ranges.node].long()
            count = self.node_first[ranges.node + 1].long() - low
            return TensorChildren(self, level, low, count * (ranges.end > ranges.start), width)
        return TensorChildren(self, level, ranges.start, ranges.end - ranges.start, width)

    def codes(self, positions: Tensor, level: int) -> Tensor:
        """Codes of a level, of the items at these positions; int64."""
        if level >= self.tree_levels:
            codes: Tensor = self.layout.code_at(self.flat, positions, level - self.tree_levels)
            return codes.long()
        first, sentinel = int(self.trie.levels[level + 1]), int(self.trie.levels[level + 2]) - 1
        node = torch.searchsorted(self.node_start[first:sentinel], positions.int(), right=True)
        return self.node_code[first - 1 + node].long()

    def leaves(self, ranges: Ranges) -> tuple[Tensor, Tensor, Tensor]:
        """The items under prefixes: prefix, position, and which are no padding; (batch, places)."""
        owner, positions, valid = spread(ranges.start, ranges.end - ranges.start)
        return owner, positions, valid if self.mask is None else valid & self.mask[positions]


class TensorChildren:
    """Children of a batch of prefixes, padded: `valid` says which places hold one.

    Children stand in the order of their codes if the prefixes did.
    """

    def __init__(
        self, trie: TensorTrie, level: int, low: Tensor, count: Tensor, width: int | None = None
    ) -> None:
        self.trie = trie
        self.in_tree = level < trie.tree_levels
        self.parent, self.index, self.valid = spread(low, count, width)  # each (batch, places)
        if self.in_tree:
            self.code = trie.node_code[self.index].long()
            if trie.before is not None:
                self.valid = self.valid & (trie.count(self.take(None)) > 0)
            return
        self.code = trie.codes(self.index, level)
        new = torch.ones_like(self.valid)  # whether a child begins here; padding begins nothing but an end
        new[:, 1:] = (self.code[:, 1:] != self.code[:, :-1]) | (self.parent[:, 1:] != self.parent[:, :-1])
        new[:, 1:] |= self.valid[:, 1:] != self.valid[:, :-1]
        self.number = new.cumsum(1)  # of the child each place belongs to
        if trie.mask is not None:
            having = self.number.new_zeros(len(new), new.shape[1] + 1)
            having.scatter_add_(1, self.number, (trie.mask[self.index] & self.valid).long())
            new = new & (having.gather(1, self.number) > 0)
        self.valid = new & self.valid

    def take(self, places: Tensor | None) -> Ranges:
        """The children at these places (batch, m), or at all of them; an invalid place is an empty range."""
        index = self.index if places is None else self.index.gather(1, places)
        valid = self.valid if places is None else self.valid.gather(1, places)
        if self.in_tree:
            start = self.trie.node_start[index].long()
            end = self.trie.node_start[index + 1].long()
            return Ranges(start, torch.where(valid, end, start), index)
        if places is None:
            places = torch.arange(index.shape[1], device=index.device).expand_as(index)
        following = torch.searchsorted(self.number, self.number.gather(1, places) + 1)
        return Ranges(index, torch.where(valid, index + following - places, index), index)


@dataclass(frozen=True, slots=True)
class Frontier:
    """The prefixes a beam search holds: the same codes in each trie of a forest."""

    level: int  # codes chosen
    ranges: tuple[Ranges, ...]  # one per trie

    def emptied(self, places: Tensor) -> Frontier:
        """The same prefixes, with nothing under those at `places` (batch, n), a mask."""
        ends = [torch.where(places, ranges.start, ranges.end) for ranges in self.ranges]
        pairs = zip(self.ranges, ends, strict=True)
        return Frontier(self.level, tuple(Ranges(ranges.start, end, ranges.node) for ranges, end in pairs))


class Forest:
    """Several tries searched as one pool."""

    def __init__(self, tries: Sequence[TensorTrie]) -> None:
        self.tries = tries
        self.sizes = tries[0].trie.sizes
        self.device = tries[0].device

    def root(self, batch: int) -> Frontier:
        """The empty prefix, once per query."""
        return Frontier(0, tuple(trie.root(batch) for trie in self.tries))

    def items(self, frontier: Frontier) -> Tensor:
        """How many items may be found under each prefix, (batch, n)."""
        pairs = zip(self.tries, frontier.ranges, strict=True)
        return torch.stack([trie.count(ranges) for trie, ranges in pairs]).sum(0)

    def children(self, frontier: Frontier) -> ForestChildren:
        """The prefixes one code longer, each once, in the order of their codes."""
        pairs = zip(self.tries, frontier.ranges, strict=True)
        parts = [trie.children(ranges, frontier.level) for trie, ranges in pairs]
        return ForestChildren(parts, frontier, self.sizes[frontier.level])


class ForestChildren:
    """Children in all tries of a forest: `parent`, `code` and `valid`, each (batch, places)."""

    def __init__(self, parts: Sequence[TensorChildren], frontier: Frontier, size: int) -> None:
        self.parts, self.level = parts, frontier.level + 1
        self.place: list[Tensor] | None = None
        if len(parts) == 1:
            self.parent, self.code, self.valid = parts[0].parent, parts[0].code, parts[0].valid
            return
        # The same prefix can have children in several tries: meet in a place for every conceivable child.
        batch, beams = frontier.ranges[0].start.shape
        self.place = []
        for part in parts:
            table = torch.full((batch, beams * size + 1), -1, dtype=torch.long, device=part.code.device)
            target = torch.where(part.valid, part.parent * size + part.code, beams * size)
            places = torch.arange(part.code.shape[1], device=table.device).expand_as(target)
            self.place.append(table.scatter_(1, target, places)[:, :-1])
        every = torch.arange(beams * size, device=self.place[0].device).expand_as(self.place[0])
        self.parent, self.code = every // size, every % size
        self.valid = torch.stack([place >= 0 for place in self.place]).any(0)

    def take(self, places: Tensor) -> Frontier:
        """The children at these places (batch, m); an invalid place holds nothing."""
        if self.place is None:
            return Frontier(self.level, (self.parts[0].take(places),))
        found = []
        for part, place in zip(self.parts, self.place, strict=True):
            chosen = place.gather(1, places)
            if part.code.shape[1]:
                ranges = part.take(chosen.clamp_min(0))
                end = torch.where(chosen >= 0, ranges.end, ranges.start)
                found.append(Ranges(ranges.start, end, ranges.node))
            else:
                nothing = torch.zeros_like(chosen)
                found.append(Ranges(nothing, nothing, nothing))
        return Frontier(self.level, tuple(found))


def spread(low: Tensor, count: Tensor, width: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """low[b, i], low[b, i] + 1, … (count[b, i] numbers) for all i of a row, padded to the widest row.

    Returns which i each place comes from, the number itself (0 in the padding), and which places are not
    padding, each (batch, places). With a `width`, rows have that many places, whatever does not fit is left
    out, and nothing travels to the host.
    """
    after = count.cumsum(1)
    before = after - count
    total = after[:, -1:]
    width = int(total.max()) if width is None else width
    steps = torch.zeros(len(low), width + 1, dtype=torch.long, device=low.device)
    before = before.clamp_max(width)
    owner = steps.scatter_add_(1, before, torch.ones_like(before))[:, :-1].cumsum(1) - 1
    place = torch.arange(width, device=low.device)
    valid = place < total
    number = (low - before).gather(1, owner) + place
    return owner, number.masked_fill_(~valid, 0), valid


def top(scores: Tensor, k: int) -> Tensor:
    """Places of the `k` largest scores of each row, rising; the first of equal ones; (batch, k)."""
    k = min(k, scores.shape[1])
    places = torch.arange(scores.shape[1], device=scores.device)
    if k == scores.shape[1]:
        return places.expand(len(scores), k)
    bar = scores.topk(k, sorted=True).values[:, -1:]
    above, equal = scores > bar, scores == bar
    kept = above | (equal & (equal.cumsum(1) <= k - above.sum(1, keepdim=True)))
    slot = torch.where(kept, kept.cumsum(1) - 1, k)
    out = torch.empty(len(scores), k + 1, dtype=torch.long, device=scores.device)
    return out.scatter_(1, slot, places.expand_as(slot))[:, :k]


class _Writable:
    """An array that is only read, described as writable, for torch knows no other kind."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array  # keeps the memory alive
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def _tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor; on the CPU it shares the memory, which may be a mapped file."""
    return torch.from_numpy(np.asarray(_Writable(array))).to(device)
