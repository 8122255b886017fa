"""DSI and NCI: texts memorized under paths of hierarchical k-means clusters, text -> text.

Kept: identifiers that are paths in a tree of clusters (Tay et al., 2022; 10 branches) with codes that mean
something else at each level (NCI, Wang et al., 2022), joint learning of indexing and retrieval, constrained
beam search. Not kept: the pretrained T5 that reads words (here the encoder's vectors), the queries that NCI
generates for every text, its prefix-aware decoder weights and its regularizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from genius.evaluate.baselines.identifiers import Floats, Identifiers, cluster_paths
from genius.evaluate.baselines.memorizing import Memorizing
from genius.evaluate.baselines.schooling import Schooling
from genius.evaluate.examples import Examples

TEXT_TO_TEXT = frozenset({1})
TEXT = 1  # in the order of Modality


def dsi(
    examples: Callable[[], Examples],
    schooling: Schooling = Schooling(),  # noqa: B008 (frozen)
    device: str = "cpu",
    folder: Path | None = None,
) -> Memorizing:
    """DSI / NCI with cluster paths."""

    def identify(vectors: Floats, names: Sequence[str]) -> Identifiers:
        return cluster_paths(vectors)

    return Memorizing("dsi-nci", identify, examples, TEXT_TO_TEXT, TEXT, schooling, device, folder)
