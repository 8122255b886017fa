"""The paper's ablations as recipes: train each variant, evaluate it, show its effect with an interval.

Variants differ from the base recipe in a value or two; all share the encoder and its cached vectors. The
paper's own figures (R@5 on COCO T->I, I->T, WebQA T->T, T->(I,T), CIRR) stand beside ours as differences: the
data differ, so signs and sizes can be compared, levels cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from genius.config import Recipe, load_recipe
from genius.errors import BadInput, TrainingStopped
from genius.evaluate.compare import Comparison, compare_entries, figures_of
from genius.evaluate.protocol import mean_over_rows
from genius.evaluate.results import Results
from genius.evaluate.tables import Table

Figures = tuple[float, float, float, float, float]
UNIVERSAL: Figures = (
    55.4,
    82.7,
    28.3,
    47.1,
    20.5,
)  # GENIUS, beam 30, universal (Table 4, supplement Table 3)
LOCAL: Figures = (65.3, 83.4, 28.8, 47.4, 21.0)  # GENIUS, beam 30, local (Table 5, supplement Tables 5, 6)
SYSTEMS = ("genius", "decoder+codes")


@dataclass(frozen=True, slots=True)
class Variant:
    """One change to the recipe, and what the paper says it does."""

    name: str
    table: str
    overrides: tuple[str, ...]
    paper: Figures | None = None
    base: Figures = UNIVERSAL

    @property
    def paper_effect(self) -> float | None:
        """Mean difference over the paper's five columns, in points."""
        if self.paper is None:
            return None
        return fmean(a - b for a, b in zip(self.paper, self.base, strict=True))


VARIANTS: tuple[Variant, ...] = (
    Variant("no modality level", "Table 4", ("quantizer.modality=none",), (20.2, 73.2, 25.9, 34.3, 18.3)),
    Variant(
        "no query augmentation",
        "Table 4",
        ("decoder_training.augmentation=none",),
        (47.8, 67.7, 19.6, 38.8, 11.7),
    ),
    Variant(
        "no contrastive loss", "Table 4", ("quantizer_training.contrastive=0.0",), (0.0, 0.1, 0.0, 0.0, 0.0)
    ),
    Variant(
        "no agreement loss", "Table 4", ("quantizer_training.agreement=0.0",), (45.5, 83.1, 27.1, 35.2, 21.6)
    ),
    Variant(
        "modality by classifier",
        "supplement Table 3",
        ("quantizer.modality=classifier",),
        (48.9, 79.2, 25.7, 37.5, 20.3),
    ),
    Variant("7 levels", "Table 5", ("quantizer.levels=7",), (65.2, 82.9, 25.3, 40.8, 23.1), LOCAL),
    Variant("5 levels", "Table 5", ("quantizer.levels=5",), (62.4, 81.5, 17.3, 33.1, 20.4), LOCAL),
    Variant("1024 codes", "Table 5", ("quantizer.codes=1024",), (66.4, 82.0, 24.7, 39.4, 24.5), LOCAL),
    Variant("256 codes", "Table 5", ("quantizer.codes=256",), (61.2, 76.6, 18.3, 33.5, 18.3), LOCAL),
    Variant(
        "one codebook for all levels",
        "supplement Table 6",
        ("quantizer.shared_codebooks=true",),
        (18.6, 19.3, 0.2, 1.7, 3.3),
        LOCAL,
    ),
    Variant(
        "decoder of T5-base size",
        "supplement Table 5",
        ("decoder.preset=t5-base",),
        (67.9, 83.5, 31.6, 48.0, 18.3),
        LOCAL,
    ),
    Variant("hard targets", "ours", ("decoder_training.targets=hard",)),
    Variant("z = phi, no fusion", "ours", ("quantizer.fusion=sum",)),
)


@dataclass(frozen=True, slots=True)
class Effect:
    """What a variant reached, or why it reached nothing."""

    variant: Variant
    means: dict[str, float] = field(default_factory=dict)  # system -> headline mean
    against: dict[str, Comparison] = field(default_factory=dict)  # system -> variant against base
    stopped: str = ""


def chosen_variants(names: str) -> list[Variant]:
    """The variants in a list by comma; all of them for an empty one."""
    known = {variant.name: variant for variant in VARIANTS}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            raise BadInput(f"no ablation called {name!r}: choose from {', '.join(known)}")
    return [known[name] for name in wanted] or list(VARIANTS)


def run_ablations(
    recipe: Path,
    overrides: Sequence[str],
    variants: Sequence[Variant],
    folder: Path,
    train: Callable[[Recipe, Path], Path],
    evaluate: Callable[[Path], Results],
    say: Callable[[str], None],
) -> tuple[Results, list[Effect]]:
    """Train and evaluate the base recipe, then every variant that differs from it.

    `train` makes a model of a recipe in a folder and returns the model's folder; one that is there already
    is kept. `evaluate` gives the results of a model; it has to run the SYSTEMS of this file.
    """
    shared = [*overrides, f"data.features={folder / 'vectors'}"]
    base_recipe = load_recipe(recipe, shared)
    say("training and evaluating the base recipe")
    base = evaluate(train(base_recipe, folder / "base"))
    effects = []
    for variant in variants:
        changed = load_recipe(recipe, [*shared, *variant.overrides])
        if changed == base_recipe:
            say(f"{variant.name}: the base recipe has these values already")
            continue
        say(f"training and evaluating: {variant.name}")
        try:
            results = evaluate(train(changed, folder / variant.name.replace(" ", "-").replace(",", "")))
        except TrainingStopped as error:
            effects.append(Effect(variant, stopped=str(error)))
            continue
        effects.append(_effect(variant, base, results))
    return base, effects


def ablation_table(base: Results, effects: Sequence[Effect]) -> Table:
    """The base and each variant: mean hit rate and difference of each system, the paper's difference."""
    header = [
        "variant",
        "after",
        *(f"{s}{what}" for s in SYSTEMS for what in (" %", ", difference")),
        "paper",
    ]
    means = [f"{100 * mean_over_rows(list(figures_of(base, s).values()))['headline']:.1f}" for s in SYSTEMS]
    lines = [["base", base.model, means[0], "", means[1], "", ""]]
    notes = [
        "differences are paired over queries, with 95 % intervals; the paper's is a mean of five columns"
    ]
    for effect in effects:
        variant = effect.variant
        cells: list[str] = []
        for system in SYSTEMS:
            if effect.stopped:
                cells += ["stopped", ""]
            else:
                cells += [f"{100 * effect.means[system]:.1f}", str(effect.against[system].mean)]
        paper = variant.paper_effect
        lines.append([variant.name, variant.table, *cells, "" if paper is None else f"{paper:+.1f}"])
        if effect.stopped:
            notes.append(f"{variant.name}: training stopped by itself: {effect.stopped}")
    return Table(f"Ablations, {base.setting} pool, {base.split} split", header, lines, notes)


def _effect(variant: Variant, base: Results, results: Results) -> Effect:
    means, against = {}, {}
    for system in SYSTEMS:
        mine = figures_of(results, system)
        means[system] = float(mean_over_rows(list(mine.values()))["headline"])
        against[system] = compare_entries(mine, figures_of(base, system), (variant.name, "base"))
    return Effect(variant, means, against)
