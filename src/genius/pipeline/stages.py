"""The stages of a recipe, one after the other, into one model folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from genius.config import OptimiserConfig, Recipe
from genius.data.base import open_dataset
from genius.data.held_out import split_queries
from genius.data.pairs import Pairs, pairs_of
from genius.data.report import Report, printable
from genius.data.training_set import (
    TrainingSet,
    limit_items,
    read_training_set,
    without_images,
    without_unused,
)
from genius.decode.init import fresh_decoder
from genius.decode.rivals import Rivals
from genius.decode.shape import DecoderShape
from genius.decode.targets import SoftTargetOptions
from genius.decode.train import DecoderObjective, train_decoder
from genius.decode.weights import save_decoder
from genius.encode.base import ENCODERS, Encoder, FusingEncoder, load_encoder
from genius.encode.mini import distill
from genius.encode.mini import encoder as mini
from genius.encode.train import AnyTrainable
from genius.errors import BadInput
from genius.model_toml import read_model_toml, set_table
from genius.pipeline.encoder import SplitImages, Splits, distil_mini, train_stage
from genius.pipeline.scaling import fit_to_data
from genius.pipeline.vectors import encode_set, unreadable_images
from genius.quantize.model import Quantizer, load_quantizer, save_quantizer
from genius.quantize.residual import code_sizes
from genius.quantize.train import QuantizerObjective, train_quantizer
from genius.training import distributed

console = Console(stderr=True)


def train_stages(recipe: Recipe, stage: str, folder: Path) -> None:
    """Train `stage` of `recipe`, or `all` that it describes; the model is `folder`/model."""
    stages = stages_to_train(recipe, stage)
    _require_splits(recipe)
    model = folder / "model"
    with distributed.process_group(recipe.device) as device:
        if "encoder" in stages:
            _encoder(recipe, folder, device)
        elif distributed.is_main():
            _record_encoder(recipe, model)
        distributed.barrier()
        if stages != ["encoder"]:
            encoder = _load_encoder(model, device)
            train, digest = _pairs(recipe, encoder, "train", folder, device)
            val, _ = _pairs(recipe, encoder, "val", folder, device)
            inputs = {"encoder": encoder.fingerprint, "data": digest}
            if "quantizer" in stages:
                _quantizer(recipe, folder, train, val, inputs)
                distributed.barrier()
            if "decoder" in stages:
                _decoder(recipe, folder, train, val, inputs)
                distributed.barrier()
        if distributed.is_main():
            console.print(f"written to {model}: {', '.join(stages)}", highlight=False)


def stages_to_train(recipe: Recipe, stage: str) -> list[str]:
    """The stages to train; one that the recipe does not describe is refused before any work."""
    if recipe.encoder.name not in ENCODERS:
        raise BadInput(
            f"unknown encoder {recipe.encoder.name!r}: choose one of {', '.join(sorted(ENCODERS))}"
        )
    if (recipe.start or recipe.distillation) and recipe.encoder.name != "mini":
        raise BadInput(
            f"start and distillation make mini, not {recipe.encoder.name!r}: set encoder.name to mini"
        )
    tables = {
        "encoder": recipe.distillation or recipe.encoder_training,
        "quantizer": recipe.quantizer_training,
        "decoder": recipe.decoder_training,
    }
    described = [name for name, table in tables.items() if table is not None]
    wanted = described if stage == "all" else [stage]
    if not wanted or not set(wanted) <= set(described):
        raise BadInput(
            f"the recipe has no table that trains {stage!r}: add {stage}_training, or train what it has "
            f"({', '.join(described) or 'nothing'})"
        )
    return wanted


def _require_splits(recipe: Recipe) -> None:
    """Refuse data without a split that training needs, before anything is encoded."""
    there = open_dataset(recipe.data.format, recipe.data.root, recipe.data.datasets).splits()
    if recipe.data.train not in ("train", *there):
        raise BadInput(f"{recipe.data.root} has no split {recipe.data.train!r}: set data.train to train")
    for split in ("train", "val"):
        if split not in there and f"union_{split}" not in there:
            raise BadInput(
                f"{recipe.data.root} has no split {split!r} (it has {', '.join(there) or 'none'}): training "
                "needs train and val, so move a tenth of the queries to the one that is missing"
            )


def _scaled(optimiser: OptimiserConfig, train: Pairs, what: str) -> OptimiserConfig:
    """The optimiser for as many queries as there are; what changes is said."""
    fitted = fit_to_data(optimiser, train.queries)
    if fitted != optimiser and distributed.is_main():
        console.print(
            f"{what}: {train.queries} queries, so batches of {fitted.batch} instead of {optimiser.batch} and "
            f"{fitted.steps} steps instead of {optimiser.steps}",
            highlight=False,
        )
    return fitted


def _data(recipe: Recipe, split: str, *, stage_0: bool = False) -> TrainingSet:
    """A split of the recipe's data: the stage's part of train, as much of val as the recipe wants."""
    table = recipe.data
    dataset = open_dataset(table.format, table.root, table.datasets)
    if split == "train":
        train = read_training_set(dataset, table.train, defaults=table.default_instructions)
        if table.held_out:
            train = split_queries(train, table.held_out, held_out=not stage_0)
        if table.train_items and not stage_0:
            train = limit_items(train, table.train_items)
        return without_unused(train)
    return read_training_set(
        dataset, split, chosen=True, most_queries=table.val_queries, most_items=table.val_items
    )


def _encoder(recipe: Recipe, folder: Path, device: torch.device) -> None:
    """Stage 0: an encoder in `folder`/model."""
    table = recipe.encoder_training
    splits = Splits(_data(recipe, "train", stage_0=True), _data(recipe, "val"))
    encoder = _initial_encoder(recipe, device)
    resident = recipe.distillation is not None or (table is not None and table.resident)
    images = SplitImages.of(encoder, splits, device, resident=resident)
    unreadable = images.train.unreadable
    if not resident:  # they are decoded in training, where a batch needs its pairs whole
        unreadable = unreadable_images(splits.train.images, encoder.preprocess, folder / "features")
    splits = Splits(
        _without_unreadable("train", splits.train, unreadable),
        _without_unreadable("val", splits.val, images.val.unreadable),
    )
    teacher, texts = None, None
    if recipe.distillation is not None:
        assert isinstance(encoder, mini.MiniEncoder)  # `stages_to_train` refuses others
        balance = 1.0 if table is None else table.balance
        distilled = distil_mini(
            encoder, recipe.distillation, splits, images,
            balance=balance, folder=folder, seed=recipe.seed, device=device,
        )  # fmt: skip
        texts = distilled.texts
        teacher = distilled.teacher if table is not None and table.teacher_weight else None
    if table is not None:
        train_stage(
            encoder, table, splits, images,
            folder=folder, seed=recipe.seed, device=device, teacher=teacher, texts=texts,
        )  # fmt: skip
    if distributed.is_main():
        for part in (images.train, images.val):
            _print_report(part.report)
        encoder.save(folder / "model")
        set_table(folder / "model", "encoder", {"name": recipe.encoder.name, "source": ""})


def _initial_encoder(recipe: Recipe, device: torch.device) -> AnyTrainable:
    """The encoder that is to be trained: `mini` from published towers, or one that can be loaded."""
    if recipe.start is not None:
        start = recipe.start
        return distill.start(Path(start.image), Path(start.text), start.dropout, str(device))
    loaded = load_encoder(recipe.encoder.name, recipe.encoder.source or None, str(device))
    if not isinstance(loaded, AnyTrainable):
        raise BadInput(f"encoder {recipe.encoder.name!r} cannot be trained: use clip, blip or mini")
    return loaded


def _record_encoder(recipe: Recipe, model: Path) -> None:
    """Write the recipe's encoder into model.toml, unless one was trained there; `mini` is copied in."""
    name, source = recipe.encoder.name, recipe.encoder.source
    recorded = read_model_toml(model).get("encoder")
    if recipe.distillation or recipe.encoder_training:
        if recorded is None:
            raise BadInput(f"no encoder in {model}: train it first (genius train encoder, or all)")
        return
    if name == "mini":
        own = Path(source) if source else mini.EMBEDDED
        mini.MiniEncoder.open(own)  # raises unless it is a mini encoder
        model.mkdir(parents=True, exist_ok=True)
        for file in (mini.WEIGHTS, mini.TOKENIZER):
            shutil.copyfile(own / file, model / file)
        source = ""
    elif Path(source).exists():
        source = str(Path(source).resolve())
    set_table(model, "encoder", {"name": name, "source": source})


