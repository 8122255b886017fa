"""The lookup as a program of fixed shape.

All prefixes of two codes are scored at once; then, level by level, all children of the beams or, where these
are many, only those that can be among the best (as in `genius.search.trie.child_tables`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from genius.search.codebooks import Codebooks
from genius.search.gpu.fixed_trie import DenseLevel, FixedTrie
from genius.search.gpu.operations import ordered_top_k
from genius.search.gpu.steps import (
    Beams,
    CandidateTensors,
    FixedShape,
    best_leaves,
    dense_children,
    first_beams,
    leaves_of,
    sparse_children,
)
from genius.search.trie.child_tables import cells_below_hyperbola

MIN_DENSITY = 0.25  # of existing children from which only the best sums of a level are looked at
DENSE_SUMS = 1 << 17  # beams times codes of a query at one level: up to so many sums are all computed


class FixedLookup:
    """Search by tables; with `cosine`, the items' scores are divided by the lengths of their sums."""

    def __init__(
        self, trie: FixedTrie, codebooks: Codebooks, shape: FixedShape, cosine: bool = False
    ) -> None:
        self.trie, self.shape, self.levels, self.cosine = trie, shape, codebooks.levels, cosine
        self.rows = torch.from_numpy(codebooks.row_of_level).to(trie.device)
        self.cells = {
            number: _cells(
                min(shape.beam, level.prefixes),
                level.size,
                int(2 * shape.beam / level.density),
                trie.device,
            )
            for number, level in trie.dense_levels.items()
            if number < shape.stop and level.density >= MIN_DENSITY
        }

    def __call__(self, z: Tensor, modalities: Tensor) -> CandidateTensors:
        """Candidates for `z` (batch, dim); `modalities` (batch, sizes[0]) masks the codes of level 0."""
        every = self.trie.vectors.products(z)  # (batch, codes)
        trie, shape = self.trie, self.shape
        tables = [every[:, level] for level in self.levels]
        scores = torch.stack([t[:, c] for t, c in zip(tables, trie.codes, strict=False)]).sum(0)
        beams = first_beams(trie, scores, modalities, shape.beam)[0]
        for number in range(len(trie.codes), shape.stop):
            level, table = trie.dense_levels.get(number), tables[number]
            if level is not None and number in self.cells:
                beams = self._best_of_many(beams, level, table, self.cells[number])
            elif level is not None and shape.beam * level.size <= DENSE_SUMS:
                beams = dense_children(beams, level, table[:, None], shape.beam, trie.operations)[0]
            else:
                beams = sparse_children(trie, beams, number, table[:, None], shape)[0]
        beam, positions, valid = leaves_of(trie, beams, shape.leaves)
        total = beams.scores.gather(1, beam) + self.suffix_scores(every, positions, shape.stop)
        if self.cosine:
            total = total / trie.length[positions].clamp_min(1e-6)
        return best_leaves(trie, total.masked_fill(~valid, -torch.inf), positions, beams, shape.k)

    def row_of_level(self, positions: Tensor) -> Tensor:
        """First rows of the levels in `vectors` for items at these positions, (batch, n or 1, levels)."""
        if len(self.rows) == 1:
            return self.rows[None]
        return self.rows[self.trie.tensors.codes(positions, 0)]

    def suffix_scores(self, every: Tensor, positions: Tensor, level: int) -> Tensor:
        """What the codes from `level` on add to the scores of items, (batch, n)."""
        tree_levels = self.trie.tree_levels
        inner = range(level, tree_levels)  # their codes are not stored by item
        codes = self.trie.below[positions][..., max(0, level - tree_levels) :].long()
        if inner:
            in_tree = [self.trie.tensors.codes(positions, number) for number in inner]
            codes = torch.cat([torch.stack(in_tree, -1), codes], -1)
        codes += self.row_of_level(positions)[..., level:]
        return every.gather(1, codes.flatten(1)).view(codes.shape).sum(-1)

    def _best_of_many(
        self, beams: Beams, level: DenseLevel, table: Tensor, cells: tuple[Tensor, ...]
    ) -> Beams:
        """The best children where there are many: only sums that can be among the best are computed."""
        row, column, left_out = cells
        descending, code = table.sort(dim=1, descending=True, stable=True)
        scores, beam = beams.scores.sort(dim=1, descending=True, stable=True)
        total = scores[:, row] + descending[:, column]
        number, start, end, exists = level.find(beams.node.gather(1, beam)[:, row], code[:, column])
        total = total.masked_fill(~exists, -torch.inf)
        width = min(self.shape.beam, total.shape[1])
        number, best, cell = ordered_top_k(total, number, width)
        missed = (F.pad(descending, (0, 1), value=-torch.inf)[:, left_out] + scores).amax(1)
        exact = beams.exact & ((missed < best.amin(1)) | (missed == -torch.inf))
        start, end = start.gather(1, cell), end.gather(1, cell)
        return Beams(start, end, number + level.child_first, best, exact)


def _cells(rows: int, columns: int, limit: int, device: torch.device) -> tuple[Tensor, ...]:
    """Row and column of each cell to compute, and for each row the first column that is left out."""
    row, column = cells_below_hyperbola(rows, columns, limit)
    return tuple(torch.from_numpy(x).to(device) for x in (row, column, np.bincount(row)))
