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


def test_one_training_serves_every_pool_whose_items_were_learned(few_clusters, pool_of, monkeypatch):
    items = few_clusters.items
    pairs = np.stack([np.arange(50), np.arange(50)], axis=1)
    ids = [str(row) for row in range(len(items))]
    learned = Examples(items[:50] + 0.01, items, ids, pairs, "union")
    system = irgen(lambda: learned, 2, 16, Schooling(steps=5, batch=16, layers=1, width=32, beam=60))
    assert dict(system.settings)["learned"] == "union"
    system.index(few_clusters.pool)
    whole = system.search(few_clusters.questions, 20)

    def never(*_):
        raise AssertionError("trained again")

    monkeypatch.setattr("genius.decode.targets.level_losses", never)
    part = pool_of(items[:100])  # ids 0 to 99: a row's own pool
    system.index(part)
    found = system.search(few_clusters.questions, 20)
    assert found.rows.max() < 100
    assert system.bytes_per_item() > 0
    system.index(few_clusters.pool)
    assert (system.search(few_clusters.questions, 20).rows == whole.rows).all()


def test_items_to_be_found_are_learned_with_those_that_train_asks_for(tiny_world, root, tmp_path):
    from genius.data.mbeir import MBeir
    from genius.evaluate.encoding import Encoding

    names = ("red", "green", "blue")
    pictures = [{"id": f"30:{n}", "img": root.picture(c, c)} for n, c in enumerate(names)]
    asked = [{"id": f"30:{n}", "txt": c, "positives": [f"30:{n}"]} for n, c in enumerate(names)]
    root.row("colours", 30, 0, asked, [*pictures, {"id": "30:9", "txt": "a text"}])
    for file in [f for f in root.path.rglob("*test*") if f.is_file()]:  # the same queries are the train split
        copy = file.parent.parent / "train" if file.parent.name == "test" else file.parent
        copy.mkdir(exist_ok=True)
        (copy / file.name.replace("test", "train")).write_text(file.read_text())
    encoding = Encoding(tiny_world.model(), tmp_path / "cache")
    alone = read_examples(MBeir(root.path), encoding, {0}, limit=1)
    more = read_examples(MBeir(root.path), encoding, {0}, limit=1, split="test")
    assert len(alone.item_ids) == 1
    assert sorted(more.item_ids) == ["30:0", "30:1", "30:2"]  # images, each once; not the text
    assert len(more.pairs) == 1
