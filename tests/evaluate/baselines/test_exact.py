"""Exact search against a full sort."""

from __future__ import annotations

import numpy as np
import pytest

from genius.evaluate.baselines import exact
from genius.evaluate.baselines.exact import nearest
from genius.evaluate.metrics import NOTHING


@pytest.mark.parametrize("k", [1, 7, 60])
def test_equals_a_full_sort_over_chunks(k, monkeypatch):
    monkeypatch.setattr(exact, "ITEMS_AT_ONCE", 16)
    monkeypatch.setattr(exact, "QUERIES_AT_ONCE", 5)
    rng = np.random.default_rng(k)
    queries = rng.normal(size=(13, 4)).astype(np.float32)
    items = rng.normal(size=(50, 4)).astype(np.float32)
    found = nearest(queries, items, k)
    full = np.argsort(-(queries @ items.T), axis=1, kind="stable")[:, :k]
    width = min(k, 50)
    assert found.rows[:, :width].tolist() == full.tolist()
    assert (found.rows[:, width:] == NOTHING).all()
    assert np.isneginf(found.scores[:, width:]).all()


def test_equal_items_come_in_their_order_even_at_the_border(monkeypatch):
    monkeypatch.setattr(exact, "ITEMS_AT_ONCE", 8)
    items = np.repeat(np.eye(2, dtype=np.float32), 20, axis=0)  # 20 alike, then 20 others
    found = nearest(np.array([[0.0, 1.0]], dtype=np.float32), items, 5)
    assert found.rows.tolist() == [[20, 21, 22, 23, 24]]


def test_an_empty_pool():
    found = nearest(np.ones((2, 3), dtype=np.float32), np.empty((0, 3), dtype=np.float32), 4)
    assert (found.rows == NOTHING).all()


def test_no_queries():
    assert nearest(np.empty((0, 3), np.float32), np.ones((4, 3), np.float32), 2).rows.shape == (0, 2)
