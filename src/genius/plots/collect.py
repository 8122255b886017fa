"""The pictures that need a model and data: what codes mean, and where vectors lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Dataset
from genius.evaluate.catalog import BenchModel
from genius.evaluate.contents import ABSENT, MODALITIES, Contents, Progress, read_items
from genius.evaluate.encoding import open_or_none
from genius.evaluate.evaluation import Evaluation
from genius.evaluate.measure import Place
from genius.plots.codes import grid, groups
from genius.plots.maps import Floats, maps
from genius.plots.report import Picture
from genius.plots.style import png

MAPPED = 1500  # vectors of items and of queries on a map


def code_pictures(
    dataset: Dataset, model: BenchModel, split: str, place: Place, levels: Sequence[int],
    progress: Progress | None = None,
) -> list[Picture]:  # fmt: skip
    """A grid for each level: the codes that most items share, with images and texts under them."""
    evaluation = _evaluation(dataset, model, split, place, progress)
    contents = read_items(dataset.pool(split), fuses=evaluation.encoding.fuses)
    pool = evaluation.encoding.pool(contents)
    row_of = {name: row for row, name in enumerate(contents.ids)}
    rows = [row_of[name] for name in pool.ids]
    files, words = _sources(contents, rows)
    has_image = np.array([file is not None for file in files])
    has_text = np.array([bool(text) for text in words])
    made = []
    for level in levels:
        shown = groups(pool.codes, has_image, has_text, level)
        picture = grid(shown, lambda row: open_or_none(files[row]), lambda row: words[row])
        caption = f"Items that share a code at level {level} ({len(pool):,} items, {split} split)."
        made.append(Picture(f"codes-level-{level}", caption, png(picture)))
    return made


def map_picture(
    dataset: Dataset, models: Sequence[tuple[str, BenchModel]], split: str, place: Place,
    progress: Progress | None = None,
) -> Picture:  # fmt: skip
    """Quantized vectors of queries and items under each model, a panel each."""
    panels: dict[str, tuple[Floats, list[str]]] = {}
    for name, model in models:
        evaluation = _evaluation(dataset, model, split, place, progress)
        pool, questions, _ = evaluation.all_at_once()
        items = _spread(len(pool), MAPPED)
        asked = _spread(len(questions), MAPPED)
        codes = model.quantizer.codes_of(questions.z[asked], _level0(model)[questions.want[asked]])
        vectors = [model.quantizer.vectors_of(pool.codes[items]), model.quantizer.vectors_of(codes)]
        kinds = [str(MODALITIES[m]) for m in pool.modality[items]] + ["query"] * len(asked)
        panels[name] = (np.concatenate(vectors), kinds)
    caption = "Quantized vectors of items and queries on their two main axes."
    return Picture("map", caption, png(maps(panels, "Where quantized vectors lie")))


def _evaluation(
    dataset: Dataset, model: BenchModel, split: str, place: Place, progress: Progress | None
) -> Evaluation:
    return Evaluation(
        dataset, model, setting="universal", split=split, cache=place.cache, limit=100, progress=progress
    )


def _sources(contents: Contents, rows: Sequence[int]) -> tuple[list[Path | None], list[str | None]]:
    files: list[Path | None] = []
    words: list[str | None] = []
    for row in rows:
        image, text = contents.image[row], contents.text[row]
        files.append(contents.sources[image][0] if image != ABSENT else None)
        unit = image if text == ABSENT else text  # a fusing encoder keeps both in one unit
        words.append(contents.sources[unit][1] if unit != ABSENT else None)
    return files, words


def _level0(model: BenchModel) -> NDArray[np.int64]:
    codes = dict(getattr(model, "modality_codes", {}))
    return np.array([codes.get(modality, number) for number, modality in enumerate(MODALITIES)])


def _spread(count: int, most: int) -> NDArray[np.int64]:
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)
