"""The paper's ablations on one's own data: train each variant, evaluate it, show its effect with an interval.

Variants differ from the base recipe in a value or two; all share the encoder and its cached vectors, and
those that change the decoder only share the base's quantizer. Beams need no training. The paper's effects
stand beside ours: data and sizes differ, so signs and order can be compared, levels cannot. Whatever was
trained or evaluated before is not done again, and the outcome is saved after each variant.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from genius.config import Recipe, load_recipe
from genius.data.base import Row
from genius.errors import BadInput, TrainingStopped
from genius.evaluate.compare import compare_entries, figures_of
from genius.evaluate.protocol import RowFigures, mean_over_rows
from genius.evaluate.results import Results
from genius.evaluate.variants import Variant
from genius.files import storage_errors, write_file

SYSTEMS = ("genius", "decoder+codes")
RECIPE = "recipe.json"
STOPPED = "stopped.txt"  # why the training of a variant ended by itself
Train = Callable[[Recipe, str, Path], None]  # recipe, stage, folder: leaves folder/model
Evaluate = Callable[[Path, int], Results]  # model's folder, beam (0: as it has it): runs SYSTEMS
Save = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Work:
    """How models are made and measured."""

    train: Train
    evaluate: Evaluate
    say: Callable[[str], None]
    save: Save = lambda outcome: None


def run_ablations(
    recipe: Path, overrides: Sequence[str], variants: Sequence[Variant], folder: Path, seeds: int, work: Work
) -> dict[str, Any]:
    """Train and evaluate the base recipe and every variant under each seed; plain values.

    Effects are paired over queries, each query's figure being its mean over the seeds.
    """
    shared = [*overrides, f"data.features={folder / 'vectors'}"]
    base_recipe = load_recipe(recipe, shared)
    told = load_recipe(recipe, list(overrides)).model_dump(mode="json")
    outcome: dict[str, Any] = {"recipe": told, "seeds": seeds, "variants": []}
    work.say("training and evaluating the base recipe")
    base: list[Results] = []
    for seed in range(seeds):
        changed = load_recipe(recipe, [*shared, f"seed={base_recipe.seed + seed}"])
        model = _trained(changed, changed, _place(folder, "base", seed), None, work)
        base.append(work.evaluate(model, 0))
    outcome |= _about(base)
    work.save(outcome)
    for variant in variants:
        work.say(f"training and evaluating: {variant.name}" if not variant.beam else variant.name)
        start = time.perf_counter()
        try:
            found = [
                work.evaluate(
                    _model(variant, recipe, shared, base_recipe.seed + n, n, folder, work), variant.beam
                )
                for n in range(seeds)
            ]
        except TrainingStopped as error:
            effect = {"stopped": str(error)}
        else:
            effect = _effect(variant, base, found)
        about = asdict(variant) | {"minutes": (time.perf_counter() - start) / 60}
        outcome["variants"].append(about | effect)
        work.save(outcome)
    return outcome


def merged(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Outcomes of runs that shared the work, as one; of a variant that several have, the first counts.

    A variant keeps the base it was compared with where that was trained anew: `base` beside its effects.
    """
    first = outcomes[0]
    for other in outcomes[1:]:
        for what in ("setting", "split", "data", "limit", "seeds"):
            if other[what] != first[what]:
                raise BadInput(f"ablations of different runs: {what} is {first[what]} and {other[what]}")
        if _without_paths(other["recipe"]) != _without_paths(first["recipe"]):
            raise BadInput("ablations of different recipes cannot be put together: run them with one recipe")
    found: dict[str, Any] = {}
    for outcome in outcomes:
        own = {} if outcome["base"] == first["base"] else {"base": outcome["base"]}
        for variant in outcome["variants"]:
            found.setdefault(variant["name"], {**variant, **own})
    return {**first, "variants": list(found.values())}


def _without_paths(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {**recipe, "data": {k: v for k, v in recipe["data"].items() if k not in ("root", "features")}}


def _model(
    variant: Variant, recipe: Path, shared: Sequence[str], seed: int, number: int, folder: Path, work: Work
) -> Path:
    """The model of a variant under one seed; a change of the beam is one of the base's search."""
    base = _place(folder, "base", number)
    if variant.beam:
        return base / "model"
    seeded = [*shared, f"seed={seed}"]
    place = _place(folder, variant.folder, number)
    before = load_recipe(recipe, seeded)
    return _trained(load_recipe(recipe, [*seeded, *variant.overrides]), before, place, base, work)


def _place(folder: Path, name: str, number: int) -> Path:
    return folder / (f"{name}-seed{number}" if number else name)


def _trained(recipe: Recipe, before: Recipe, folder: Path, base: Path | None, work: Work) -> Path:
    """The model's folder. One that is there is kept; a quantizer that would be the base's again is copied."""
    model, stopped = folder / "model", folder / STOPPED
    _note_recipe(recipe, folder / RECIPE)
    if stopped.exists():
        raise TrainingStopped(stopped.read_text(encoding="utf-8"))
    if (model / "decoder.safetensors").exists():
        return model
    stage = "all"
    tables = ("quantizer", "quantizer_training")
    if base is not None and all(getattr(recipe, name) == getattr(before, name) for name in tables):
        stage = "decoder"
        own = shutil.ignore_patterns("decoder.safetensors")
        with storage_errors(model):
            shutil.copytree(base / "model", model, ignore=own, dirs_exist_ok=True)
    try:
        work.train(recipe, stage, folder)
    except TrainingStopped as error:
        write_file(stopped, [str(error).encode()])
        raise
    return model


def _note_recipe(recipe: Recipe, file: Path) -> None:
    """Keep the recipe beside its model; a model of another recipe is not taken for this one's."""
    text = recipe.model_dump_json(indent=1)
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise BadInput(f"{file.parent} holds a model of another recipe: remove it, or choose another --to")
    with storage_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, [text.encode()])


def _about(base: Sequence[Results]) -> dict[str, Any]:
    """What the effects are measured against."""
    first = base[0]
    means = {}
    for system in SYSTEMS:
        mean = mean_over_rows(list(averaged(base, system).values()))
        means[system] = {"mean": mean["headline"], "interval": mean["interval"]}
    return {
        "base": means,
        "setting": first.setting,
        "split": first.split,
        "data": first.data,
        "limit": first.limit,
        "versions": dict(first.versions),
    }


def _effect(variant: Variant, base: Sequence[Results], found: Sequence[Results]) -> dict[str, Any]:
    effects = {}
    for system in SYSTEMS:
        mine, before = averaged(found, system), averaged(base, system)
        against = compare_entries(mine, before, (variant.name, "base")).mean
        by_seed = [
            compare_entries(averaged([a], system), averaged([b], system), (variant.name, "base")).mean.value
            for a, b in zip(found, base, strict=True)
        ]
        effects[system] = {
            "mean": mean_over_rows(list(mine.values()))["headline"],
            "difference": against.value,
            "interval": list(against.interval),
            "verdict": against.verdict,
            "by_seed": by_seed,
        }
    return {"effects": effects}


def averaged(results: Sequence[Results], system: str) -> dict[Row, RowFigures]:
    """The figures of a system by row, each query's being its mean over several results."""
    all_of = [figures_of(each, system) for each in results]
    return {
        row: replace(
            figures,
            values={
                name: np.mean([each[row].values[name] for each in all_of], axis=0) for name in figures.values
            },
        )
        for row, figures in all_of[0].items()
    }
