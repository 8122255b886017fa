"""Lookup by cells and its re-ranking: compiled where the kernel was built, else in NumPy."""

from __future__ import annotations

from functools import cached_property
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from genius.search.arrays import Bools, Floats
from genius.search.cells import MAX_DEEP_CELLS, CellCodebooks, Cells, cell_candidates
from genius.search.codebooks import Codebooks
from genius.search.kernel import CompiledCells, load_kernel
from genius.search.plan import SearchPlan
from genius.search.rank import Fetch, RankedItems, rank, rerank_by_codes, rerank_by_vectors
from genius.search.segment import TrieSegment
from genius.search.trie import Trie


class CellSearch:
    """The lookups by cells of one model, with the cells of each trie that was searched."""

    def __init__(self, codebooks: Codebooks) -> None:
        self.codebooks = codebooks
        self._cells: WeakKeyDictionary[Trie, Cells | CompiledCells] = WeakKeyDictionary()
        self._lock = Lock()

    @cached_property
    def books(self) -> CellCodebooks:
        """The codebooks for pools of up to some millions of items."""
        return CellCodebooks(self.codebooks)

    @cached_property
    def deep_books(self) -> CellCodebooks:
        """The codebooks for larger pools: more cells, so that there are not more items in each."""
        return CellCodebooks(self.codebooks, MAX_DEEP_CELLS)

    def books_for(self, trie: Trie) -> CellCodebooks | None:
        """The codebooks by whose cells a trie can be searched, or None."""
        if Cells.suit(trie, self.books):
            return self.books
        return self.deep_books if Cells.suit(trie, self.deep_books) else None

    def suits(self, trie: Trie) -> bool:
        """Whether a trie can be searched by cells."""
        return trie in self._cells or self.books_for(trie) is not None

    def cells(self, trie: Trie) -> Cells | CompiledCells:
        """The cells of a trie; they live as long as the trie does."""
        found = self._cells.get(trie)
        if found is None:
            books, library = self.books_for(trie), load_kernel()
            assert books is not None
            cells = Cells(trie, books)
            with self._lock:
                found = self._cells[trie] = cells if library is None else CompiledCells(library, cells)
        return found

    def search(
        self,
        segment: TrieSegment,
        z: Floats,
        modalities: Bools | None,
        phi: Floats | None,
        fetch: Fetch | NDArray[Any] | None,
        plan: SearchPlan,
    ) -> list[RankedItems]:
        """The ranked items of a segment for each query; `phi` and `fetch` for a re-ranking by vectors."""
        return [
            self._search(
                segment,
                query,
                None if modalities is None else modalities[number],
                None if phi is None else phi[number],
                fetch,
                plan,
            )
            for number, query in enumerate(z)
        ]

    def _search(
        self,
        segment: TrieSegment,
        z: Floats,
        modalities: Bools | None,
        phi: Floats | None,
        fetch: Fetch | NDArray[Any] | None,
        plan: SearchPlan,
    ) -> RankedItems:
        assert plan.lookup is not None and plan.rerank is not None and plan.rerank.limit is not None
        trie, by, leaves, limit = segment.trie, plan.rerank.by, plan.lookup.leaves, plan.rerank.limit
        found = self.cells(trie)
        if isinstance(found, CompiledCells):
            vectors = fetch if isinstance(fetch, np.ndarray) and by == "vectors" else None
            if by == "codes" or (vectors is not None and _is_plain(vectors, phi)):
                return found.search(
                    trie, z, plan.beam, leaves=leaves, limit=limit, k=plan.k, modalities=modalities,
                    allowed=segment.allowed, phi=phi, vectors=vectors,
                )  # fmt: skip
            candidates = found.candidates(
                trie, z, plan.beam, leaves=leaves, limit=limit, modalities=modalities, allowed=segment.allowed
            )
        else:
            candidates = cell_candidates(
                trie, found, z, plan.beam, leaves=leaves, limit=limit, modalities=modalities,
                allowed=segment.allowed,
            )  # fmt: skip
        if by == "codes":
            candidates = rerank_by_codes(trie, candidates, self.codebooks, z)
        else:
            assert phi is not None and fetch is not None
            candidates = rerank_by_vectors(trie, candidates, phi, fetch)
        (ranked,) = rank(trie, [candidates], plan.k)
        return ranked


def _is_plain(vectors: NDArray[Any], phi: Floats | None) -> bool:
    """Whether the kernel can read these vectors where they are."""
    return (
        vectors.dtype == np.float16
        and vectors.flags.c_contiguous
        and phi is not None
        and vectors.shape[1:] == phi.shape
    )
