"""Tries as torch tensors: the children of many prefixes of many queries at once, on CPU or GPU.

`Trie.children` for a batch: rows of a padded matrix are queries, columns are prefixes. Padding is an empty
range. Several tries are searched together as one pool (`Forest`), so that a large segment and a small one of
new items give what one trie of both would give. One number per level is copied to the host: the width of the
widest row, to which the others are padded.
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

from genius.search.trie.trie import ItemFilter, Trie


@dataclass(frozen=True, slots=True)
class Ranges:
    """Prefixes of a batch of queries in one trie; `start == end` in the padding."""

    start: Tensor  # (batch, n) first position
    end: Tensor  # (batch, n)
    node: Tensor  # (batch, n) number in the tree; unused below it


class TensorTrie:
    """A trie's arrays on a device, optionally restricted to some items; it does not keep the trie alive."""

    def __init__(self, trie: Trie, device: torch.device | str = "cpu") -> None:
        self.items, self.sizes, self.levels = trie.items, trie.sizes, trie.levels.tolist()
        self.layout, self.tree_levels = trie.layout, trie.tree_levels
        self.device = torch.device(device)
        self.flat = _tensor(trie.flat, self.device)
        self.node_code = _tensor(trie.node_code.astype(np.int32), self.device)
        self.node_start = _tensor(trie.node_start, self.device)
        self.node_first = _tensor(trie.node_first, self.device)
        self.mask: Tensor | None = None
        self.count_before: Tensor | None = None

    def filtered(self, allowed: ItemFilter | None) -> TensorTrie:
        """The same trie, sharing its tensors, restricted to the allowed items."""
        if allowed is None:
            return self
        other = copy(self)
        other.mask = _tensor(allowed.mask, self.device)
        other.count_before = _tensor(allowed.count_before, self.device)
        return other

    def filterable(self) -> TensorTrie:
        """The same trie, sharing its tensors, with a mask and counts of its own that allow all items."""
        other = copy(self)
        other.mask = torch.ones(self.items, dtype=torch.bool, device=self.device)
        other.count_before = torch.arange(self.items + 1, dtype=torch.int32, device=self.device)
        return other

    def root(self, batch: int) -> Ranges:
        """The empty prefix, once per query."""
        zero = torch.zeros(batch, 1, dtype=torch.long, device=self.device)
        return Ranges(zero, zero + self.items, zero)

    def count(self, ranges: Ranges) -> Tensor:
        """How many allowed items are under each prefix, (batch, n)."""
        if self.count_before is None:
            return ranges.end - ranges.start
        return (self.count_before[ranges.end] - self.count_before[ranges.start]).long()

    def children(self, ranges: Ranges, level: int, width: int | None = None) -> TensorChildren:
        """The prefixes one code longer; `level` is that of the new code, `width` as in `spread_ranges`."""
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
        first, sentinel = self.levels[level + 1], self.levels[level + 2] - 1
        node = torch.searchsorted(self.node_start[first:sentinel], positions.int(), right=True)
        return self.node_code[first - 1 + node].long()

    def leaves(self, ranges: Ranges) -> tuple[Tensor, Tensor, Tensor]:
        """The items under prefixes: prefix, position, and which are not padding; (batch, columns)."""
        prefix, positions, valid = spread_ranges(ranges.start, ranges.end - ranges.start)
        return prefix, positions, valid if self.mask is None else valid & self.mask[positions]


class TensorChildren:
    """Children of a batch of prefixes, padded: `valid` says which columns hold one.

    They are in the order of their codes if the prefixes are.
    """

    def __init__(
        self, trie: TensorTrie, level: int, low: Tensor, count: Tensor, width: int | None = None
    ) -> None:
        self.trie = trie
        self.in_tree = level < trie.tree_levels
        self.parent, self.index, self.valid = spread_ranges(low, count, width)  # each (batch, columns)
        if self.in_tree:
            self.code = trie.node_code[self.index].long()
            if trie.count_before is not None:
                self.valid = self.valid & (trie.count(self.take(None)) > 0)
            return
        self.code = trie.codes(self.index, level)
        new = torch.ones_like(self.valid)  # whether a child, or the padding, begins here
        new[:, 1:] = (self.code[:, 1:] != self.code[:, :-1]) | (self.parent[:, 1:] != self.parent[:, :-1])
        new[:, 1:] |= self.valid[:, 1:] != self.valid[:, :-1]
        self.number = new.cumsum(1)  # which child each column belongs to
        if trie.mask is not None:
            allowed = self.number.new_zeros(len(new), new.shape[1] + 1)
            allowed.scatter_add_(1, self.number, (trie.mask[self.index] & self.valid).long())
            new = new & (allowed.gather(1, self.number) > 0)
        self.valid = new & self.valid

    def take(self, columns: Tensor | None) -> Ranges:
        """The children in these columns (batch, m), or in all; an invalid column is an empty range."""
        index = self.index if columns is None else self.index.gather(1, columns)
        valid = self.valid if columns is None else self.valid.gather(1, columns)
        if self.in_tree:
            start = self.trie.node_start[index].long()
            end = self.trie.node_start[index + 1].long()
            return Ranges(start, torch.where(valid, end, start), index)
        if columns is None:
            columns = torch.arange(index.shape[1], device=index.device).expand_as(index)
        next_child = torch.searchsorted(self.number, self.number.gather(1, columns) + 1)
        return Ranges(index, torch.where(valid, index + next_child - columns, index), index)