def _load_encoder(model: Path, device: torch.device) -> Encoder:
    """The encoder that the model folder holds or names."""
    table = read_model_toml(model)["encoder"]
    encoder = load_encoder(table["name"], table["source"] or model, str(device))
    if isinstance(encoder, FusingEncoder):
        raise BadInput(f"encoder {table['name']!r} fuses by itself: stages 1 and 2 need two towers")
    return encoder


def _pairs(
    recipe: Recipe, encoder: Encoder, split: str, folder: Path, device: torch.device
) -> tuple[Pairs, str]:
    """Queries and items of a split with their vectors, on the device, and the digest of the data."""
    data, report = _data(recipe, split), Report()
    kept = Path(recipe.data.features) if recipe.data.features else folder / "vectors"
    images, texts = encode_set(encoder, data, kept, report)
    _print_report(report)
    data = _without_unreadable(split, data, np.flatnonzero(~images.any(axis=1)).tolist())
    return pairs_of(data, images, texts).to(device), data.digest


def _without_unreadable(split: str, data: TrainingSet, rows: Sequence[int]) -> TrainingSet:
    """`data` without what needs the images in these rows, which are counted and the first one named."""
    if not rows:
        return data
    readable = without_images(data, np.array(rows))
    if distributed.is_main():
        console.print(
            f"{split}: {len(rows)} images cannot be read, {printable(data.images[rows[0]])} first; left out: "
            f"{len(data.item_ids) - len(readable.item_ids)} items, "
            f"{len(data.query_ids) - len(readable.query_ids)} queries",
            markup=False, highlight=False,
        )  # fmt: skip
    return readable


