"""The options of evaluations and their defaults, in one place for the command line, recipes and code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from genius.decode.shape import PRESETS
from genius.errors import BadInput

if TYPE_CHECKING:
    from genius.config import Recipe


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """Which queries are searched, and how."""

    setting: str = "universal"
    split: str = "test"
    limit: int = 0  # queries of each row; 0: all
    all_instructions: bool = False
    seeds: int = 1  # of systems that depend on a seed
    beam: int = 0  # of searches by the decoder; 0: the model's, or the paper's


@dataclass(frozen=True, slots=True)
class FrontierOptions:
    """What is measured at growing pool sizes."""

    systems: str = "ours,faiss"  # beside exact
    sizes: Sequence[int] = (2_000, 5_000, 16_000, 50_000, 400_000)
    beams: Sequence[int] = (1, 5, 10, 20, 50)  # to compare on the real pool
    queries: int = 20  # of each row
    split: str = "test"
    build_limit: int = 100_000  # items; in larger pools systems that are slow to build are left out


@dataclass(frozen=True, slots=True)
class GenerativeConfig:
    """Network and training of a generative baseline's decoder: by default our own decoder's in bench.toml."""

    steps: int = 8000
    batch: int = 512
    rate: float = 1e-3
    warmup: int = 100
    weight_decay: float = 0.01
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    network: tuple[int, int, int, int, int] = PRESETS["mini"]  # as in decode/shape.py
    prefix: int = 8
    dropout: float = 0.1
    noise: float = 0.4  # norm of the noise on the unit embeddings that are memorized
    memorize: float = 0.6  # share of a batch
    beam: int = 50
    queries: int = 0  # train queries of each row; 0: all
    seed: int = 0

    @classmethod
    def like_decoder(cls, recipe: Recipe) -> GenerativeConfig:
        """The network and the samples of the decoder that `recipe` trains."""
        shape, table = recipe.decoder, recipe.decoder_training
        if table is None:
            raise BadInput(f"recipe {recipe.name} trains no decoder: choose one with decoder_training")
        own = table.optimiser
        return cls(
            own.steps, own.batch, own.rate, own.warmup, own.weight_decay, own.precision,
            PRESETS[shape.preset], shape.prefix, shape.dropout,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Workspace:
    """Cache, device, and how baselines are trained there."""

    cache: Path
    device: str = "cpu"
    runs: Path | None = None  # folder for TREC run files
    generative: GenerativeConfig = field(default_factory=GenerativeConfig)
