"""Exact search against a full sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from genius.evaluate.baselines import exact
from genius.evaluate.baselines.exact import Exact, nearest
from genius.evaluate.metrics import NO_ITEM


@pytest.mark.parametrize("k", [1, 7, 60])
def test_equals_a_full_sort_over_chunks(k, monkeypatch):
    monkeypatch.setattr(exact, "ITEM_BATCH", 16)
    monkeypatch.setattr(exact, "QUERY_BATCH", 5)
    rng = np.random.default_rng(k)
    queries = rng.normal(size=(13, 4)).astype(np.float32)
    items = rng.normal(size=(50, 4)).astype(np.float32)
    found = nearest(queries, torch.from_numpy(items), k)
    full = np.argsort(-(queries @ items.T), axis=1, kind="stable")[:, :k]
    width = min(k, 50)
    assert found.rows[:, :width].tolist() == full.tolist()
    assert (found.rows[:, width:] == NO_ITEM).all()
    assert np.isneginf(found.scores[:, width:]).all()


def test_equal_items_come_in_their_order_even_at_the_border(monkeypatch):
    monkeypatch.setattr(exact, "ITEM_BATCH", 8)
    items = np.repeat(np.eye(2, dtype=np.float32), 20, axis=0)  # 20 alike, then 20 others
    found = nearest(np.array([[0.0, 1.0]], dtype=np.float32), torch.from_numpy(items), 5)
    assert found.rows.tolist() == [[20, 21, 22, 23, 24]]


def test_an_empty_pool():
    found = nearest(np.ones((2, 3), dtype=np.float32), torch.empty(0, 3), 4)
    assert (found.rows == NO_ITEM).all()


def test_another_device_than_the_cpu_keeps_the_vectors_there(pool_of, queries_of):
    rng = np.random.default_rng(0)
    items, queries = (rng.normal(size=(n, 8)).astype(np.float32) for n in (40, 6))
    one, other = Exact(), Exact("cpu:0")  # torch's name of the CPU takes the way of a GPU
    for system in (one, other):
        system.index(pool_of(items))
    assert (one.search(queries_of(queries), 5).rows == other.search(queries_of(queries), 5).rows).all()
    assert other.bytes_per_item() == 32


def test_no_queries():
    assert nearest(np.empty((0, 3), np.float32), torch.ones(4, 3), 2).rows.shape == (0, 2)
