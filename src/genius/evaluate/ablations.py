"""The paper's ablations on one's own data: train each variant, evaluate it, show its effect with an interval.

Variants differ from the base recipe in a value or two; all share the encoder and its cached embeddings, and
those that change the decoder only share the base's quantizer. Beams need no training. The paper's effects
stand beside ours: data and sizes differ, so signs and order can be compared, levels cannot. Whatever was
trained or evaluated before is not done again, and the outcome is saved after each variant: several processes
may train different variants in one folder, and a last run over all of them collects their effects. The
outcome says which commands trained its models: one, unless parts were put together.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from genius.config import Recipe, load_recipe
from genius.errors import BadInput, TrainingStopped
from genius.evaluate.paper import effect, paper
from genius.evaluate.protocol import mean_over_rows
from genius.evaluate.results import Results, compare_rows
from genius.evaluate.systems import TRAINED
from genius.evaluate.training_seeds import averaged, over_seeds
from genius.files import storage_errors, write_file

SYSTEMS = ("genius", "decoder+codes")
LEVELS, CODES = (5, 7, 9), (256, 1024, 4096)
LARGE = frozenset({"decoder of t5-base size", "decoder of t5-large size"})  # hours without a large GPU
RECIPE = "recipe.json"
STOPPED = "stopped.txt"  # why the training of a variant ended by itself
TRAINED_BY = "trained_by.json"  # command and commit


@dataclass(frozen=True, slots=True)
class Variant:
    """One change to the recipe, or to the beam of the search."""

    name: str
    table: str  # of the paper, or "ours"
    overrides: tuple[str, ...] = ()
    paper: float | None = None  # effect of the same change there, mean over its five columns, in points
    beam: int = 0  # of the decoder's search; 0: as the model has it. Nothing is trained for another beam


def variants_of(recipe: Recipe, beam: int) -> list[Variant]:
    """All variants that differ from `recipe`, whose decoder searches with `beam`.

    The paper's effect is that of the same change, so it depends on where the recipe starts: fewer codes than
    4096 if it has 4096, more than 256 if it has 256.
    """
    printed = paper()["ablations"]
    codebooks, decoders, beams = printed["codebooks"], printed["decoders"], printed["beams"]
    found = [
        Variant(c["name"], c["table"], tuple(c["overrides"]), effect(c["values"], printed[c["base"]]))
        for c in printed["changes"]
    ]
    start = codebooks.get(f"{recipe.quantizer.codes}x{recipe.quantizer.levels}")
    for levels in LEVELS:
        for codes in CODES:
            overrides = (f"quantizer.levels={levels}", f"quantizer.codes={codes}")
            known = effect(codebooks.get(f"{codes}x{levels}"), start)
            found.append(Variant(f"{levels} levels of {codes} codes", "Table 5", overrides, known))
    for preset in ("mini", *decoders):
        known = effect(decoders.get(preset), decoders.get(recipe.decoder.preset))
        name, override = f"decoder of {preset} size", f"decoder.preset={preset}"
        found.append(Variant(name, "supplement Table 5", (override,), known))
    found += [Variant(name, "ours", overrides) for name, overrides in _own_changes(recipe)]
    for width, values in beams.items():
        known = effect(values, beams.get(str(beam)))
        found.append(Variant(f"beam {width}", "supplement Table 4", (), known, int(width)))
    return [variant for variant in found if not _is_base(variant, recipe, beam)]


def _own_changes(recipe: Recipe) -> list[tuple[str, tuple[str, ...]]]:
    """Changes that the paper does not have: what our own recipes add to it, left out one by one."""
    changes = [
        ("15 levels of 256 codes", ("quantizer.levels=15", "quantizer.codes=256")),
        ("no fusion", ("quantizer.fusion=sum",)),
        ("small fusion", ("quantizer.fusion=small",)),
        ("items encoded greedily", ("quantizer_training.encode_beam=1",)),
        ("no refined codebooks", ("quantizer_training.refine_rounds=0",)),
        ("hard targets", ("decoder_training.targets=hard",)),
        ("query augmentation as released", ("decoder_training.augmentation=released",)),
        ("no plain queries", ("decoder_training.plain=0.0",)),
    ]
    if recipe.decoder_training is not None and recipe.decoder_training.targets == "soft":
        changes += [
            ("targets around the item alone", ("decoder_training.toward_query=0.0",)),
            ("targets with a fifth of the hard code", ("decoder_training.hard_share=0.2",)),
            ("targets of perplexity 12", ("decoder_training.perplexity=12.0",)),
        ]
    return changes


def _is_base(variant: Variant, recipe: Recipe, beam: int) -> bool:
    """Whether the recipe has the variant's values already."""
    if variant.beam:
        return variant.beam == beam
    for override in variant.overrides:
        path, _, value = override.partition("=")
        current: object = recipe
        for name in path.split("."):
            current = getattr(current, name, None)
        if str(current).lower() != value.lower():
            return False
    return True


