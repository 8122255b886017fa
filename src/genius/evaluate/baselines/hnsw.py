"""HNSW: a navigable graph over the full vectors, what most vector databases use by default."""

from __future__ import annotations

from typing import Any

from genius.evaluate.baselines.faiss_search import FaissSystem


def hnsw(links: int = 32, build: int = 100, search: int = 128) -> FaissSystem:
    """An IndexHNSWFlat: links per item, breadth while building and while searching."""

    def prepare(faiss: Any, dim: int, items: int) -> Any:
        index = faiss.IndexHNSWFlat(dim, links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = build, search
        return index

    return FaissSystem("hnsw", prepare, {"links": links, "build": build, "search": search})
