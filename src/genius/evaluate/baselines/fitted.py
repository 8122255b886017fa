"""Our codes fitted to the searched pool without labels, as `genius fit` fits them to a collection."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from genius.evaluate.embeddings import EncodedPool, EncodedQueries
from genius.evaluate.systems import CodeSearch, System, TopK
from genius.quantize.fit import FitOptions, fit_quantizer
from genius.quantize.model import Quantizer
from genius.search.options import SearchOptions

CODED_AT_ONCE = 1 << 18  # items, for the memory


def fit_codes(pool: EncodedPool, options: FitOptions) -> tuple[Quantizer, EncodedPool]:
    """A quantizer fitted to phi of the pool, and the pool with its codes."""
    phi, modality = torch.from_numpy(pool.phi), torch.from_numpy(pool.modality).long()
    quantizer = fit_quantizer(phi, modality, options)
    codes = np.empty((len(pool), quantizer.levels), dtype=np.uint16)
    for start in range(0, len(pool), CODED_AT_ONCE):
        rows = slice(start, start + CODED_AT_ONCE)
        codes[rows] = quantizer.encode(phi[rows], modality[rows]).numpy()
    return quantizer, replace(pool, codes=codes)


class FittedCodes(System):
    """Codebooks learned from phi of the pool; queries are compared as they are encoded, without training."""

    def __init__(self, name: str, options: SearchOptions, fit: FitOptions) -> None:
        self.name, self._options, self._fit = name, options, fit
        self._settings = {
            "method": options.method, "rerank": options.rerank, "beam": options.beam,
            "item_bytes": fit.item_bytes, "rounds": fit.rounds, "code_beam": fit.code_beam, "seed": fit.seed,
        }  # fmt: skip
        self._search: CodeSearch | None = None

    def index(self, pool: EncodedPool) -> None:
        """Fit codebooks to the pool, encode it and build the trie."""
        quantizer, coded = fit_codes(pool, self._fit)
        books = [book.numpy() for book in quantizer.residual.codebooks()]
        self._search = CodeSearch(self.name, books, self._options)
        self._search.index(coded)

    def search(self, queries: EncodedQueries, k: int) -> TopK:
        """The `k` best items by lookup, re-ranked by codes or vectors."""
        assert self._search is not None, "index first"
        return self._search.search(replace(queries, z=queries.phi), k)

    def bytes_per_item(self) -> float:
        """The trie's arrays and, if kept, the vectors."""
        assert self._search is not None, "index first"
        return self._search.bytes_per_item()
