"""GRACE, IRGen and DSI on clustered vectors: they learn their pool and beat chance by far."""

from __future__ import annotations

import numpy as np
import pytest

from genius.data.base import Row
from genius.errors import BadInput
from genius.evaluate.baselines.dsi import dsi
from genius.evaluate.baselines.grace import grace
from genius.evaluate.baselines.irgen import irgen
from genius.evaluate.baselines.schooling import Schooling
from genius.evaluate.examples import Examples, read_examples
from genius.evaluate.systems import System

QUICK = Schooling(steps=150, batch=64, rate=4e-3, layers=1, width=64, beam=20)


@pytest.fixture(scope="module")
def examples(few_clusters):
    """Other items of the same few_clusters, with queries near them."""
    rng = np.random.default_rng(9)
    rows = rng.choice(len(few_clusters.items), 100)
    items = few_clusters.items[rows] + 0.05 * rng.normal(size=(100, 32)).astype(np.float32)
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    queries = items + 0.05 * rng.normal(size=items.shape).astype(np.float32)
    pairs = np.stack([np.arange(100), np.arange(100)], axis=1)
    return Examples(queries, items, [f"train {n}" for n in range(100)], pairs, "examples")


@pytest.mark.parametrize("kind", ["numeric", "semantic"])
def test_grace_beats_chance(few_clusters, examples, kind):
    system = grace(kind, lambda: examples, QUICK)
    assert isinstance(system, System)
    assert system.name == f"grace-{kind}"
    system.index(few_clusters.pool)
    assert few_clusters.hit(system.search(few_clusters.questions, 10)) > 8 * few_clusters.chance
    assert 1 < system.bytes_per_item() < 16


def test_irgen_and_dsi_beat_chance(few_clusters, examples, pool_of):
    one = irgen(lambda: examples, levels=3, size=32, schooling=QUICK)
    one.index(few_clusters.pool)
    assert few_clusters.hit(one.search(few_clusters.questions, 10)) > 15 * few_clusters.chance
    texts = pool_of(few_clusters.items, modality=np.ones(len(few_clusters.items), np.uint8))
    other = dsi(lambda: examples, QUICK)
    other.index(texts)
    assert few_clusters.hit(other.search(few_clusters.questions, 10)) > 15 * few_clusters.chance


def test_each_is_made_for_one_task(examples):
    assert [t for t in (0, 1, 3, 4) if grace("numeric", lambda: examples).answers(Row("x", t))] == [0]
    assert [t for t in (0, 1, 3, 4) if dsi(lambda: examples).answers(Row("x", t))] == [1]


def test_only_items_of_its_modality_are_found(few_clusters, examples, pool_of):
    modality = np.zeros(len(few_clusters.items), np.uint8)
    modality[::2] = 1
    system = irgen(lambda: examples, 2, 16, Schooling(steps=5, batch=16, layers=1, width=32, beam=60))
    system.index(pool_of(few_clusters.items, modality=modality))
    found = system.search(few_clusters.questions, 20)
    assert (modality[found.rows[found.rows >= 0]] == 0).all()
    with pytest.raises(BadInput, match="no item of the modality"):
        system.index(pool_of(few_clusters.items, modality=np.full(len(few_clusters.items), 2, np.uint8)))


def test_a_trained_decoder_is_kept_by_content(few_clusters, examples, tmp_path, monkeypatch):
    quick = Schooling(steps=5, batch=16, layers=1, width=32)
    first = irgen(lambda: examples, 2, 16, quick, folder=tmp_path)
    first.index(few_clusters.pool)
    one = first.search(few_clusters.questions, 5)

    def never(*_):
        raise AssertionError("trained again")

    monkeypatch.setattr("genius.decode.targets.level_losses", never)
    again = irgen(lambda: examples, 2, 16, quick, folder=tmp_path)
    again.index(few_clusters.pool)
    assert (again.search(few_clusters.questions, 5).rows == one.rows).all()


def test_an_unknown_kind_is_refused(examples):
    with pytest.raises(BadInput, match="numeric, string, semantic, structured"):
        grace("atomic", lambda: examples)


def test_examples_need_a_train_split(request, tmp_path):
    class NoTrain:
        def splits(self):
            return ["test"]

    with pytest.raises(BadInput, match="the data has none"):
        read_examples(NoTrain(), None, {0})
