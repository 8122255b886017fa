"""The stages of a recipe, one after the other, into one model folder."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from genius.config import Recipe
from genius.data.base import open_dataset
from genius.data.training_set import read_training_set
from genius.decode.initial import fresh_decoder
from genius.decode.model import DecoderShape
from genius.decode.rivals import Rivals
from genius.decode.targets import Softness
from genius.decode.train import Lesson, train_decoder
from genius.decode.weights import save_decoder
from genius.encode.base import Encoder, FusingEncoder, TrainableEncoder, load_encoder
from genius.errors import BadInput
from genius.pipeline.encoder import Splits, plan_of, teach_mini, train_stage
from genius.pipeline.vectors import encode_set
from genius.quantize.model import Quantizer, load_quantizer, save_quantizer
from genius.quantize.pairs import Pairs, pairs_of
from genius.quantize.residual import code_sizes
from genius.quantize.train import Objective, train_quantizer
from genius.store.atomic import write_file
from genius.training import distributed

console = Console(stderr=True)


def train_stages(recipe: Recipe, stage: str, folder: Path) -> None:
    """Train `stage` (encoder, quantizer, decoder or all) of `recipe`; the model is `folder`/model."""
    wanted = ("encoder", "quantizer", "decoder") if stage == "all" else (stage,)
    with distributed.processes(recipe.device) as device:
        if "encoder" in wanted and (recipe.distillation or recipe.encoder_training):
            _encoder(recipe, folder, device)
        elif stage == "encoder":
            raise BadInput("the recipe has neither distillation nor encoder_training: nothing to train")
        if wanted == ("encoder",):
            return
        encoder = _trained_encoder(recipe, folder, device)
        train, val = (_pairs(recipe, encoder, split, folder, device) for split in ("train", "val"))
        (folder / "model").mkdir(parents=True, exist_ok=True)
        if "quantizer" in wanted:
            _quantizer(recipe, folder, train, val)
        if "decoder" in wanted:
            _decoder(recipe, folder, train, val)
        if distributed.is_main():
            _note(folder / "model", "encoder", _encoder_table(recipe, folder))
            console.print(f"model written: genius index PATH --model {folder / 'model'}")


def read_model_toml(folder: Path) -> dict[str, dict[str, Any]]:
    """The tables of the folder's `model.toml`; none where there is no such file yet."""
    file = folder / "model.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def write_model_toml(folder: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Tables of plain values as `model.toml`: TOML writes these values as JSON does."""
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items()), ""]
    write_file(folder / "model.toml", ["\n".join(lines).encode()])


def _note(folder: Path, name: str, table: Mapping[str, Any]) -> None:
    """Put one table into the folder's `model.toml`."""
    write_model_toml(folder, {**read_model_toml(folder), name: table})


def _encoder(recipe: Recipe, folder: Path, device: torch.device) -> None:
    """Stage 0 into `folder`/encoder."""
    table = recipe.encoder_training
    dataset = open_dataset(recipe.data.format, recipe.data.root, recipe.data.datasets)
    splits = Splits(
        read_training_set(dataset, "train", defaults=table is None or table.default_instructions),
        read_training_set(dataset, "val", chosen=True),
    )
    teacher = None
    if recipe.distillation is not None:
        balance = 1.0 if table is None else table.balance
        taught = teach_mini(
            recipe.distillation, splits, balance=balance, folder=folder, seed=recipe.seed, device=device
        )
        encoder: TrainableEncoder = taught.encoder
        teacher = taught.teacher if table is not None and table.teacher_weight else None
    else:
        loaded = load_encoder(recipe.encoder.name, recipe.encoder.source or None, str(device))
        if not isinstance(loaded, TrainableEncoder):
            raise BadInput(f"encoder {recipe.encoder.name!r} cannot be trained: use clip, blip or mini")
        encoder = loaded
    if table is not None:
        train_stage(encoder, table, splits, folder=folder, seed=recipe.seed, device=device, teacher=teacher)
    if distributed.is_main():
        encoder.save(folder / "encoder")


