"""A trie on a device for searches of fixed shape: nothing is sized by what a query finds.

A level whose prefixes could all be listed (prefixes times codes of the next level are few) is a shelf: which
children exist is one row of a table per prefix, and where a child's items are is found by bisection. Deeper
levels, where a prefix has few items, are walked by ranges of a given width (`TensorTrie`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from genius.search.lookup import Tables
from genius.search.tensors import TensorTrie
from genius.search.trie import Ints, Trie

SHELF_CELLS = 1 << 27  # prefixes times codes: a byte each
ITEMS_AT_ONCE = 1 << 16


class Shelf:
    """The children of all prefixes of `level` codes."""

    def __init__(self, trie: Trie, level: int, device: torch.device) -> None:
        self.size = trie.sizes[level]
        self.first = int(trie.levels[level])  # node number of the first prefix
        self.prefixes = int(trie.levels[level + 1]) - 1 - self.first
        parent, code, start = _children(trie, level)
        self.child_first = int(trie.levels[level + 1]) if level < trie.tree_levels else 0
        keys = parent * self.size + code
        self.keys = torch.from_numpy(keys).to(device)  # (children,) rising
        self.start = torch.from_numpy(np.append(start, trie.items)).to(device)  # (children + 1,)
        self.exists = torch.zeros(self.prefixes * self.size, dtype=torch.bool, device=device)
        self.exists[self.keys] = True
        self.exists = self.exists.view(self.prefixes, self.size)
        self.filled = len(keys) / max(1, self.prefixes * self.size)  # share of places that hold a child

    def find(self, node: Tensor, code: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Number among all children, first and last position, and whether there is such a child at all."""
        key = (node - self.first) * self.size + code
        number = torch.searchsorted(self.keys, key).clamp_max(len(self.keys) - 1)
        there = self.keys[number] == key
        start = self.start[number]
        return number, start, torch.where(there, self.start[number + 1], start), there


class FixedTrie:
    """A trie with all that a search of fixed shape reads, on a device."""

    def __init__(self, trie: Trie, tables: Tables, device: torch.device | str) -> None:
        self.trie, self.device = trie, torch.device(device)
        self.walk = TensorTrie(trie, device)
        node, codes = trie.fans.paths(min(2, trie.tree_levels))
        self.node = torch.from_numpy(node).to(self.device)  # (nodes,) all prefixes of the first levels
        self.codes = torch.from_numpy(codes).to(self.device)  # (1 or 2, nodes)
        self.start = self.walk.node_start[self.node].long()
        self.end = self.walk.node_start[self.node + 1].long()
        self.shelves: dict[int, Shelf] = {}
        for level in range(len(codes), trie.tree_levels + 1):
            prefixes = int(trie.levels[level + 1] - trie.levels[level]) - 1
            if level < len(trie.sizes) and 0 < prefixes * trie.sizes[level] <= SHELF_CELLS:
                self.shelves[level] = Shelf(trie, level, self.device)
        self._describe(torch.from_numpy(tables.vectors).to(self.device), tables.sizes)

    def _describe(self, vectors: Tensor, sizes: Sequence[int]) -> None:
        """Of each item the codes below the tree, and the length of the sum of its code vectors."""
        items, first = self.trie.items, self.trie.tree_levels
        kind = torch.int16 if max(sizes) <= 1 << 15 else torch.int32
        self.below = torch.empty(items, len(sizes) - first, dtype=kind, device=self.device)
        self.length = torch.empty(items, device=self.device)
        rows = torch.tensor([0, *accumulate(sizes[:-1])], device=self.device)
        for begin in range(0, items, ITEMS_AT_ONCE):
            places = torch.arange(begin, min(begin + ITEMS_AT_ONCE, items), device=self.device)
            codes = torch.stack([self.walk.codes(places, level) for level in range(len(sizes))], 1)
            self.below[places] = codes[:, first:].to(kind)
            self.length[places] = F.embedding_bag(codes + rows, vectors, mode="sum").norm(dim=1)

    def sizes_after(self, level: int) -> Ints:
        """How many items each prefix of `level` codes has; for levels of the tree and one below."""
        if level <= self.trie.tree_levels:
            first, sentinel = int(self.trie.levels[level]), int(self.trie.levels[level + 1]) - 1
            return np.diff(self.trie.node_start[first : sentinel + 1]).astype(np.int64)
        return np.diff(np.append(_children(self.trie, self.trie.tree_levels)[2], self.trie.items))


def _children(trie: Trie, level: int) -> tuple[Ints, Ints, Ints]:
    """Of all prefixes one code longer than `level`: number of the parent, code, first position."""
    first, last = int(trie.levels[level]), int(trie.levels[level + 1]) - 1
    if level < trie.tree_levels:
        begin = trie.node_first[first : last + 1].astype(np.int64)
        child = np.arange(begin[0], begin[-1])
        parent = np.repeat(np.arange(last - first), np.diff(begin))
        return parent, trie.node_code[child].astype(np.int64), trie.node_start[child].astype(np.int64)
    code = trie.layout.code(trie.records, 0)
    new = np.ones(trie.items, dtype=bool)
    np.not_equal(code[1:], code[:-1], out=new[1:])
    new[trie.node_start[first:last]] = True
    start = np.flatnonzero(new)
    parent = np.searchsorted(trie.node_start[first:last], start.astype(np.int32), "right") - 1
    return parent, code[start].astype(np.int64), start
