"""IRGen: images as residual codes, generated from the query (Zhang et al., ECCV 2024), text -> image.

Kept: a few residual codes per image, learned from images alone (no modality level, nothing that draws a query
and its image together), and a decoder that generates them. Not kept: the tokenizer trained with class labels
(plain residual k-means here), the large vision encoder and decoder. Text queries replace image queries, as
the paper does for its comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from genius.evaluate.baselines.grace import IMAGE, TEXT_TO_IMAGE
from genius.evaluate.baselines.identifiers import Floats, Identifiers, residual_codes
from genius.evaluate.baselines.memorizing import Memorizing
from genius.evaluate.baselines.schooling import Schooling
from genius.evaluate.examples import Examples


def irgen(
    examples: Callable[[], Examples],
    levels: int = 4,
    size: int = 256,
    schooling: Schooling = Schooling(),  # noqa: B008 (frozen)
    device: str = "cpu",
    folder: Path | None = None,
) -> Memorizing:
    """IRGen with `levels` codes out of `size` each."""

    def identify(vectors: Floats, names: Sequence[str]) -> Identifiers:
        return residual_codes(vectors, levels, size)

    return Memorizing("irgen", identify, examples, TEXT_TO_IMAGE, IMAGE, schooling, device, folder)
