"""All code vectors on a device, and their products with queries."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.search.codebooks import Codebooks

ALIGNED = 8  # rows: for other numbers of columns cuBLAS has but slow kernels of bfloat16


class CodeVectors:
    """The vectors of all codes, level after level; one copy for all programs of a trie."""

    def __init__(self, codebooks: Codebooks, device: torch.device) -> None:
        self.all = torch.from_numpy(codebooks.vectors).to(device)  # (codes, dim)
        self._halves: Tensor | None = None

    def split(self) -> CodeVectors:
        """The same, prepared for products of bfloat16 on a GPU that gives them in float32."""
        if self._halves is None and has_float32_products(self.all.device):
            self._halves = split_rows(F.pad(self.all, (0, 0, 0, -len(self.all) % ALIGNED)))
        return self

    def products(self, z: Tensor) -> Tensor:
        """<z, code vector> in float32 for queries (batch, dim) and all codes, (batch, codes)."""
        return z.float() @ self.all.T

    def split_products(self, z: Tensor) -> Tensor:
        """The same up to 1e-5 of the lengths, if `split` has prepared it: in a third of the time."""
        if self._halves is None:
            return self.products(z)
        return torch.mm(split_queries(z), self._halves.T, out_dtype=torch.float32)[:, : len(self.all)]


def split_rows(x: Tensor) -> Tensor:
    """Rows of float32 as bfloat16: what is kept, what is lost and again what is kept, (n, 3 dim)."""
    kept = x.bfloat16()
    return torch.cat([kept, (x - kept.float()).bfloat16(), kept], 1)


def split_queries(z: Tensor) -> Tensor:
    """The other side of products with `split_rows`: all but the product of what both have lost."""
    kept = z.bfloat16()
    return torch.cat([kept, kept, (z.float() - kept.float()).bfloat16()], 1)


def has_float32_products(device: torch.device) -> bool:
    """Whether products of bfloat16 can be had in float32."""
    if device.type != "cuda":
        return False
    few = torch.ones(8, 8, dtype=torch.bfloat16, device=device)
    try:
        torch.mm(few, few.T, out_dtype=torch.float32)
    except (RuntimeError, TypeError):
        return False
    return True
