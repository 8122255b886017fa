"""The options of evaluations and their defaults, in one place for the command line, recipes and code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


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
    """Size and training of a generative baseline's decoder: small enough for two cores."""

    steps: int = 600
    batch: int = 128
    rate: float = 3e-3
    layers: int = 2
    width: int = 128
    noise: float = 0.4  # norm of the noise on the unit embeddings that are memorized
    memorize: float = 0.6  # share of a batch
    beam: int = 50
    queries: int = 0  # train queries of each row; 0: all
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Workspace:
    """Cache, device, and how baselines are trained there."""

    cache: Path
    device: str = "cpu"
    runs: Path | None = None  # folder for TREC run files
    generative: GenerativeConfig = field(default_factory=GenerativeConfig)
