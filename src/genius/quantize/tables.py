"""Beam encoding from tables of inner products, without residual vectors.

|z - sum of code vectors|^2 needs only the products of z with every code vector, one matrix product, and those
of code vectors with each other, which do not depend on z. A step of the beam is then a sum of rows of a
table, as wide as a codebook, instead of a product of `beam` residuals with the codebook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from genius.quantize.residual import ResidualQuantizer

MAX_ENTRIES = 1 << 26  # of all tables, 256 MB; codebooks that need more are encoded with residuals
MIN_VECTORS = 256  # fewer are encoded faster than tables are made
GAINS_AT_ONCE = 1 << 20  # entries of a step: what fits the cache of a core
GROUPS = 16  # entries that are compared by their largest first


class BeamTables:
    """Inner products between the code vectors of each level and those of all levels before it."""

    def __init__(self, quantizer: ResidualQuantizer) -> None:
        self.starts, self.sizes, self.first_level = quantizer.starts, quantizer.sizes, quantizer.first_level
        self.vectors = quantizer.vectors
        self.half_norm = self.vectors.square().sum(1) / 2
        self.between = [  # (rows of earlier levels, codes), negative
            -(self.vectors[: max(1, _rows_before(quantizer, level))] @ quantizer.codebook(level).T)
            for level in range(quantizer.levels)
        ]

    @staticmethod
    def worthwhile(quantizer: ResidualQuantizer, vectors: int) -> bool:
        """Whether tables fit the memory allowed for them and save time for so many vectors."""
        entries = sum(_rows_before(quantizer, level) * size for level, size in enumerate(quantizer.sizes))
        return vectors >= MIN_VECTORS and entries <= MAX_ENTRIES

    def encode(self, z: Tensor, level_zero: Tensor | None, beam: int) -> Tensor:
        """Codes of z (n, dim), (n, levels), from their codes of level 0 (n,), if there is such a level."""
        codes = torch.empty(len(z), len(self.sizes), dtype=torch.long, device=z.device)
        chunk = max(1, GAINS_AT_ONCE // (max(self.sizes) * beam))
        for start in range(0, len(z), chunk):
            rows = slice(start, start + chunk)
            codes[rows] = self._encode(z[rows], None if level_zero is None else level_zero[rows], beam)
        return codes

    def _encode(self, z: Tensor, level_zero: Tensor | None, beam: int) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):
            products = torch.addmm(-self.half_norm, z, self.vectors.T)  # (n, rows)
        rows = z.new_zeros(len(z), 1, 0, dtype=torch.long)  # (n, beams, levels so far), of `vectors`
        gain = z.new_zeros(len(z), 1)  # how much the sum so far lowers |z - sum|^2 / 2
        if level_zero is not None:
            rows, gain = level_zero[:, None, None], products.gather(1, level_zero[:, None])
        for level in range(self.first_level, len(self.sizes)):
            rows, gain = self._step(level, rows, gain, products, beam)
        best = rows[torch.arange(len(z), device=z.device), gain.argmax(1)]
        return best - best.new_tensor(self.starts)

    def _step(
        self, level: int, rows: Tensor, gain: Tensor, products: Tensor, beam: int
    ) -> tuple[Tensor, Tensor]:
        """The `beam` best continuations of each vector's partial codings by a code of this level."""
        start, size = self.starts[level], self.sizes[level]
        total = products[:, None, start : start + size] + gain[:, :, None]  # (n, beams, codes)
        total = total.flatten(1)
        if rows.shape[2]:
            between = F.embedding_bag(rows.flatten(0, 1), self.between[level], mode="sum")
            total += between.view_as(total)
        chosen = largest(total, min(beam, total.shape[1]))  # (n, new beams)
        parent = (chosen // size)[:, :, None].expand(-1, -1, rows.shape[2])
        rows = torch.cat([rows.gather(1, parent), (chosen % size + start)[:, :, None]], dim=2)
        return rows, total.gather(1, chosen)


def largest(values: Tensor, count: int) -> Tensor:
    """Columns of the `count` largest of each row of values (n, columns), (n, count), in any order.

    They are among the groups with the `count` largest maxima, so only those are sorted.
    """
    n, columns = values.shape
    groups = columns // GROUPS
    if columns % GROUPS or groups <= count:
        return values.topk(count, sorted=False).indices
    best = values.view(n, GROUPS, groups).amax(1).topk(count, sorted=False).indices
    members = torch.arange(0, columns, groups, device=values.device)
    places = (best[:, :, None] + members).flatten(1)  # (n, count * GROUPS)
    return places.gather(1, values.gather(1, places).topk(count, sorted=False).indices)


def _rows_before(quantizer: ResidualQuantizer, level: int) -> int:
    """Rows of the table of code vectors that the levels before this one use."""
    starts, sizes = quantizer.starts, quantizer.sizes
    return max((starts[one] + sizes[one] for one in range(level)), default=0)
