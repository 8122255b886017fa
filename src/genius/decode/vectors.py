"""What stage 2 needs of the frozen quantizer: z of queries and items, and the items' codes."""

from __future__ import annotations

import torch
from torch import Tensor

from genius.data.pairs import Pairs
from genius.quantize.model import Quantizer

ROWS_AT_ONCE = 16_384


@torch.no_grad()
def encode_items(quantizer: Quantizer, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """z (items, dim), float16 on CUDA, and codes (items, levels) of all items."""
    z = torch.empty(pairs.items, quantizer.dim, dtype=_storage_dtype(pairs.device), device=pairs.device)
    codes = torch.empty(pairs.items, quantizer.levels, dtype=torch.long, device=pairs.device)
    for rows in torch.split(torch.arange(pairs.items, device=pairs.device), ROWS_AT_ONCE):
        part = quantizer(*pairs.item_parts(rows))
        z[rows], codes[rows] = part.to(z.dtype), quantizer.encode(part, pairs.item_modality[rows])
    return z, codes


class QueryVectors:
    """z of a query with one of its instructions; all are computed in advance if they fit into memory."""

    def __init__(self, quantizer: Quantizer, pairs: Pairs, resident_bytes: int) -> None:
        self.quantizer, self.pairs, self.texts = quantizer, pairs, len(pairs.texts)
        owner = torch.arange(pairs.queries, device=pairs.device)
        owner = owner.repeat_interleave(pairs.query_text_start.diff())
        self.keys = torch.unique(owner * self.texts + pairs.query_text + 1)  # ascending
        self.z: Tensor | None = None
        dtype = _storage_dtype(pairs.device)
        if len(self.keys) * pairs.dim * dtype.itemsize <= resident_bytes:
            parts = [
                self._fuse(key // self.texts, key % self.texts - 1).to(dtype)
                for key in torch.split(self.keys, ROWS_AT_ONCE)
            ]
            self.z = torch.cat(parts)

    def __call__(self, query: Tensor, text: Tensor) -> Tensor:
        """z (n, dim), float32, of query rows and the text rows drawn for them."""
        if self.z is None:
            return self._fuse(query, text)
        return self.z[torch.searchsorted(self.keys, query * self.texts + text + 1)].float()

    @torch.no_grad()
    def _fuse(self, query: Tensor, text: Tensor) -> Tensor:
        z: Tensor = self.quantizer(*self.pairs.query_parts(query, text))
        return z


def _storage_dtype(device: torch.device) -> torch.dtype:
    return torch.float16 if device.type == "cuda" else torch.float32
