"""GRACE, IRGen and DSI on clustered vectors: they learn their pool."""

from __future__ import annotations

import numpy as np
import pytest

from genius.data.base import Row
from genius.errors import BadInput
from genius.evaluate.baselines.generative import GenerativeBaseline, TrainingExamples, read_examples
from genius.evaluate.baselines.identifiers import residual_codes
from genius.evaluate.options import GenerativeConfig
from genius.evaluate.systems import System

QUICK = GenerativeConfig(
    steps=150, batch=64, rate=4e-3, network=(1, 64, 1, 64, 256), precision="float32", beam=20
)
SMALL = GenerativeConfig(steps=5, batch=16, network=(1, 32, 1, 32, 128), precision="float32", beam=60)


def irgen(examples, levels, size, config, folder=None):
    """IRGen with fewer and shorter codes."""
    return GenerativeBaseline(
        "irgen",
        lambda: examples,
        config,
        folder=folder,
        identify=lambda vectors, ids: residual_codes(vectors, levels, size),
    )


@pytest.fixture(scope="module")
def examples(few_clusters):
    """Other items of the same few_clusters, with queries near them."""
    rng = np.random.default_rng(9)
    rows = rng.choice(len(few_clusters.items), 100)
    items = few_clusters.items[rows] + 0.05 * rng.normal(size=(100, 32)).astype(np.float32)
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    queries = items + 0.05 * rng.normal(size=items.shape).astype(np.float32)
    pairs = np.stack([np.arange(100), np.arange(100)], axis=1)
    return TrainingExamples(queries, items, [f"train {n}" for n in range(100)], pairs, "examples")


@pytest.mark.parametrize(
    ("name", "least"), [("grace-numeric", 0.3), ("grace-semantic", 0.6), ("irgen", 0.6), ("dsi-nci", 0.6)]
)
def test_each_learns_its_pool(few_clusters, examples, pool_of, name, least):
    """After one step they find less than a tenth; numbers, which follow no rule, are learned last."""
    system = GenerativeBaseline(name, lambda: examples, QUICK)
    if name == "irgen":
        system = irgen(examples, 3, 32, QUICK)
    assert isinstance(system, System)
    assert system.name == name
    texts = name == "dsi-nci"  # it searches texts
    system.index(pool_of(few_clusters.items, modality=np.full(len(few_clusters.items), texts, np.uint8)))
    assert few_clusters.hit(system.search(few_clusters.encoded, 10)) > least
    assert 1 < system.bytes_per_item() < 16


def test_each_is_made_for_one_task(examples):
    for name, task in (("grace-numeric", 0), ("irgen", 0), ("dsi-nci", 1)):
        system = GenerativeBaseline(name, lambda: examples)
        assert [t for t in (0, 1, 3, 4) if system.supports(Row("x", t))] == [task]


def test_only_items_of_its_modality_are_found(few_clusters, examples, pool_of):
    modality = np.zeros(len(few_clusters.items), np.uint8)
    modality[::2] = 1
    system = irgen(examples, 2, 16, SMALL)
    system.index(pool_of(few_clusters.items, modality=modality))
    found = system.search(few_clusters.encoded, 20)
    assert (modality[found.rows[found.rows >= 0]] == 0).all()
    with pytest.raises(BadInput, match="no item of the modality"):
        system.index(pool_of(few_clusters.items, modality=np.full(len(few_clusters.items), 2, np.uint8)))


def test_a_trained_decoder_is_kept_by_content(few_clusters, examples, tmp_path, monkeypatch):
    first = irgen(examples, 2, 16, SMALL, tmp_path)
    first.index(few_clusters.pool)
    one = first.search(few_clusters.encoded, 5)

    def never(*_):
        raise AssertionError("trained again")

    monkeypatch.setattr("genius.decode.targets.level_losses", never)
    again = irgen(examples, 2, 16, SMALL, tmp_path)
    again.index(few_clusters.pool)
    assert (again.search(few_clusters.encoded, 5).rows == one.rows).all()


def test_an_unknown_baseline_is_refused(examples):
    with pytest.raises(BadInput, match="grace-numeric, grace-string"):
        GenerativeBaseline("grace-atomic", lambda: examples)


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
    learned = TrainingExamples(items[:50] + 0.01, items, ids, pairs, "union")
    system = irgen(learned, 2, 16, SMALL)
    assert dict(system.settings)["learned"] == "union"
    system.index(few_clusters.pool)
    whole = system.search(few_clusters.encoded, 20)

    def never(*_):
        raise AssertionError("trained again")

    monkeypatch.setattr("genius.decode.targets.level_losses", never)
    part = pool_of(items[:100])  # ids 0 to 99: a row's own pool
    system.index(part)
    found = system.search(few_clusters.encoded, 20)
    assert found.rows.max() < 100
    assert system.bytes_per_item() > 0
    system.index(few_clusters.pool)
    assert (system.search(few_clusters.encoded, 20).rows == whole.rows).all()


def test_items_to_be_found_are_learned_with_those_that_train_asks_for(tiny_world, root, tmp_path):
    from genius.data.mbeir import MBeir
    from genius.evaluate.embeddings import Embedder

    names = ("red", "green", "blue")
    pictures = [{"id": f"30:{n}", "img": root.picture(c, c)} for n, c in enumerate(names)]
    asked = [{"id": f"30:{n}", "txt": c, "positives": [f"30:{n}"]} for n, c in enumerate(names)]
    root.row("colours", 30, 0, asked, [*pictures, {"id": "30:9", "txt": "a text"}])
    for file in [f for f in root.path.rglob("*test*") if f.is_file()]:  # the same queries are the train split
        copy = file.parent.parent / "train" if file.parent.name == "test" else file.parent
        copy.mkdir(exist_ok=True)
        (copy / file.name.replace("test", "train")).write_text(file.read_text())
    embedder = Embedder(tiny_world.model(), tmp_path / "cache")
    alone = read_examples(MBeir(root.path), embedder, {0}, limit=1)
    more = read_examples(MBeir(root.path), embedder, {0}, limit=1, split="test")
    assert len(alone.item_ids) == 1
    assert sorted(more.item_ids) == ["30:0", "30:1", "30:2"]  # images, each once; not the text
    assert len(more.pairs) == 1