@dataclass(frozen=True, slots=True)
class Frontier:
    """The prefixes of a beam search: the same codes in each trie of a forest."""

    level: int  # codes chosen
    ranges: tuple[Ranges, ...]  # one per trie

    def without(self, columns: Tensor) -> Frontier:
        """The same prefixes, with empty ranges where `columns` (batch, n) is true."""
        ends = [torch.where(columns, ranges.start, ranges.end) for ranges in self.ranges]
        pairs = zip(self.ranges, ends, strict=True)
        return Frontier(self.level, tuple(Ranges(ranges.start, end, ranges.node) for ranges, end in pairs))


class Forest:
    """Several tries searched as one pool."""

    def __init__(self, tries: Sequence[TensorTrie]) -> None:
        self.tries = tries
        self.sizes = tries[0].sizes
        self.device = tries[0].device

    def root(self, batch: int) -> Frontier:
        """The empty prefix, once per query."""
        return Frontier(0, tuple(trie.root(batch) for trie in self.tries))

    def items(self, frontier: Frontier) -> Tensor:
        """How many allowed items are under each prefix, (batch, n)."""
        pairs = zip(self.tries, frontier.ranges, strict=True)
        return torch.stack([trie.count(ranges) for trie, ranges in pairs]).sum(0)

    def children(self, frontier: Frontier) -> ForestChildren:
        """The prefixes one code longer, each once, in the order of their codes."""
        pairs = zip(self.tries, frontier.ranges, strict=True)
        parts = [trie.children(ranges, frontier.level) for trie, ranges in pairs]
        return ForestChildren(parts, frontier, self.sizes[frontier.level])


class ForestChildren:
    """Children in all tries of a forest: `parent`, `code` and `valid`, each (batch, columns)."""

    def __init__(self, parts: Sequence[TensorChildren], frontier: Frontier, size: int) -> None:
        self.parts, self.level = parts, frontier.level + 1
        self.column: list[Tensor] | None = None  # for each trie, which of its columns is this child; or -1
        if len(parts) == 1:
            self.parent, self.code, self.valid = parts[0].parent, parts[0].code, parts[0].valid
            return
        # The same prefix can have children in several tries: use one column for every possible child.
        batch, beams = frontier.ranges[0].start.shape
        self.column = []
        for part in parts:
            table = torch.full((batch, beams * size + 1), -1, dtype=torch.long, device=part.code.device)
            target = torch.where(part.valid, part.parent * size + part.code, beams * size)
            own = torch.arange(part.code.shape[1], device=table.device).expand_as(target)
            self.column.append(table.scatter_(1, target, own)[:, :-1])
        every = torch.arange(beams * size, device=self.column[0].device).expand_as(self.column[0])
        self.parent, self.code = every // size, every % size
        self.valid = torch.stack([column >= 0 for column in self.column]).any(0)

    def take(self, columns: Tensor) -> Frontier:
        """The children in these columns (batch, m); an invalid column is an empty range."""
        if self.column is None:
            return Frontier(self.level, (self.parts[0].take(columns),))
        taken = []
        for part, column in zip(self.parts, self.column, strict=True):
            own = column.gather(1, columns)
            if part.code.shape[1]:
                ranges = part.take(own.clamp_min(0))
                end = torch.where(own >= 0, ranges.end, ranges.start)
                taken.append(Ranges(ranges.start, end, ranges.node))
            else:
                nothing = torch.zeros_like(own)
                taken.append(Ranges(nothing, nothing, nothing))
        return Frontier(self.level, tuple(taken))


def spread_ranges(low: Tensor, count: Tensor, width: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """low[b, i], low[b, i] + 1, … (count[b, i] numbers) for all i of a row, padded to the widest row.

    Returns which i each column comes from, the number itself (0 in the padding), and which columns are not
    padding, each (batch, columns). With a `width`, rows have that many columns, whatever does not fit is left
    out, and nothing is copied to the host.
    """
    after = count.cumsum(1)
    before = after - count
    total = after[:, -1:]
    width = int(total.max()) if width is None else width
    steps = torch.zeros(len(low), width + 1, dtype=torch.long, device=low.device)
    before = before.clamp_max(width)
    owner = steps.scatter_add_(1, before, torch.ones_like(before))[:, :-1].cumsum(1) - 1
    column = torch.arange(width, device=low.device)
    valid = column < total
    number = (low - before).gather(1, owner) + column
    return owner, number.masked_fill_(~valid, 0), valid


def top_k_columns(scores: Tensor, k: int) -> Tensor:
    """Columns of the `k` largest scores of each row, ascending; the first of equal ones; (batch, k)."""
    k = min(k, scores.shape[1])
    columns = torch.arange(scores.shape[1], device=scores.device)
    if k == scores.shape[1]:
        return columns.expand(len(scores), k)
    threshold = scores.topk(k, sorted=True).values[:, -1:]
    above, equal = scores > threshold, scores == threshold
    kept = above | (equal & (equal.cumsum(1) <= k - above.sum(1, keepdim=True)))
    slot = torch.where(kept, kept.cumsum(1) - 1, k)
    out = torch.empty(len(scores), k + 1, dtype=torch.long, device=scores.device)
    return out.scatter_(1, slot, columns.expand_as(slot))[:, :k]


class _Writable:
    """A read-only array declared writable, because torch accepts no other kind; nothing writes to it."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array  # keeps the memory alive
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def _tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor; on the CPU it shares the memory, which may be a memory-mapped file."""
    return torch.from_numpy(np.asarray(_Writable(array))).to(device)
