"""FAISS flat: exact search on phi in FAISS. It agrees with `exact`; its use is the comparison of speed."""

from __future__ import annotations

from typing import Any

from genius.evaluate.baselines.faiss_search import FaissSystem


def faiss_flat() -> FaissSystem:
    """An IndexFlatIP."""

    def prepare(faiss: Any, dim: int, items: int) -> Any:
        return faiss.IndexFlatIP(dim)

    return FaissSystem("faiss-flat", prepare, {"index": "Flat"})
