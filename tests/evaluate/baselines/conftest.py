"""Clustered vectors to try systems on: a query lies near the items of its cluster."""

from __future__ import annotations

import numpy as np
import pytest

from genius.encode.base import Parts
from genius.evaluate.embeddings import EncodedPool, EncodedQueries


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def make_pool(phi, codes=None, modality=None):
    count = len(phi)
    return EncodedPool(
        ids=[str(row) for row in range(count)],
        modality=np.zeros(count, np.uint8) if modality is None else modality,
        phi=phi,
        codes=np.zeros((count, 1), np.uint16) if codes is None else codes,
        digest="pool",
        unreadable=[],
        parts=lambda rows: Parts(phi[rows], np.zeros_like(phi[rows])),
    )


def make_queries(phi, want=None):
    count = len(phi)
    wanted = np.zeros(count, np.uint8) if want is None else want
    return EncodedQueries(
        [str(row) for row in range(count)], wanted, phi, phi, np.ones(count, bool), "queries"
    )


class Clusters:
    """100 clusters of 8 items; each query is a noisy copy of one item, its `answer`."""

    def __init__(self, seed=0, clusters=100, each=8, dim=32, queries=120):
        rng = np.random.default_rng(seed)
        centres = np.repeat(unit(rng.normal(size=(clusters, dim))), each, axis=0)
        self.items = unit(centres + 0.12 * rng.normal(size=centres.shape))
        self.answer = rng.choice(len(self.items), queries, replace=False)
        self.queries = unit(self.items[self.answer] + 0.03 * rng.normal(size=(queries, dim)))
        self.pool = make_pool(self.items)
        self.encoded = make_queries(self.queries)
        self.chance = 5 / len(self.items)

    def hit(self, found, k=5):
        return float((found.rows[:, :k] == self.answer[:, None]).any(axis=1).mean())


@pytest.fixture(scope="session")
def clusters():
    return Clusters()


@pytest.fixture(scope="session")
def few_clusters():
    """240 items: little enough to be memorized in seconds."""
    return Clusters(seed=1, clusters=30, queries=80)


@pytest.fixture(scope="session")
def pool_of():
    return make_pool


@pytest.fixture(scope="session")
def queries_of():
    return make_queries
