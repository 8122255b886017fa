"""The product's own search as systems of the bench: by decoder, by lookup or by both, over the trie of codes.

Vectors for re-ranking are kept as float16, as the store keeps them, and are counted with the trie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Row
from genius.evaluate.encoding import Pool, Questions
from genius.evaluate.systems import Found, empty, fill
from genius.search.options import SearchOptions
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

if TYPE_CHECKING:
    from genius.decode.model import Decoder

AT_ONCE = 64  # queries in one batch


class CodeSearch:
    """Search over codes with given options.

    `tell_modality` hands it the wanted modality, which the protocol leaves to be read off the instruction.
    """

    def __init__(
        self,
        name: str,
        codebooks: Sequence[NDArray[Any]],
        options: SearchOptions,
        decoder: Decoder | None = None,
        device: str = "cpu",
        tell_modality: bool = False,
    ) -> None:
        self.name = name
        self._options, self._tell, self._device = options, tell_modality, device
        self._weights = "" if decoder is None else _weights_of(decoder)
        self._sizes = [len(book) for book in codebooks]
        self._searcher = Searcher(codebooks, decoder, device)
        self._segments: list[TrieSegment] = []
        self._vectors: NDArray[np.float16] | None = None
        self._items = 0

    @property
    def settings(self) -> Mapping[str, Any]:
        """All options of the search, and which decoder it is: a model's fingerprint leaves that out."""
        about = {"tell_modality": self._tell, "device": self._device, "decoder": self._weights}
        return asdict(self._options) | about

    def answers(self, row: Row) -> bool:
        """Every row."""
        return True

    def index(self, pool: Pool) -> None:
        """Build the trie of the pool's codes; keep its vectors if they are used."""
        self._segments = [TrieSegment(Trie.build(pool.codes, self._sizes))]
        self._vectors = pool.phi.astype(np.float16) if self._options.rerank == "vectors" else None
        self._items = len(pool)

    def search(self, questions: Questions, k: int) -> Found:
        """The `k` best items by the search's own score, or re-ranked; never more than the beam has places."""
        found = empty(len(questions), k)
        options = replace(self._options, k=min(k, self._options.beam))  # a search widens its beam to k
        for start in range(0, len(questions), AT_ONCE):
            part = slice(start, min(start + AT_ONCE, len(questions)))
            answers = self._searcher.search(
                self._segments,
                questions.z[part],
                options,
                modalities=self._told(questions.want[part]),
                phi=questions.phi[part],
                fetch=self._vectors,
            )
            for query, answer in enumerate(answers, start=start):
                fill(found, query, answer.rows, answer.scores)
        return found

    def bytes_per_item(self) -> float:
        """The trie's arrays (codes and item numbers) and, if kept, the vectors."""
        stored = sum(segment.trie.nbytes for segment in self._segments)
        stored += 0 if self._vectors is None else self._vectors.nbytes
        return stored / max(self._items, 1)

    def _told(self, want: NDArray[np.uint8]) -> NDArray[np.bool_] | None:
        if not self._tell:
            return None
        return np.asarray(np.arange(self._sizes[0]) == want[:, None])


def _weights_of(decoder: Decoder) -> str:
    from genius.weights import fingerprint_tensors

    return fingerprint_tensors(decoder.state_dict())