def _trained_encoder(recipe: Recipe, folder: Path, device: torch.device) -> Encoder:
    """The encoder for the stages after it: the one this run trained, or the recipe's."""
    source = _encoder_table(recipe, folder)["source"]
    encoder = load_encoder(recipe.encoder.name, source or None, str(device))
    if isinstance(encoder, FusingEncoder):
        raise BadInput(f"encoder {recipe.encoder.name!r} fuses by itself: stages 1 and 2 need two towers")
    return encoder


def _encoder_table(recipe: Recipe, folder: Path) -> dict[str, str]:
    own = folder / "encoder"
    return {
        "name": recipe.encoder.name,
        "source": str(own.resolve()) if own.is_dir() else recipe.encoder.source,
    }


def _pairs(recipe: Recipe, encoder: Encoder, split: str, folder: Path, device: torch.device) -> Pairs:
    """Queries and items of a split with their vectors, on the device."""
    dataset = open_dataset(recipe.data.format, recipe.data.root, recipe.data.datasets)
    data = read_training_set(dataset, split, chosen=split != "train", defaults=split == "train")
    kept = Path(recipe.data.features) if recipe.data.features else folder / "vectors"
    return pairs_of(data, *encode_set(encoder, data, kept)).to(device)


def _quantizer(recipe: Recipe, folder: Path, train: Pairs, val: Pairs) -> None:
    """Stage 1 into `folder`/model."""
    shape, table = recipe.quantizer, recipe.quantizer_training
    if table is None:
        raise BadInput("the recipe has no quantizer_training: add the table, or train another stage")
    torch.manual_seed(recipe.seed)
    quantizer = Quantizer(
        train.dim, code_sizes(shape.levels, shape.codes, shape.modality), fusion=shape.fusion,
        modality=shape.modality, shared_codebooks=shape.shared_codebooks,
        encode_beam=table.encode_beam, dropout=shape.dropout,
    ).to(train.device)  # fmt: skip
    values = {name: getattr(table, name) for name in Objective.__dataclass_fields__}
    trained = train_quantizer(
        quantizer, train.balanced(table.balance), val, plan_of(table.optimiser), Objective(**values),
        folder=folder / "quantizer", seed=recipe.seed, kmeans_sample=table.kmeans_sample,
        refine_rounds=table.refine_rounds,
    )  # fmt: skip
    if distributed.is_main():
        console.print(trained.health.table())
        console.print("quantizer on val: " + "  ".join(f"{k} {v:.4g}" for k, v in trained.figures.items()))
        _note(folder / "model", "quantizer", save_quantizer(quantizer, folder / "model"))


def _decoder(recipe: Recipe, folder: Path, train: Pairs, val: Pairs) -> None:
    """Stage 2 into `folder`/model, on the quantizer found there."""
    shape, table, model = recipe.decoder, recipe.decoder_training, folder / "model"
    if table is None:
        raise BadInput("the recipe has no decoder_training: add the table, or train another stage")
    described = read_model_toml(model).get("quantizer")
    if described is None:
        raise BadInput(f"no quantizer in {model}: train it first (genius train quantizer, or all)")
    quantizer = load_quantizer(model, described, train.device)
    built = DecoderShape.preset(shape.preset, quantizer.dim, quantizer.sizes, shape.prefix, shape.dropout)
    decoder = fresh_decoder(built, quantizer.residual.codebooks(), recipe.seed, table.row_scale)
    soft = None
    if table.targets == "soft":
        soft = Softness(**{name: getattr(table, name) for name in Softness.__dataclass_fields__})
    rivals = Rivals(weight=table.ranking, count=table.rivals) if table.ranking else None
    lesson = Lesson(table.augmentation, table.alpha, table.plain, soft, rivals, table.indexing)
    train_decoder(
        decoder.to(train.device), quantizer, train, val, plan_of(table.optimiser), lesson,
        folder=folder / "decoder", seed=recipe.seed,
    )  # fmt: skip
    if distributed.is_main():
        _note(model, "decoder", save_decoder(decoder, model))
