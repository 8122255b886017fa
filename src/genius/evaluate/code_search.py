"""The product's own search as a system: by decoder, by lookup or by both, over the trie of codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.evaluate.embeddings import EncodedPool, EncodedQueries
from genius.evaluate.systems import System, TopK
from genius.search.options import SearchOptions
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie
from genius.weights import fingerprint_tensors

if TYPE_CHECKING:
    from genius.decode.model import Decoder

SEARCH_BATCH = 64


class CodeSearch(System):
    """Search over codes with given options.

    Vectors for re-ranking are kept as float16, as the store keeps them, and are counted with the trie.
    """

    def __init__(
        self,
        name: str,
        codebooks: Sequence[NDArray[Any]],
        options: SearchOptions,
        decoder: Decoder | None = None,
        device: str = "cpu",
        precision: str = "float32",
    ) -> None:
        self.name = name
        self._options = options
        self._settings = asdict(options) | {
            "device": device,
            # a model's fingerprint leaves the decoder out
            "decoder": "" if decoder is None else fingerprint_tensors(decoder.state_dict()),
            **({"precision": precision} if precision != "float32" else {}),
        }
        self._sizes = [len(book) for book in codebooks]
        self._searcher = Searcher(codebooks, decoder, device, precision)
        self._segments: list[TrieSegment] = []
        self._vectors: NDArray[np.float16] | None = None
        self._items = 0

    def index(self, pool: EncodedPool) -> None:
        """Build the trie of the pool's codes; keep its vectors if they are used."""
        self._segments = [TrieSegment(Trie.build(pool.codes, self._sizes))]
        self._vectors = pool.phi.astype(np.float16) if self._options.rerank == "vectors" else None
        self._items = len(pool)

    def search(self, queries: EncodedQueries, k: int) -> TopK:
        """The `k` best items by the search's own score, or re-ranked; never more than the beam."""
        top = TopK.empty(len(queries), k)
        options = replace(self._options, k=min(k, self._options.beam))  # a search widens its beam to k
        for start in range(0, len(queries), SEARCH_BATCH):
            part = slice(start, min(start + SEARCH_BATCH, len(queries)))
            answers = self._searcher.search(
                self._segments,
                queries.z[part],
                options,
                phi=queries.phi[part],
                fetch=self._vectors,
            )
            for query, answer in enumerate(answers, start=start):
                top.fill(query, answer.rows, answer.scores)
        return top

    def bytes_per_item(self) -> float:
        """The trie's arrays (codes and item numbers) and, if kept, the vectors."""
        stored = sum(segment.trie.nbytes for segment in self._segments)
        stored += 0 if self._vectors is None else self._vectors.nbytes
        return stored / max(self._items, 1)
