"""How baselines that memorize their pool are built and trained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schooling:
    """Small enough for two cores. More steps, on a GPU, give such systems a better chance."""

    steps: int = 600
    batch: int = 128
    rate: float = 3e-3
    layers: int = 2
    width: int = 128
    noise: float = (
        0.4  # length of it, added to unit vectors while memorizing, so that near ones lead there too
    )
    memorize: float = 0.6  # share of a batch
    beam: int = 50
    queries: int = 0  # train queries of each row that are learned from; 0: all
    seed: int = 0
