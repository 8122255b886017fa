"""What all FAISS systems share: loading the library, indexing phi, measuring what the index stores.

Vectors are unit vectors compared by inner product. FAISS learns its centroids from the pool itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from genius.data.base import Row
from genius.errors import BadInput, MissingExtra
from genius.evaluate.encoding import Pool, Questions
from genius.evaluate.systems import Found, empty

TEACHABLE = 8  # items; fewer cannot teach any centroids and are kept as vectors
Prepare = Callable[[Any, int, int], Any]  # faiss, dim, items -> an index, not yet trained


def load_faiss() -> Any:
    """The faiss module; raises MissingExtra with the install command."""
    try:
        import faiss
    except ImportError:
        raise MissingExtra('FAISS is not installed: pip install "genius-search[bench]"') from None
    return faiss


class FaissSystem:
    """A FAISS index on phi."""

    def __init__(self, name: str, prepare: Prepare, settings: Mapping[str, Any]) -> None:
        self.name, self.settings = name, settings
        self._faiss, self._prepare = load_faiss(), prepare
        self._index: Any = None
        self._fixed = 0

    def answers(self, row: Row) -> bool:
        """Every row."""
        return True

    def index(self, pool: Pool) -> None:
        """Train on the pool's vectors, then add them."""
        vectors = np.ascontiguousarray(pool.phi, dtype=np.float32)
        if not len(vectors):
            raise BadInput(f"{self.name}: FAISS cannot index an empty pool")
        dim = vectors.shape[1]
        few = len(vectors) < TEACHABLE
        self._index = self._faiss.IndexFlatIP(dim) if few else self._prepare(self._faiss, dim, len(vectors))
        self._index.train(vectors)
        self._fixed = self._size()
        self._index.add(vectors)

    def search(self, questions: Questions, k: int) -> Found:
        """The `k` best items by the index's own distance."""
        found = empty(len(questions), k)
        scores, rows = self._index.search(np.ascontiguousarray(questions.phi), k)
        there = rows >= 0
        found.rows[there], found.scores[there] = rows[there], scores[there]
        return found

    def bytes_per_item(self) -> float:
        """What adding the items made the index grow by, as FAISS writes it: codes, ids, links.

        Centroids and rotations, which do not grow with the pool, count as little here as our own codebooks.
        """
        return (self._size() - self._fixed) / int(self._index.ntotal)

    def _size(self) -> int:
        return len(self._faiss.serialize_index(self._index))


def divisor(dim: int, most: int) -> int:
    """The largest number of equal parts, at most `most`, that `dim` can be cut into."""
    return max(parts for parts in range(1, most + 1) if dim % parts == 0)


def cells(items: int) -> int:
    """Inverted lists for a pool: about 4 sqrt(n), with at least 39 items each as FAISS asks for."""
    return max(1, min(int(4 * items**0.5), items // 39))


def code_bits(items: int) -> int:
    """8 bits a code, fewer where there are fewer items than centroids."""
    return min(8, items.bit_length() - 1)


def seeded(seed: int) -> int:
    """The seed of FAISS's k-means; 0 is its own default."""
    return 1234 + seed
