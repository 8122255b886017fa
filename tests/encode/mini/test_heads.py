"""The heads of `mini` learn alone, from features that are computed once."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from genius.config import OptimiserConfig
from genius.data.base import open_dataset
from genius.data.training_set import TrainingSet, read_training_set
from genius.encode.images import ImageTable
from genius.encode.mini.heads import (
    Heads,
    Teacher,
    ViewOptions,
    image_features,
    text_features,
    train_heads,
)
from genius.encode.train import TokenTable
from genius.errors import BadInput
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
    images, texts = image_features(encoder, pictures), text_features(encoder, train.texts)
    assert images.shape == (len(train.images), 1280)
    assert texts.shape == (len(train.texts), 384)
    assert not images.requires_grad
    heads = Heads(encoder, dropout=0.5).eval()
    with torch.no_grad():
        rows = torch.arange(5)
        assert torch.allclose(heads(images[:5], "image"), encoder.image_vectors(pictures[rows]), atol=1e-5)
        token_ids = encoder.prepare_texts(train.texts[:5])
        assert torch.allclose(heads(texts[:5], "text"), encoder.text_vectors(token_ids), atol=1e-5)


def moved(encoder: Any, before: dict[str, torch.Tensor]) -> set[str]:
    return {
        name for name, value in encoder.module.state_dict().items() if not torch.equal(value, before[name])
    }


def weights(encoder: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in encoder.module.state_dict().items()}


def test_only_the_heads_learn_and_they_find_more(encoder: Any, train: TrainingSet, tmp_path: Path) -> None:
    pictures = ImageTable(train.images, encoder, CPU, resident=True)
    images, texts = image_features(encoder, pictures)[None], text_features(encoder, train.texts)
    before = weights(encoder)

    def validate(heads: Heads) -> dict[str, float]:
        return hit_rates(train, heads.embedder(images[0].__getitem__, texts.__getitem__), CPU)

    start = validate(Heads(encoder).eval())["hit@5"]
    result = train_heads(
        encoder, images, texts.__getitem__, train,
        OptimiserConfig(steps=40, batch=48, rate=2e-3, check_every=20),
        folder=tmp_path, seed=0, temperature=0.05, dropout=0.1, validate=validate, show=False,
    )  # fmt: skip
    assert result.metrics["hit@5"] > start + 0.2
    with pytest.raises(BadInput, match="another dropout"):  # a run is not resumed with other values
        train_heads(
            encoder, images, texts.__getitem__, train,
            OptimiserConfig(steps=40, batch=48, rate=2e-3, check_every=20),
            folder=tmp_path, seed=0, temperature=0.05, dropout=0.3, validate=validate, show=False,
        )  # fmt: skip
    assert moved(encoder, before) == {name for name in before if name.split(".")[1] in ("hidden", "out")}


def test_heads_are_resumed_with_the_same_inputs_alone(
    encoder: Any, train: TrainingSet, tmp_path: Path
) -> None:
    """Not with other views of the images, other data of the same size, or other weights below the heads."""
    images, start = torch.randn(1, len(train.images), 1280), weights(encoder)
    texts = torch.randn(len(train.texts), 384).__getitem__

    def learn(data: TrainingSet = train, smallest_view: float = 0.3, change: float = 0.0) -> None:
        encoder.module.load_state_dict(start)
        with torch.no_grad():
            next(encoder.module.parameters()).add_(change)
        train_heads(
            encoder, images, texts, data, OptimiserConfig(steps=2, batch=8, check_every=1), folder=tmp_path,
            seed=0, dropout=0.0, inputs={"feature views": [smallest_view, 0.2]}, show=False,
        )  # fmt: skip

    learn()
    learn()
    with pytest.raises(BadInput, match="another feature views:"):
        learn(smallest_view=0.4)
    with pytest.raises(BadInput, match="another data:"):
        learn(replace(train, texts=[*train.texts[:-1], "something else"]))
    with pytest.raises(BadInput, match="another weights at the start:"):
        learn(change=1e-3)


def test_the_text_tower_learns_above_a_frozen_image_tower(
    encoder: Any, train: TrainingSet, tmp_path: Path
) -> None:
    pictures = ImageTable(train.images, encoder, CPU, resident=True)
    options = ViewOptions(smallest=0.5, colour=0.2)
    views = [image_features(encoder, pictures, view=view, options=options) for view in range(3)]
    assert torch.equal(views[0], image_features(encoder, pictures))  # the first view is the whole image
    assert not torch.allclose(views[0], views[1])
    assert torch.equal(views[2], image_features(encoder, pictures, view=2, options=options))
    some = image_features(encoder, pictures, torch.tensor([3, 1]))
    assert torch.allclose(some, views[0][[3, 1]], atol=1e-5)
    images = torch.stack(views)
    tokens, before = TokenTable(train.texts, encoder, CPU), weights(encoder)
    direction = torch.randn(1, 512, generator=torch.Generator().manual_seed(0))
    wanted = direction.expand(len(train.images), -1)

    def distance() -> float:
        with torch.no_grad():
            vectors = Heads(encoder).eval()(images[0], "image")
        return 1 - float(torch.cosine_similarity(vectors, wanted).mean())

    start = distance()
    train_heads(
        encoder, images, lambda rows: encoder.module.text.features(tokens[rows]), train,
        OptimiserConfig(steps=12, batch=32, rate=2e-3, check_every=12), folder=tmp_path, seed=0,
        temperature=0.05, dropout=0.0, text_tower=True, body_rate=0.1, teacher=Teacher(wanted, 5.0),
        show=False,
    )  # fmt: skip
    changed = moved(encoder, before)
    assert {"image.hidden.weight", "text.hidden.weight"} <= changed
    assert any(name.startswith("text.") and name.split(".")[1] not in ("hidden", "out") for name in changed)
    assert not any(
        name.startswith("image.") and name.split(".")[1] not in ("hidden", "out") for name in changed
    )
    assert distance() < start - 0.1
