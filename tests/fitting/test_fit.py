"""Codes fitted to a collection: exact search before, near to it after; a fit is all or nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from genius import Engine, Item, Query

DIM = 24


def vectors(count: int, seed: int = 0) -> np.ndarray:
    """Unit vectors around forty centres: a collection with structure, as real ones have."""
    noise = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((40, DIM))
    points = centres[noise.integers(0, 40, count)] + 0.5 * noise.standard_normal((count, DIM))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def items(points: np.ndarray, first: int = 0) -> list[Item]:
    return [Item(f"item {first + n}", vector=point) for n, point in enumerate(points)]


def exact(points: np.ndarray, query: np.ndarray, k: int) -> list[str]:
    halves = points.astype(np.float16).astype(np.float32)
    return [f"item {n}" for n in np.argsort(-halves @ query, kind="stable")[:k]]


def recall(engine: Engine, points: np.ndarray, queries: np.ndarray, **options: str) -> float:
    """Share of the ten nearest items that are among the first ten."""
    found = engine.search_batch([Query(vector=query) for query in queries], k=10, **options)
    shares = [
        len({hit.id for hit in own} & set(exact(points, query, 10))) / 10
        for own, query in zip(found, queries, strict=True)
    ]
    return float(np.mean(shares))


def test_a_collection_without_codes_is_searched_exactly(tmp_path: Path) -> None:
    points, queries = vectors(300), vectors(5, seed=1)
    with Engine.create(tmp_path / "index", encoder="vectors", dim=DIM) as engine:
        engine.add(items(points))
        for query in queries:
            assert [hit.id for hit in engine.search(Query(vector=query))] == exact(points, query, 10)


def test_fitted_codes_find_what_exact_search_finds(tmp_path: Path) -> None:
    points, queries = vectors(1500), vectors(20, seed=1)
    with Engine.create(tmp_path / "index", encoder="vectors", dim=DIM) as engine:
        engine.add(items(points))
        result = engine.fit()
        assert result.items == 1500
        assert result.distortion < 0.05
        assert recall(engine, points, queries) == 1.0
        assert recall(engine, points, queries, rerank="codes") > 0.8
    with Engine.open(tmp_path / "index") as again:
        assert recall(again, points, queries) == 1.0
