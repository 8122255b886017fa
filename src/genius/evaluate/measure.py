"""From names to results: loads model and encoders, says what it will cost, runs the systems asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from genius.data.base import Dataset
from genius.evaluate.baselines.exact import Exact
from genius.evaluate.baselines.schooling import Schooling
from genius.evaluate.catalog import BenchModel, Setup, make_systems, names_of
from genius.evaluate.contents import Progress
from genius.evaluate.encoder_only import load_encoder_only, split_source
from genius.evaluate.encoding import Embedding
from genius.evaluate.estimate import available_memory, size
from genius.evaluate.evaluation import Evaluation
from genius.evaluate.results import Results

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """How the queries are asked."""

    setting: str = "universal"
    split: str = "test"
    limit: int = 0
    all_instructions: bool = False
    seeds: int = 1  # of systems that start at random
    beam: int = 0  # of searches by the decoder; 0: the model's


@dataclass(frozen=True, slots=True)
class Place:
    """Where the work is done and kept."""

    cache: Path
    device: str = "cpu"
    runs: Path | None = None  # folder for TREC run files
    schooling: Schooling = field(default_factory=Schooling)  # of baselines that learn


def measure(
    dataset: Dataset,
    data: str,
    model: str | BenchModel,
    systems: str,
    asked: Asked,
    place: Place,
    say: Say,
    progress: Progress | None = None,
) -> Results:
    """Results of `systems` (names, sets, `clip-sf=FOLDER`, by comma); `data` is what the results call it."""
    words = [word.strip() for word in systems.split(",") if word.strip()]
    encoders = [found for word in words if (found := split_source(word))]
    names = [word for word in words if not split_source(word)]
    wanted = names_of(",".join(names)) if names or not encoders else []
    parts: list[Results] = []
    if wanted:
        loaded = load_model(model, place.device) if isinstance(model, str) else model
        evaluation = _evaluation(dataset, loaded, asked, place, say, progress)
        folder = place.cache / "decoders"
        setup = Setup(
            loaded,
            dataset,
            evaluation.encoding,
            folder,
            place.device,
            place.schooling,
            asked.split,
            asked.beam,
        )
        label = model if isinstance(model, str) else str(getattr(model, "name", "model"))
        labels = {"data": data, "model": label, "recipe": getattr(loaded, "recipe", None)}
        made = make_systems(wanted, setup, asked.seeds)
        parts.append(evaluation.run(made, names=labels, runs=place.runs, say=say))
    for name, source in encoders:
        encoder = load_encoder_only(name, source, place.device)
        evaluation = _evaluation(dataset, encoder, asked, place, say, progress)
        labels = {"data": data, "model": name}
        parts.append(evaluation.run([Exact(place.device, name)], names=labels, runs=place.runs, say=say))
    return replace(
        parts[0],
        entries=[entry for part in parts for entry in part.entries],
        systems_used={name: settings for part in parts for name, settings in part.systems_used.items()},
    )


def load_model(name: str, device: str) -> BenchModel:
    """The model called `name`, or in the folder `name`."""
    from genius.model import Model

    loaded: BenchModel = Model.load(name, device)
    return loaded


def pick_device(name: str) -> str:
    """`name`, or for auto the GPU if there is one."""
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _evaluation(
    dataset: Dataset, model: Embedding, asked: Asked, place: Place, say: Say, progress: Progress | None
) -> Evaluation:
    say(f"reading queries and {asked.setting} pools; known files are told by their content")
    evaluation = Evaluation(
        dataset, model, setting=asked.setting, split=asked.split, cache=place.cache,
        all_instructions=asked.all_instructions, limit=asked.limit, progress=progress,
    )  # fmt: skip
    estimate = evaluation.estimate()
    say(estimate.line())
    free: Any = available_memory()
    if estimate.memory > free // 2:
        say(f"that is more than half of the free memory ({size(free)}): vectors are mapped from disk")
    return evaluation
