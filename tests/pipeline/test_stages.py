"""A recipe end to end: all stages into a model folder, the folder into an engine, the engine asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from genius.config import load_recipe
from genius.data.base import open_dataset
from genius.data.training_set import read_training_set
from genius.engine import Engine
from genius.errors import BadInput, ModelMismatch
from genius.model import Model
from genius.model_toml import read_model_toml, write_model_toml
from genius.pipeline import stages
from genius.pipeline.stages import train_stages
from genius.training.log import read_log
from genius.types import Query

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def recipe(settings: dict[str, Any], file: str = "mini.toml", **more: Any) -> Any:
    changes = {**settings, **{key.replace("__", "."): value for key, value in more.items()}}
    return load_recipe(RECIPES / file, [f"{key}={value}" for key, value in changes.items()])


# --- the way to a model ----------------------------------------------------------------------------------


def test_every_stage_learned(run_folder: Path) -> None:
    logs = {name: read_log(run_folder / name / "log.jsonl") for name in ("encoder", "quantizer", "decoder")}
    for name, log in logs.items():
        losses = [line["loss"] for line in log if "loss" in line]
        assert losses[-1] < losses[0], name
    found = {name: [line["hit@5"] for line in log if "hit@5" in line][-1] for name, log in logs.items()}
    assert min(found.values()) > 0.7  # 5 of 90 items by chance


def test_the_folder_is_a_whole_model(run_folder: Path) -> None:
    folder = run_folder / "model"
    tables = read_model_toml(folder)
    assert tables.keys() == {"encoder", "quantizer", "decoder"}
    assert tables["encoder"] == {"name": "clip", "source": ""}  # it was trained, so it lies beside
    assert {"quantizer.safetensors", "decoder.safetensors", "model.safetensors", "tokenizer.json"} <= {
        file.name for file in folder.iterdir()
    }
    model = Model.load(folder)
    assert (model.sizes, model.levels, model.encoder.dim) == ((3, 16, 16, 16), 4, 32)
    assert model.decoder is not None


def test_an_engine_finds_with_it(run_folder: Path, root: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(run_folder / "model", moved)  # a model folder needs nothing outside itself
    dataset = open_dataset("mbeir", root)
    items = list(dataset.pool("test"))
    queries = list(dataset.queries("test"))
    asked = [query.asked(dataset.instructions.chosen(query).sentence) for query in queries]
    with Engine.create(tmp_path / "index", moved) as engine:
        added = engine.add(items)
        assert (added.added, added.report.skipped) == (90, 0)
        rates = {}
        for search, rerank in (("lookup", "vectors"), ("generate", "none"), ("both", "codes")):
            hits = engine.search_batch(asked, 5, search=search, rerank=rerank)
            found = [
                bool({hit.id for hit in several} & set(query.positives))
                for several, query in zip(hits, queries, strict=True)
            ]
            rates[search] = sum(found) / len(found)
        assert all(
            hit.modality == query.want
            for several, query in zip(hits, queries, strict=True)
            for hit in several
        )
    assert rates["lookup"] > 0.8
    assert rates["generate"] > 0.3  # 5 of 30 items of the wanted modality by chance
    assert rates["both"] > 0.5
    with Engine.open(tmp_path / "index") as engine:  # found again by what is stored
        best = engine.search(Query(text="red above blue", want=None), 3, "image")
        assert best[0].path is not None


def test_a_finished_run_is_not_done_again(run_folder: Path, settings, monkeypatch) -> None:
    before = Model.load(run_folder / "model").fingerprint
    monkeypatch.setattr("genius.encode.train.batch_loss", lambda *_, **__: pytest.fail("trained again"))
    monkeypatch.setattr("genius.pipeline.vectors.image_vectors", lambda *_: pytest.fail("encoded again"))
    train_stages(recipe(settings), "all", run_folder)
    assert Model.load(run_folder / "model").fingerprint == before


def test_another_encoder_is_not_taken_for_the_old_one(
    run_folder: Path, settings, clip_folder, tmp_path
) -> None:
    """A quantizer that was trained on vectors of one encoder is refused for those of another."""
    shutil.copytree(run_folder / "quantizer", tmp_path / "quantizer")
    plain = {key: value for key, value in settings.items() if not key.startswith("encoder_training")}
    with pytest.raises(BadInput, match="belongs to a run with another encoder"):
        train_stages(recipe(plain), "quantizer", tmp_path)
    table = read_model_toml(tmp_path / "model")["encoder"]
    assert table == {"name": "clip", "source": str(clip_folder.resolve())}  # named, not copied


@pytest.mark.parametrize(
    ("stage", "change", "other"),
    [
        ("quantizer", {"data.default_instructions": "false"}, "data"),  # as many queries and items
        ("decoder", {"data.default_instructions": "false"}, "data"),
        ("decoder", {"decoder_training.row_scale": 2.1}, "row_scale"),
    ],
)
def test_a_stage_is_not_resumed_with_other_texts_or_first_weights(
    run_folder: Path, settings, tmp_path: Path, stage: str, change: dict[str, Any], other: str
) -> None:
    for name in ("model", stage):
        shutil.copytree(run_folder / name, tmp_path / name)
    with pytest.raises(BadInput, match=f"belongs to a run with another {other}"):
        train_stages(recipe({**settings, **change}), stage, tmp_path)


def test_two_processes_make_one_model(settings: dict[str, Any], tmp_path: Path) -> None:
    """Every process needs what another has written: nobody runs ahead, nothing is written twice."""
    few = {f"{name}_training.optimiser.steps": 2 for name in ("encoder", "quantizer", "decoder")}
    changes = {**settings, **few, "decoder_training.optimiser.warmup": 1}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "genius", "train", "all", str(RECIPES / "mini.toml"), "--to", str(tmp_path)]
    command += [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("written to") == 1  # one process speaks
    assert Model.load(tmp_path / "model").decoder is not None


# --- what is refused before any work ---------------------------------------------------------------------


def test_a_stage_that_the_recipe_lacks(settings, tmp_path) -> None:
    data = {"data.root": settings["data.root"]}
    with pytest.raises(BadInput, match=r"no table that trains 'encoder'.*\(quantizer, decoder\)"):
        train_stages(recipe(data, device="cpu"), "encoder", tmp_path)
    with pytest.raises(BadInput, match=r"no table that trains 'decoder'.*\(encoder\)"):
        train_stages(recipe(data, "mini-heads.toml", device="cpu"), "decoder", tmp_path)
    with pytest.raises(BadInput, match="make mini, not 'clip'"):
        train_stages(recipe(data, "mini-encoder.toml", encoder__name="clip"), "all", tmp_path)
    assert not list(tmp_path.iterdir())


def test_stages_out_of_order(settings, tmp_path) -> None:
    with pytest.raises(BadInput, match="train it first"):
        train_stages(recipe(settings), "quantizer", tmp_path / "a")
    plain = {key: value for key, value in settings.items() if not key.startswith("encoder_training")}
    with pytest.raises(BadInput, match=r"no quantizer in .*train it first"):
        train_stages(recipe(plain), "decoder", tmp_path / "b")


def test_an_encoder_that_fuses_by_itself_has_no_codes(settings, clip_folder, tmp_path) -> None:
    from genius.encode.feature_fusion import create

    create("clip-fusion", clip_folder, layers=1).save(tmp_path / "ff")
    plain = {key: value for key, value in settings.items() if not key.startswith("encoder_training")}
    changed = {"encoder__name": "clip-fusion", "encoder__source": tmp_path / "ff"}
    with pytest.raises(BadInput, match="stages 1 and 2 need two towers"):
        train_stages(recipe(plain, **changed), "all", tmp_path / "run")
    few = {"encoder_training__optimiser__steps": 2}
    train_stages(recipe(settings, **changed, **few), "encoder", tmp_path / "trained")  # but stage 0 has
    from genius.encode.base import load_encoder

    assert load_encoder("clip-fusion", tmp_path / "trained" / "model").dim == 32


def test_what_needs_an_unreadable_image_is_left_out(settings, tmp_path: Path, capsys) -> None:
    own = tmp_path / "data"
    shutil.copytree(settings["data.root"], own)
    bad = read_training_set(open_dataset("mbeir", own), "train").images[0]
    bad.write_bytes(b"no image")
    plain = {key: value for key, value in settings.items() if not key.startswith("encoder_training")}
    few = {"quantizer_training__optimiser__steps": 2, "data__root": own}
    train_stages(recipe(plain, **few), "quantizer", tmp_path / "run")
    said = " ".join(capsys.readouterr().err.split())
    assert "train: 1 images cannot be read" in said
    assert "left out: " in said


@pytest.mark.parametrize("resident", [True, False])
def test_stage_0_learns_without_what_needs_an_unreadable_image(
    settings, tmp_path: Path, capsys, monkeypatch, resident: bool
) -> None:
    """Also where images are decoded in training: no item or query whose image is black takes part."""
    own = tmp_path / "data"
    shutil.copytree(settings["data.root"], own)
    train = read_training_set(open_dataset("mbeir", own), "train")
    train.images[0].write_bytes(b"no image")
    trained: list[Any] = []
    monkeypatch.setattr(
        stages, "train_stage", lambda encoder, table, splits, *_, **__: trained.append(splits)
    )
    changed = {"data__root": own, "encoder_training__resident": str(resident).lower()}
    train_stages(recipe(settings, **changed), "encoder", tmp_path / "run")
    assert "train: 1 images cannot be read" in " ".join(capsys.readouterr().err.split())
    found = trained[0].train
    assert 0 not in found.item_image
    assert 0 not in found.query_image
    assert len(found.item_ids) == len(train.item_ids) - int((train.item_image == 0).sum())
    monkeypatch.setattr("genius.pipeline.vectors.decode", lambda *_: pytest.fail("looked at twice"))
    train_stages(recipe(settings, **changed), "encoder", tmp_path / "run")


def test_held_out_queries_are_for_the_stages_after_the_encoder(settings, tmp_path: Path, monkeypatch) -> None:
    asked: list[set[str]] = []
    train_encoder, pairs_of = stages.train_stage, stages.pairs_of

    def stage_0(encoder: Any, table: Any, splits: Any, *rest: Any, **more: Any) -> None:
        asked.append(set(splits.train.query_ids))
        train_encoder(encoder, table, splits, *rest, **more)

    def stage_1(data: Any, *rest: Any) -> Any:
        asked.append(set(data.query_ids))
        return pairs_of(data, *rest)

    monkeypatch.setattr(stages, "train_stage", stage_0)
    monkeypatch.setattr(stages, "pairs_of", stage_1)
    few = {f"{name}_training__optimiser__steps": 2 for name in ("encoder", "quantizer", "decoder")}
    made = recipe(settings, data__held_out=0.4, decoder_training__optimiser__warmup=1, **few)
    train_stages(made, "all", tmp_path / "run")
    encoder, later, val = asked
    assert not encoder & later
    data = read_training_set(open_dataset("mbeir", settings["data.root"]), "train")
    assert encoder | later == set(data.query_ids)
    assert len(val) == 90


# --- mini ------------------------------------------------------------------------------------------------


@pytest.fixture
def mini_folder(tiny, monkeypatch, tmp_path) -> Path:
    tiny["shrink_mini"](monkeypatch)
    tiny["start_mini"]().save(tmp_path / "mini")
    return tmp_path / "mini"


def test_mini_goes_into_the_model_folder(tiny, mini_folder: Path, settings, tmp_path: Path) -> None:
    plain = {key: value for key, value in settings.items() if not key.startswith("encoder")}
    few = {"quantizer_training__optimiser__steps": 2, "quantizer__fusion": "sum"}
    made = recipe(plain, encoder__name="mini", encoder__source=mini_folder, **few)
    train_stages(made, "quantizer", tmp_path / "run")
    shutil.rmtree(mini_folder)
    model = Model.load(tmp_path / "run" / "model")
    assert model.encoder.encode_texts(["Red above blue."]).shape == (1, 512)
    assert model.decoder is None


def test_the_heads_of_mini_by_recipe(mini_folder: Path, settings, tmp_path: Path, monkeypatch) -> None:
    from genius.pipeline import encoder as stage

    changes = {"data.root": settings["data.root"], "encoder.source": mini_folder, "device": "cpu"}
    few = {"steps": 30, "batch": 48, "rate": 2e-3, "check_every": 15}
    few = {f"encoder_training__optimiser__{key}": value for key, value in few.items()}
    made = recipe(changes, "mini-heads.toml", encoder_training__temperature=0.05, **few)
    train_stages(made, "encoder", tmp_path / "run")
    log = [line["hit@5"] for line in read_log(tmp_path / "run" / "encoder" / "log.jsonl") if "hit@5" in line]
    assert log[-1] > 0.4
    assert read_model_toml(tmp_path / "run" / "model")["encoder"] == {"name": "mini", "source": ""}
    kept = {file.parent.name.split("-")[0] for file in (tmp_path / "run" / "features").glob("*/*.npy")}
    assert kept == {
        "images",
        "texts",
        "unreadable",
    }  # a run that is started again does not compute them again
    monkeypatch.setattr(stage, "image_features", None)
    train_stages(made, "encoder", tmp_path / "run")
    clip = {**settings, "encoder_training.frozen": "both"}
    with pytest.raises(BadInput, match="only mini has heads"):
        train_stages(recipe(clip), "encoder", tmp_path / "other")


def test_mini_is_distilled_and_trained_by_recipe(tiny, settings, monkeypatch, tmp_path) -> None:
    """The whole of stage 0 with stand-ins for the published weights; pictures are decoded once."""
    from genius.encode import images
    from genius.encode.mini import distill
    from genius.pipeline import encoder as stage

    class Teacher(torch.nn.Module):
        def __init__(self, weights: Any) -> None:
            super().__init__()
            self.mixing = torch.randn(3, 512, generator=torch.Generator().manual_seed(1))

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return (pixels.float().mean(dim=(2, 3)) / 128 - 1) @ self.mixing

    decoded: list[int] = []
    plain = images.decode

    def counted(files: Any, *more: Any) -> Any:
        decoded.append(len(files))
        return plain(files, *more)

    tiny["shrink_mini"](monkeypatch)
    monkeypatch.setattr(distill, "start", lambda *_: tiny["start_mini"]())
    monkeypatch.setattr(stage, "clip_weights", lambda _: {})
    monkeypatch.setattr(stage, "ClipTeacher", Teacher)
    monkeypatch.setattr(images, "decode", counted)
    few = {"steps": 4, "batch": 16, "check_every": 2, "precision": "float32", "compile": "false"}
    tables = ("distillation.alignment", "distillation.images", "encoder_training.optimiser")
    changes = {f"{table}.{key}": value for table in tables for key, value in few.items()}
    changes |= {"data.root": settings["data.root"], "device": "cpu", "encoder_training.teacher_weight": 1.0}
    train_stages(recipe(changes, "mini-encoder-gpu.toml"), "all", tmp_path)
    assert decoded == [60, 30]  # train and val, once each
    for name in ("alignment", "distillation", "encoder"):
        assert any("hit@5" in line for line in read_log(tmp_path / name / "log.jsonl")), name
    from genius.encode.mini.encoder import MiniEncoder

    assert MiniEncoder.open(tmp_path / "model").encode_texts(["Red."]).shape == (1, 512)


def test_a_process_that_does_not_validate_embeds_nothing_of_val(
    tiny, settings, monkeypatch, tmp_path
) -> None:
    from genius.encode.images import ImageTable
    from genius.encode.mini import distill
    from genius.pipeline import encoder as stage

    class Teacher(torch.nn.Module):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return pixels.float().mean(dim=(2, 3)) @ torch.ones(3, 512)

    class Val:
        def __len__(self) -> int:
            return 30

        def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
            pytest.fail("another process validates")

    tiny["shrink_mini"](monkeypatch)
    monkeypatch.setattr(stage, "clip_weights", lambda _: {})
    monkeypatch.setattr(stage, "ClipTeacher", lambda _: Teacher())
    for name in ("align_text", "distil_images"):  # of which validation is a part, in process 0
        monkeypatch.setattr(distill, name, lambda *_, **__: None)
    table = recipe({"data.root": settings["data.root"]}, "mini-encoder-gpu.toml").distillation
    data = open_dataset("mbeir", settings["data.root"])
    splits = stage.Splits(*(read_training_set(data, split) for split in ("train", "val")))
    encoder, device = tiny["start_mini"](), torch.device("cpu")
    train: Any = ImageTable(splits.train.images, encoder, device, resident=True)
    val: Any = Val()
    stage.distil_mini(
        encoder, table, splits, stage.SplitImages(train, val),
        balance=1.0, folder=tmp_path, seed=0, device=device,
    )  # fmt: skip


# --- model.toml ------------------------------------------------------------------------------------------


def test_model_toml_is_read_as_it_was_written(tmp_path: Path) -> None:
    tables = {
        "encoder": {"name": "clip", "source": 'C:\\odd "place"\n é'},
        "quantizer": {"sizes": [3, 16], "shared": True, "dropout": 0.1, "tiny": 1e-7},
    }
    write_model_toml(tmp_path, tables)
    assert read_model_toml(tmp_path) == tables
    assert read_model_toml(tmp_path / "none") == {}
    (tmp_path / "model.toml").write_text("[encoder")
    with pytest.raises(ModelMismatch, match="remove it, then train or convert"):
        read_model_toml(tmp_path)


def test_stages_share_one_console_on_stderr() -> None:
    assert stages.console.stderr


def test_the_data_of_the_papers_recipes(root: Path, tmp_path: Path) -> None:
    """union_up repeats queries of small datasets; our own instructions are left out."""
    data = tmp_path / "data"
    shutil.copytree(root, data)
    files = sorted((data / "query" / "train").glob("*.jsonl"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    union = data / "query" / "union_train" / "mbeir_union_up_train.jsonl"
    changes = {"data.root": data, "data.train": "union_train", "data.default_instructions": "false"}
    with pytest.raises(BadInput, match="no split 'union_train'"):
        train_stages(recipe(changes), "all", tmp_path / "run")
    union.parent.mkdir()
    union.write_text("\n".join([*lines, lines[0]]) + "\n")
    plain, up = stages._data(recipe({"data.root": data}), "train"), stages._data(recipe(changes), "train")
    assert len(up.query_ids) == len(plain.query_ids) + 1 == len(lines) + 1
    assert up.query_texts.shape[1] == plain.query_texts.shape[1] - 2