def choose_variants(names: str, among: Sequence[Variant]) -> list[Variant]:
    """The variants in a list by comma; all but the largest decoders for an empty one.

    `all` are all of them, `none` is none; a name may also be the beginning of several: `beam`, `decoder`.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if wanted == ["none"]:
        return []
    if not wanted:
        return [variant for variant in among if variant.name not in LARGE]
    if wanted == ["all"]:
        return list(among)
    found: dict[str, Variant] = {}
    for name in wanted:
        exact = [v for v in among if v.name == name]
        matching = exact or [v for v in among if v.name.startswith(f"{name} ")]
        if not matching:
            known = ", ".join(variant.name for variant in among)
            raise BadInput(f"no ablation called {name!r}: choose from {known}")
        found |= {variant.name: variant for variant in matching}
    return list(found.values())


@dataclass(frozen=True, slots=True)
class AblationRunner:
    """Trains and evaluates the base recipe and its variants under `folder`, once for each seed."""

    recipe: Path
    overrides: Sequence[str]
    folder: Path
    seeds: int
    train: Callable[[Recipe, str, Path], None]  # recipe, stage, folder: leaves folder/model
    evaluate: Callable[[Path, int, Sequence[str]], Results]  # model's folder, beam (0: as it has it), systems
    log: Callable[[str], None]
    save: Callable[[Mapping[str, Any]], None] = lambda outcome: None
    command: Mapping[str, Any] = field(default_factory=dict)  # this run: command and commit
    compare: Sequence[str] = ()  # systems that are compared over the seeds of the base, ours and others

    def run(self, variants: Sequence[Variant]) -> dict[str, Any]:
        """The outcome as plain values; effects are paired over queries, each averaged over the seeds."""
        recipe = load_recipe(self.recipe, list(self.overrides)).model_dump(mode="json")
        outcome: dict[str, Any] = {"recipe": recipe, "seeds": self.seeds, "trained_by": [], "variants": []}
        self.log("training and evaluating the base recipe")
        models = [self._model(None, seed) for seed in range(self.seeds)]
        base = [self.evaluate(model, 0, SYSTEMS) for model in models]
        outcome |= _describe(base)
        self._note_commands(outcome, None)
        if self.compare:
            outcome["over_seeds"] = self._over_seeds(models)
        self.save(outcome)
        for variant in variants:
            self.log(variant.name if variant.beam else f"training and evaluating: {variant.name}")
            start = time.perf_counter()
            measured: dict[str, Any]
            try:
                changed = [
                    self.evaluate(self._model(variant, seed), variant.beam, SYSTEMS)
                    for seed in range(self.seeds)
                ]
                measured = {"effects": _effects(variant, base, changed)}
            except TrainingStopped as error:
                measured = {"stopped": str(error)}
            minutes = (time.perf_counter() - start) / 60
            self._note_commands(outcome, variant)
            outcome["variants"].append(asdict(variant) | {"minutes": minutes} | measured)
            self.save(outcome)
        return outcome

    def _over_seeds(self, models: Sequence[Path]) -> dict[str, Any]:
        """The systems of `compare`: those that training changes with each model, the others once."""
        own = [name for name in self.compare if name in TRAINED]
        others = [name for name in self.compare if name not in TRAINED]
        if not own or not others:
            raise BadInput(f"--compare needs some of {', '.join(TRAINED)}, and others to compare them with")
        self.log(f"comparing {', '.join(self.compare)} over {len(models)} seeds of training")
        return over_seeds(
            [self.evaluate(model, 0, own) for model in models], self.evaluate(models[0], 0, others)
        )

    def _recipe(self, seed: int, variant: Variant | None) -> Recipe:
        shared = [*self.overrides, f"data.features={self.folder / 'vectors'}"]
        first = load_recipe(self.recipe, shared).seed
        changes = () if variant is None else variant.overrides
        return load_recipe(self.recipe, [*shared, f"seed={first + seed}", *changes])

    def _folder(self, variant: Variant | None, seed: int) -> Path:
        name = "base" if variant is None or variant.beam else variant.name.replace(" ", "-")
        return self.folder / (f"{name}-seed{seed}" if seed else name)

    def _note_commands(self, outcome: dict[str, Any], variant: Variant | None) -> None:
        """Add the commands that trained the models of a variant, each once."""
        folders = [self._folder(variant, seed) for seed in range(self.seeds)]
        for folder in folders:
            if not folder.is_dir():  # the training of an earlier seed stopped by itself
                continue
            file = folder / TRAINED_BY
            by = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            if by not in outcome["trained_by"]:
                outcome["trained_by"].append(by)

    def _model(self, variant: Variant | None, seed: int) -> Path:
        """The folder of a variant's model (None: the base's), trained unless it is there.

        A variant that changes the beam only is the base; one that changes the decoder only starts from a
        copy of the base's quantizer.
        """
        base, folder = self._folder(None, seed), self._folder(variant, seed)
        recipe = self._recipe(seed, None if folder == base else variant)
        model, stopped = folder / "model", folder / STOPPED
        _check_recipe(recipe, folder / RECIPE)
        if stopped.exists():
            raise TrainingStopped(stopped.read_text(encoding="utf-8"))
        if (model / "decoder.safetensors").exists():
            return model
        write_file(folder / TRAINED_BY, [json.dumps(self.command).encode()])
        stage, before = "all", self._recipe(seed, None)
        tables = ("quantizer", "quantizer_training")
        if folder != base and all(getattr(recipe, name) == getattr(before, name) for name in tables):
            stage = "decoder"
            ignore = shutil.ignore_patterns("decoder.safetensors")
            with storage_errors(model):
                shutil.copytree(base / "model", model, ignore=ignore, dirs_exist_ok=True)
        try:
            self.train(recipe, stage, folder)
        except TrainingStopped as error:
            write_file(stopped, [str(error).encode()])
            raise
        return model


def _check_recipe(recipe: Recipe, file: Path) -> None:
    """Keep the recipe beside its model; refuse a folder with a model of another recipe."""
    text = recipe.model_dump_json(indent=1)
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise BadInput(f"{file.parent} holds a model of another recipe: remove it, or choose another --to")
    with storage_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, [text.encode()])


def _describe(base: Sequence[Results]) -> dict[str, Any]:
    """What the effects are measured against."""
    first = base[0]
    means = {system: mean_over_rows(list(averaged(base, system).values())) for system in SYSTEMS}
    return {
        "base": {s: {"mean": mean["headline"], "interval": mean["interval"]} for s, mean in means.items()},
        "setting": first.setting,
        "split": first.split,
        "data": first.data,
        "limit": first.limit,
        "versions": dict(first.versions),
    }


def _effects(variant: Variant, base: Sequence[Results], changed: Sequence[Results]) -> dict[str, Any]:
    names = (variant.name, "base")
    effects = {}
    for system in SYSTEMS:
        metrics = averaged(changed, system)
        difference = compare_rows(metrics, averaged(base, system), names).mean
        effects[system] = {
            "mean": mean_over_rows(list(metrics.values()))["headline"],
            **difference.as_json(),
            "by_seed": [
                compare_rows(a.metrics_of(system), b.metrics_of(system), names).mean.value
                for a, b in zip(changed, base, strict=True)
            ],
        }
    return effects
