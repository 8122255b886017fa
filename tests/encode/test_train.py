"""Stage 0: what a step draws, what it minimises, and that encoders of every kind learn from it."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from genius.config import OptimiserConfig
from genius.data.base import open_dataset
from genius.data.pairs import rows_of
from genius.data.training_set import TrainingSet, read_training_set
from genius.encode import clip, feature_fusion
from genius.encode.base import TrainableEncoder, TrainableFusingEncoder
from genius.encode.images import ImageTable
from genius.encode.train import batch_rows, distinct, fuse_towers, logit_scale, train_encoder
from genius.encode.views import mixed, random_views
from genius.errors import BadInput
from genius.pipeline.encoder import validator
from genius.training.log import read_log

SCRIPT = Path(__file__).resolve().parents[1] / "pipeline" / "tiny.py"
TINY = runpy.run_path(str(SCRIPT))
CPU = torch.device("cpu")
PLAN = OptimiserConfig(steps=50, batch=32, rate=2e-3, warmup=5, check_every=25)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(TINY["write_mbeir"](tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(TINY["write_clip"](tmp_path_factory.mktemp("clip")))


@pytest.fixture(scope="module")
def train(root: Path) -> TrainingSet:
    return read_training_set(open_dataset("mbeir", root), "train")


@pytest.fixture(scope="module")
def val(root: Path) -> TrainingSet:
    return read_training_set(open_dataset("mbeir", root), "val", chosen=True)


def learn(
    encoder: Any,
    train: TrainingSet,
    val: TrainingSet,
    folder: Path,
    plan: OptimiserConfig = PLAN,
    **more: Any,
):
    images = more.pop("images", None) or ImageTable(train.images, encoder, CPU, resident=True)
    return train_encoder(
        encoder, train, images, plan, folder=folder, seed=0, device=CPU, show=False,
        validate=validator(encoder, val, CPU), **{"temperature": 0.05, **more},
    )  # fmt: skip


def weights(encoder: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in encoder.module.state_dict().items()}


# --- rows ------------------------------------------------------------------------------------------------


def test_a_batch_names_the_images_and_texts_of_its_queries_and_items(train: TrainingSet) -> None:
    pairs = rows_of(train)
    batch = pairs.sample(0, 64, seed=0)
    images, texts = batch_rows(pairs, batch)
    assert images.tolist() == [*train.query_image[batch.query], *train.item_image[batch.item]]
    assert texts.tolist() == [*batch.text, *train.item_text[batch.item]]


def test_distinct_rows_and_their_places() -> None:
    rows = torch.tensor([5, -1, 2, 5, -1])
    found, place = distinct(rows)
    assert (found.tolist(), place.tolist()) == ([2, 5], [1, -1, 0, 1, -1])
    found, place = distinct(torch.tensor([-1, -1]))
    assert (found.tolist(), place.tolist()) == ([], [-1, -1])


def test_fusing_calls_each_tower_once_on_distinct_rows() -> None:
    calls: list[list[int]] = []

    def tower(factor: float) -> Any:
        def vectors(rows: torch.Tensor) -> torch.Tensor:
            calls.append(rows.tolist())
            return torch.stack([factor * rows.float(), torch.ones(len(rows))], dim=1)

        return vectors

    both = fuse_towers(torch.tensor([3, -1, 3]), torch.tensor([7, 4, -1]), tower(1), tower(10))
    assert both.tolist() == [[73.0, 2.0], [40.0, 1.0], [3.0, 1.0]]
    assert calls == [[3], [4, 7]]


# --- views -----------------------------------------------------------------------------------------------


def test_a_view_of_everything_is_the_picture_itself() -> None:
    pixels = torch.randint(0, 256, (3, 3, 16, 16), generator=torch.Generator().manual_seed(0))
    views = random_views(pixels, torch.Generator().manual_seed(1), smallest=1.0, flip=False, colour=0.0)
    assert torch.allclose(views, pixels.float(), atol=0.01)


@pytest.mark.parametrize("flip", [False, True])
def test_a_view_keeps_at_least_its_share(flip: bool) -> None:
    ramp = torch.linspace(0, 255, 64).round()
    across, down = torch.meshgrid(ramp, ramp, indexing="xy")
    pixels = torch.stack([across, down, down]).to(torch.uint8).repeat(200, 1, 1, 1)
    views = random_views(pixels, torch.Generator().manual_seed(1), smallest=0.3, flip=flip, colour=0.0)
    steps = views[:, 0, 0].diff(dim=1).mean(dim=1)  # signed growth from left to right, per picture
    growth = views[:, 1, :, 0].diff(dim=1).mean(dim=1)
    share = (steps.abs() * growth) / (255 / 63) ** 2
    assert 0.28 < share.min() < 0.4
    assert 0.9 < share.max() < 1.02
    assert bool((steps < 0).any()) == flip


def test_views_differ_by_seed_only_and_stay_in_range() -> None:
    pixels = torch.randint(0, 256, (4, 3, 16, 16), generator=torch.Generator().manual_seed(0))

    def seen(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return mixed(random_views(pixels, generator, smallest=0.3, flip=True, colour=0.5), generator, 0.5)

    assert torch.equal(seen(1), seen(1))
    assert not torch.equal(seen(1), seen(2))
    assert seen(1).min() >= 0
    assert seen(1).max() <= 255


# --- learning --------------------------------------------------------------------------------------------


def test_clip_learns_to_find(train, val, clip_folder, tmp_path) -> None:
    encoder = clip.load(clip_folder)
    assert isinstance(encoder, TrainableEncoder)
    before = validator(encoder, val, CPU)()["hit@5"]
    result = learn(encoder, train, val, tmp_path / "run")
    log = read_log(tmp_path / "run" / "log.jsonl")
    losses = [line["loss"] for line in log if "loss" in line]
    assert losses[-1] < losses[0] / 2
    assert before < 0.35
    assert result.metrics["hit@5"] > 0.9
    assert set(result.metrics) == {"hit@5", "flags 0", "flags 2", "flags 3"}
    assert all({"step", "rate", "samples_per_s"} <= line.keys() for line in log if "loss" in line)
    # saved and loaded, it is as good as when it was trained
    encoder.save(tmp_path / "saved")
    assert validator(clip.load(tmp_path / "saved"), val, CPU)() == result.metrics


def test_a_fusing_encoder_learns_through_the_same_door(train, val, clip_folder, tmp_path) -> None:
    encoder = feature_fusion.create("clip-fusion", clip_folder, layers=1)
    assert isinstance(encoder, TrainableFusingEncoder)
    assert not isinstance(encoder, TrainableEncoder)
    before = validator(encoder, val, CPU)()["hit@5"]
    images = ImageTable(train.images, encoder, CPU, resident=False)
    result = learn(encoder, train, val, tmp_path, images=images)
    assert before < 0.35
    assert result.metrics["hit@5"] > 0.6


def test_bfloat16_learns_too(train, val, tmp_path) -> None:
    toy = TINY["Toy"]()
    plan = OptimiserConfig(steps=60, batch=32, rate=5e-3, check_every=30, precision="bfloat16")
    assert learn(toy, train, val, tmp_path, plan).metrics["hit@5"] > 0.6
    assert all(value.dtype == torch.float32 for value in toy.module.parameters())


@pytest.mark.parametrize("kind", ["toy", "clip", "clip-fusion"])
def test_the_image_tower_has_a_rate_of_its_own(kind, train, val, clip_folder, tmp_path) -> None:
    if kind == "toy":
        encoder = TINY["Toy"]()
    elif kind == "clip":
        encoder = clip.load(clip_folder)
    else:
        encoder = feature_fusion.create("clip-fusion", clip_folder, layers=1)
    before = weights(encoder)
    learn(encoder, train, val, tmp_path, OptimiserConfig(steps=2, batch=16, rate=1e-3), image_rate=0.0)
    moved = {name for name, value in weights(encoder).items() if not torch.equal(value, before[name])}
    still = {"toy": ("image.",), "clip": ("vision_model.", "visual_")}.get(kind, ("towers.vision_model.",))
    assert any(name.startswith(still) for name in before)
    assert not any(name.startswith(still) for name in moved)
    assert any("text" in name for name in moved)


def test_masking_changes_the_loss_only_where_positives_meet(train, val, tmp_path) -> None:
    losses = {}
    for mask in (True, False):
        learn(
            TINY["Toy"](),
            train,
            val,
            tmp_path / str(mask),
            OptimiserConfig(steps=1, batch=64),
            mask_positives=mask,
        )
        losses[mask] = read_log(tmp_path / str(mask) / "log.jsonl")[0]["loss"]
    assert losses[True] < losses[False]  # fewer negatives: every flag is there twice


def test_queries_against_items_alone_have_another_loss(train, val, tmp_path) -> None:
    losses = {}
    for symmetric in (True, False):
        folder = tmp_path / str(symmetric)
        learn(TINY["Toy"](), train, val, folder, OptimiserConfig(steps=1, batch=64), symmetric=symmetric)
        losses[symmetric] = read_log(folder / "log.jsonl")[0]["loss"]
    assert losses[True] != pytest.approx(losses[False], rel=1e-4)


def test_the_encoders_own_temperature_is_learned(train, val, clip_folder, tmp_path) -> None:
    """As UniIR's stage 0: CLIP's logit_scale, queries against items alone."""
    plan = PLAN.model_copy(update={"steps": 3, "check_every": 3})
    fixed, learned = clip.load(clip_folder), clip.load(clip_folder)
    start = fixed.module.logit_scale.item()
    learn(fixed, train, val, tmp_path / "fixed", plan)
    options = {"learned_temperature": True, "symmetric": False}
    learn(learned, train, val, tmp_path / "learned", plan, **options)
    assert fixed.module.logit_scale.item() == start
    assert learned.module.logit_scale.item() != start
    with pytest.raises(BadInput, match="another temperature"):
        learn(learned, train, val, tmp_path / "learned", plan, symmetric=False)


def test_an_encoder_without_a_temperature_cannot_learn_one() -> None:
    with pytest.raises(BadInput, match="no temperature to learn"):
        logit_scale(SimpleNamespace(module=torch.nn.Linear(2, 2)))


def test_a_teacher_pulls_the_image_vectors(train, val, tmp_path) -> None:
    target = torch.randn(3 * 8 * 8, 16, generator=torch.Generator().manual_seed(5))

    def teacher(pixels: torch.Tensor) -> torch.Tensor:
        return (pixels.float().flatten(1) / 128 - 1) @ target

    held = {}
    for weight in (0.0, 20.0):
        folder = tmp_path / str(weight)
        learn(TINY["Toy"](), train, val, folder, teacher=teacher, teacher_weight=weight)
        held[weight] = read_log(folder / "log.jsonl")[-2]["teacher"]
    assert held[20.0] < held[0.0] / 3


def test_a_run_with_other_values_is_refused(train, val, tmp_path) -> None:
    plan = OptimiserConfig(steps=1, batch=8)
    learn(TINY["Toy"](), train, val, tmp_path, plan)
    with pytest.raises(BadInput, match="another mask_positives, temperature"):
        learn(TINY["Toy"](), train, val, tmp_path, plan, temperature=0.1, mask_positives=False)


def test_pictures_read_ahead_are_the_same(train, val, tmp_path) -> None:
    for resident in (True, False):
        toy, config = TINY["Toy"](), OptimiserConfig(steps=4, batch=16, check_every=1)
        images = ImageTable(train.images, toy, CPU, resident=resident, workers=1)
        learn(toy, train, val, tmp_path / str(resident), config, images=images)
    one, other = (
        [line["loss"] for line in read_log(tmp_path / name / "log.jsonl") if "loss" in line]
        for name in ("True", "False")
    )
    assert one == other


def test_pictures_given_are_not_decoded_again(train, val, tmp_path, monkeypatch) -> None:
    toy = TINY["Toy"]()
    ready = [ImageTable(data.images, toy, CPU, resident=True) for data in (train, val)]
    monkeypatch.setattr("genius.encode.images.decode", lambda *_: pytest.fail("decoded twice"))
    train_encoder(
        toy, train, ready[0], OptimiserConfig(steps=2, batch=8), folder=tmp_path, seed=0, device=CPU,
        validate=validator(toy, val, CPU, ready[1]), show=False,
    )  # fmt: skip


def test_two_processes_do_what_one_does(run_by_one_and_two: Any, root: Path, tmp_path: Path) -> None:
    run_by_one_and_two(SCRIPT, tmp_path, root, PLAIN=1)
    one, two = (read_log(tmp_path / name / "log.jsonl") for name in ("one", "two"))
    assert [line["step"] for line in one] == [4, 4, 8, 8, 12, 12]
    for mine, theirs in zip(one, two, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine.keys() - {"samples_per_s"}:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-4), name
