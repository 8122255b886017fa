"""The figures that need a model and data: what codes mean, and a map of embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Dataset
from genius.evaluate.cache import MODALITIES, Progress, read_items
from genius.evaluate.embeddings import open_or_none
from genius.evaluate.evaluator import Evaluator
from genius.evaluate.frontier import modality_codes
from genius.evaluate.options import EvalOptions, Workspace
from genius.model import Model
from genius.plots.codes import grid, groups
from genius.plots.maps import Floats, maps
from genius.plots.report import Picture
from genius.plots.style import png

MAPPED = 1500  # items and queries on a map


def code_pictures(
    dataset: Dataset, model: Model, split: str, workspace: Workspace, levels: Sequence[int],
    progress: Progress | None = None,
) -> list[Picture]:  # fmt: skip
    """A grid for each level: the codes that most items share, with images and texts under them."""
    evaluator = _evaluator(dataset, model, split, workspace, progress)
    inputs = read_items(dataset.pool(split), fuses=evaluator.embedder.fuses)
    pool = evaluator.embedder.pool(inputs)
    row_of = {name: row for row, name in enumerate(inputs.ids)}
    files, texts = zip(*(inputs.source(row_of[name]) for name in pool.ids), strict=True)
    has_image = np.array([file is not None for file in files])
    has_text = np.array([bool(text) for text in texts])
    made = []
    for level in levels:
        shown = groups(pool.codes, has_image, has_text, level)
        picture = grid(shown, lambda row: open_or_none(files[row]), lambda row: texts[row])
        caption = f"Items that share a code at level {level} ({len(pool):,} items, {split} split)."
        made.append(Picture(f"codes-level-{level}", caption, png(picture)))
    return made


def map_picture(
    dataset: Dataset, models: Sequence[tuple[str, Model]], split: str, workspace: Workspace,
    progress: Progress | None = None,
) -> Picture:  # fmt: skip
    """Quantized embeddings of queries and items under each model, a panel each."""
    panels: dict[str, tuple[Floats, list[str]]] = {}
    for name, model in models:
        evaluator = _evaluator(dataset, model, split, workspace, progress)
        pool, queries, _ = evaluator.universal()
        items = _spread(len(pool), MAPPED)
        chosen = _spread(len(queries), MAPPED)
        codes = model.quantizer.codes_of(queries.z[chosen], modality_codes(model)[queries.want[chosen]])
        vectors = [model.quantizer.vectors_of(pool.codes[items]), model.quantizer.vectors_of(codes)]
        kinds = [str(MODALITIES[m]) for m in pool.modality[items]] + ["query"] * len(chosen)
        panels[name] = (np.concatenate(vectors), kinds)
    caption = "Quantized embeddings of items and queries on their two main axes."
    return Picture("map", caption, png(maps(panels, "Quantized embeddings")))


def _evaluator(
    dataset: Dataset, model: Model, split: str, workspace: Workspace, progress: Progress | None
) -> Evaluator:
    return Evaluator(dataset, model, EvalOptions(split=split, limit=100), workspace.cache, progress)


def _spread(count: int, most: int) -> NDArray[np.int64]:
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)
