"""A trie on a device for searches of fixed shape: no tensor is sized by what a query finds.

Where the prefixes of a level times the codes of the next one are few enough, the level is dense: a table says
which children exist, and where a child's items are is found by bisection. At deeper levels, where a prefix
has few items, children are read from ranges of a fixed width (`TensorTrie`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from threading import Lock

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from genius.search.arrays import Ints
from genius.search.codebooks import Codebooks
from genius.search.gpu.code_vectors import CodeVectors
from genius.search.gpu.operations import operations_for
from genius.search.trie import ItemFilter, Trie
from genius.search.trie.tensors import TensorTrie

DENSE_CELLS = 1 << 27  # prefixes times codes: a byte each
ITEMS_AT_ONCE = 1 << 16


class DenseLevel:
    """The children of all prefixes of `level` codes."""

    def __init__(self, trie: Trie, level: int, device: torch.device) -> None:
        self.size = trie.sizes[level]
        self.first = int(trie.levels[level])  # node number of the first prefix
        self.prefixes = int(trie.levels[level + 1]) - 1 - self.first
        parent, code, start = _children(trie, level)
        self.child_first = int(trie.levels[level + 1]) if level < trie.tree_levels else 0
        keys = parent * self.size + code
        self.keys = torch.from_numpy(keys).to(device)  # (children,) ascending
        self.start = torch.from_numpy(np.append(start, trie.items)).to(device)  # (children + 1,)
        self.exists = torch.zeros(self.prefixes * self.size, dtype=torch.bool, device=device)
        self.exists[self.keys] = True
        self.exists = self.exists.view(self.prefixes, self.size)
        self.density = len(keys) / max(1, self.prefixes * self.size)  # share of cells that are children
        self.allowed: Tensor | None = None  # (children,) which of them have items that may be found

    def filterable(self) -> DenseLevel:
        """The same level with tensors of its own for a filter."""
        other = copy(self)
        other.allowed, other.exists = torch.ones_like(self.keys, dtype=torch.bool), self.exists.clone()
        return other

    def write_filter(self, count_before: Tensor) -> None:
        """Let only children exist that have allowed items."""
        assert self.allowed is not None
        count = count_before[self.start]
        self.allowed.copy_(count[1:] > count[:-1])
        self.exists.view(-1)[self.keys] = self.allowed

    def find(self, node: Tensor, code: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Number among all children, first and last position, and whether the child exists."""
        key = (node - self.first) * self.size + code
        number = torch.searchsorted(self.keys, key).clamp_max(len(self.keys) - 1)
        exists = self.keys[number] == key
        if self.allowed is not None:
            exists = exists & self.allowed[number]
        start = self.start[number]
        return number, start, torch.where(exists, self.start[number + 1], start), exists


class FixedTrie:
    """Everything a search of fixed shape reads of a trie, on a device; it does not keep the trie alive."""

    def __init__(self, trie: Trie, codebooks: Codebooks, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.operations = operations_for(self.device)
        self.tensors = TensorTrie(trie, device)
        self.items, self.sizes, self.tree_levels = trie.items, trie.sizes, trie.tree_levels
        node, codes = trie.child_tables.prefixes(min(2, trie.tree_levels))
        self.node = torch.from_numpy(node).to(self.device)  # (nodes,) all prefixes of the first levels
        self.codes = torch.from_numpy(codes).to(self.device)  # (1 or 2, nodes)
        self.start = self.tensors.node_start[self.node].long()
        self.end = self.tensors.node_start[self.node + 1].long()
        self.dense_levels: dict[int, DenseLevel] = {}
        for level in range(len(codes), trie.tree_levels + 1):
            prefixes = int(trie.levels[level + 1] - trie.levels[level]) - 1
            if level < len(trie.sizes) and 0 < prefixes * trie.sizes[level] <= DENSE_CELLS:
                self.dense_levels[level] = DenseLevel(trie, level, self.device)
        self.allowed: Tensor | None = None  # (nodes,) which of them have items that may be found
        self.mean_items = _mean_items(trie)  # of a prefix of 0, 1, … codes, in the tree
        self.vectors = CodeVectors(codebooks, self.device)
        self._read_items(codebooks)

    def _read_items(self, codebooks: Codebooks) -> None:
        """For each item the codes below the tree, and the length of the sum of its code vectors."""
        sizes, vectors = codebooks.sizes, self.vectors.all
        rows = torch.from_numpy(codebooks.row_of_level).to(self.device)
        kind = torch.int16 if max(sizes) <= 1 << 15 else torch.int32
        self.below = torch.empty(self.items, len(sizes) - self.tree_levels, dtype=kind, device=self.device)
        self.length = torch.empty(self.items, device=self.device)
        for begin in range(0, self.items, ITEMS_AT_ONCE):
            positions = torch.arange(begin, min(begin + ITEMS_AT_ONCE, self.items), device=self.device)
            codes = torch.stack([self.tensors.codes(positions, level) for level in range(len(sizes))], 1)
            self.below[positions] = codes[:, self.tree_levels :].to(kind)
            self.length[positions] = F.embedding_bag(
                codes + (rows[codes[:, 0]] if codebooks.own else rows), vectors, mode="sum"
            ).norm(dim=1)


class FilteredTrie(FixedTrie):
    """The same trie for some of its items.

    The filter is written into tensors that stay where they are, so a recorded program finds there the filter
    of the moment.
    """

    def __init__(self, trie: FixedTrie) -> None:
        self.__dict__.update(trie.__dict__)
        self.tensors = trie.tensors.filterable()
        self.allowed = torch.ones_like(self.node, dtype=torch.bool)
        self.dense_levels = {number: level.filterable() for number, level in trie.dense_levels.items()}
        self._filter: ItemFilter | None = None
        self._lock = Lock()

    @contextmanager
    def restricted(self, allowed: ItemFilter) -> Iterator[None]:
        """Programs that run in this context find the allowed items alone."""
        with self._lock:
            if self._filter is not allowed:
                self._write(allowed)
            yield

    def _write(self, allowed: ItemFilter) -> None:
        mask, count_before = self.tensors.mask, self.tensors.count_before
        assert mask is not None and count_before is not None and self.allowed is not None
        self._filter = None
        mask.copy_(torch.from_numpy(allowed.mask))
        count_before.copy_(torch.from_numpy(allowed.count_before))
        self.allowed.copy_(count_before[self.end] > count_before[self.start])
        for level in self.dense_levels.values():
            level.write_filter(count_before)
        self._filter = allowed


def _mean_items(trie: Trie) -> list[float]:
    """Items of a prefix, on average, for each number of codes from 0 to the levels of the tree."""
    means = []
    for level in range(trie.tree_levels + 1):
        first, sentinel = int(trie.levels[level]), int(trie.levels[level + 1]) - 1
        counts = np.diff(trie.node_start[first : sentinel + 1]).astype(np.int64)
        means.append(float(counts.mean()) if len(counts) else 0.0)
    return means


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
