"""The ablations of a recipe: one change each, and what the paper says that change does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from genius.config import Recipe
from genius.errors import BadInput
from genius.evaluate import published_ablations as paper
from genius.evaluate.published_ablations import effect

LEVELS, CODES, BEAMS = (5, 7, 9), (256, 1024, 4096), (1, 5, 10, 20, 30, 50)


@dataclass(frozen=True, slots=True)
class Variant:
    """One change to the recipe, or to the beam of the search."""

    name: str
    table: str  # of the paper, or "ours"
    overrides: tuple[str, ...] = ()
    paper: float | None = None  # effect of the same change there, mean over its five columns, in points
    beam: int = 0  # of the decoder's search; 0: as the model has it. Nothing is trained for another beam

    @property
    def folder(self) -> str:
        """Where its model is kept."""
        return self.name.replace(" ", "-")


def variants_of(recipe: Recipe, beam: int) -> list[Variant]:
    """All variants that differ from `recipe`, whose decoder searches with `beam`.

    The paper's effect is that of the same change, so it depends on where the recipe starts: fewer codes than
    4096 if it has 4096, more than 256 if it has 256.
    """
    shape = recipe.quantizer
    start = paper.CODEBOOKS.get((shape.codes, shape.levels))
    universal = paper.GENIUS_UNIVERSAL
    found = [
        Variant(
            "no modality level",
            "Table 4",
            ("quantizer.modality=none",),
            effect(paper.NO_MODALITY_LEVEL, universal),
        ),
        Variant(
            "modality by classifier",
            "supplement Table 3",
            ("quantizer.modality=classifier", "quantizer_training.least_purity=0.0"),  # its errors count
            effect(paper.CLASSIFIER, universal),
        ),
        Variant(
            "no query augmentation",
            "Table 4",
            ("decoder_training.augmentation=none",),
            effect(paper.NO_AUGMENTATION, universal),
        ),
        Variant(
            "no contrastive loss",
            "Table 4",
            ("quantizer_training.contrastive=0.0",),
            effect(paper.NO_CONTRASTIVE, universal),
        ),
        Variant(
            "no agreement loss",
            "Table 4",
            ("quantizer_training.agreement=0.0",),
            effect(paper.NO_AGREEMENT, universal),
        ),
        Variant(
            "one codebook for all levels",
            "supplement Table 6",
            ("quantizer.shared_codebooks=true",),
            effect(paper.SHARED, paper.GENIUS_LOCAL),
        ),
    ]
    for levels in LEVELS:
        for codes in CODES:
            overrides = (f"quantizer.levels={levels}", f"quantizer.codes={codes}")
            known = effect(paper.CODEBOOKS.get((codes, levels)), start)
            found.append(Variant(f"{levels} levels of {codes} codes", "Table 5", overrides, known))
    for preset in ("mini", *paper.DECODERS):
        known = effect(paper.DECODERS.get(preset), paper.DECODERS.get(recipe.decoder.preset))
        name, override = f"decoder of {preset} size", f"decoder.preset={preset}"
        found.append(Variant(name, "supplement Table 5", (override,), known))
    found += [
        Variant("15 levels of 256 codes", "ours", ("quantizer.levels=15", "quantizer.codes=256")),
        Variant("hard targets", "ours", ("decoder_training.targets=hard",)),
        Variant("no fusion", "ours", ("quantizer.fusion=sum",)),
    ]
    for width in BEAMS:
        known = effect(paper.BEAMS[width], paper.BEAMS.get(beam))
        found.append(Variant(f"beam {width}", "supplement Table 4", (), known, width))
    return [variant for variant in found if not _same(variant, recipe, beam)]


def chosen_variants(names: str, among: Sequence[Variant]) -> list[Variant]:
    """The variants in a list by comma; all but the largest decoders for an empty one.

    `all` are all of them; a name may also be the start of several: `beam`, `decoder`.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        return [variant for variant in among if variant.name not in LARGE]
    if wanted == ["all"]:
        return list(among)
    found: dict[str, Variant] = {}
    for name in wanted:
        exact = [v for v in among if v.name == name]
        meant = exact or [v for v in among if v.name.startswith(f"{name} ")]
        if not meant:
            known = ", ".join(variant.name for variant in among)
            raise BadInput(f"no ablation called {name!r}: choose from {known}")
        found |= {variant.name: variant for variant in meant}
    return list(found.values())


LARGE = frozenset({"decoder of t5-base size", "decoder of t5-large size"})  # hours without a large GPU


def _same(variant: Variant, recipe: Recipe, beam: int) -> bool:
    """Whether the recipe has the variant's values already."""
    if variant.beam:
        return variant.beam == beam
    for override in variant.overrides:
        path, _, value = override.partition("=")
        held: object = recipe
        for name in path.split("."):
            held = getattr(held, name, None)
        if str(held).lower() != value.lower():
            return False
    return True
