"""The heads of `mini` learn alone, from features that are computed once."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from genius.config import OptimiserConfig
from genius.data.base import open_dataset
from genius.data.training_set import TrainingSet, read_training_set
from genius.encode.images import ImageTable
from genius.encode.mini.heads import Heads, features_of, train_heads
from genius.pipeline.validation import hit_rates

TINY = runpy.run_path(str(Path(__file__).resolve().parents[2] / "pipeline" / "tiny.py"))
CPU = torch.device("cpu")


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Any:
    TINY["shrink_mini"](monkeypatch)
    return TINY["start_mini"]()


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> TrainingSet:
    root = TINY["write_mbeir"](tmp_path_factory.mktemp("data"))
    return read_training_set(open_dataset("mbeir", root), "train")


def test_features_and_heads_are_the_encoder(encoder: Any, train: TrainingSet) -> None:
    pictures = ImageTable(train.images, encoder, CPU, resident=True)
    images, texts = features_of(encoder, pictures, train.texts)
    assert images.shape == (len(train.images), 1280)
    assert texts.shape == (len(train.texts), 384)
    assert not images.requires_grad
    heads = Heads(encoder, dropout=0.5).eval()
    with torch.no_grad():
        rows = torch.arange(5)
        assert torch.allclose(heads(images[:5], "image"), encoder.image_vectors(pictures[rows]), atol=1e-5)
        token_ids = encoder.prepare_texts(train.texts[:5])
        assert torch.allclose(heads(texts[:5], "text"), encoder.text_vectors(token_ids), atol=1e-5)


def test_only_the_heads_learn_and_they_find_more(encoder: Any, train: TrainingSet, tmp_path: Path) -> None:
    pictures = ImageTable(train.images, encoder, CPU, resident=True)
    features = features_of(encoder, pictures, train.texts)
    before = {name: value.clone() for name, value in encoder.module.state_dict().items()}

    def validate(heads: Heads) -> dict[str, float]:
        return hit_rates(train, heads.embedder(*features), CPU)

    start = validate(Heads(encoder).eval())["hit@5"]
    result = train_heads(
        encoder, *features, train, OptimiserConfig(steps=40, batch=48, rate=2e-3, check_every=20),
        folder=tmp_path, seed=0, temperature=0.05, dropout=0.1, validate=validate, show=False,
    )  # fmt: skip
    assert result.metrics["hit@5"] > start + 0.2
    after = encoder.module.state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if name.split(".")[1] in ("hidden", "out")}