def _print_report(report: Report) -> None:
    for line in report.lines():
        console.print(line, markup=False, highlight=False)


def _quantizer(recipe: Recipe, folder: Path, train: Pairs, val: Pairs, inputs: Mapping[str, str]) -> None:
    """Stage 1 into `folder`/model; `inputs` say what the vectors are of and which encoder made them."""
    shape, table = recipe.quantizer, recipe.quantizer_training
    assert table is not None
    torch.manual_seed(recipe.seed)
    quantizer = Quantizer(
        train.dim, code_sizes(shape.levels, shape.codes, shape.modality), fusion=shape.fusion,
        modality=shape.modality, shared_codebooks=shape.shared_codebooks,
        encode_beam=table.encode_beam, dropout=shape.dropout,
    ).to(train.device)  # fmt: skip
    values = {name: getattr(table, name) for name in QuantizerObjective.__dataclass_fields__}
    trained = train_quantizer(
        quantizer, train.balanced(table.balance), val, _scaled(table.optimiser, train, "quantizer"),
        QuantizerObjective(**values),
        folder=folder / "quantizer", seed=recipe.seed, kmeans_sample=table.kmeans_sample,
        refine_rounds=table.refine_rounds, least_purity=table.least_purity,
        tuning=table.tuning,
        notes={**inputs, "balance": table.balance},
    )  # fmt: skip
    if distributed.is_main():
        console.print(trained.health.table())
        console.print("quantizer on val: " + "  ".join(f"{k} {v:.4g}" for k, v in trained.figures.items()))
        set_table(folder / "model", "quantizer", save_quantizer(quantizer, folder / "model"))


def _decoder(recipe: Recipe, folder: Path, train: Pairs, val: Pairs, inputs: Mapping[str, str]) -> None:
    """Stage 2 into `folder`/model, on the quantizer found there; `inputs` as in stage 1."""
    shape, table, model = recipe.decoder, recipe.decoder_training, folder / "model"
    assert table is not None
    described = read_model_toml(model).get("quantizer")
    if described is None:
        raise BadInput(f"no quantizer in {model}: train it first (genius train quantizer, or all)")
    quantizer = load_quantizer(model, described, train.device)
    built = DecoderShape.preset(
        shape.preset, quantizer.dim, quantizer.sizes,
        shape.prefix, shape.dropout, shape.normalise, shape.query_logits,
    )  # fmt: skip
    decoder = fresh_decoder(built, quantizer.residual.codebooks(), recipe.seed, table.row_scale)
    soft = None
    if table.targets == "soft":
        soft = SoftTargetOptions(
            **{name: getattr(table, name) for name in SoftTargetOptions.__dataclass_fields__}
        )
    rivals = Rivals(weight=table.ranking, count=table.rivals) if table.ranking else None
    objective = DecoderObjective(
        table.augmentation, table.alpha, table.plain, soft, rivals, table.indexing, table.balance
    )  # fmt: skip
    train_decoder(
        decoder.to(train.device), quantizer, train, val,
        _scaled(table.optimiser, train, "decoder"), objective,
        folder=folder / "decoder", seed=recipe.seed, notes={**inputs, "row_scale": table.row_scale},
    )  # fmt: skip
    if distributed.is_main():
        set_table(model, "decoder", save_decoder(decoder, model))
