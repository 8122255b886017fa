"""Several processes find answers side by side; the evaluation that follows takes them from the cache.

Nothing depends on this: what a failed or stopped job leaves open is found by the evaluation itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from genius.data.base import open_dataset
from genius.errors import GeniusError
from genius.evaluate.catalog import LEARNING, names_of
from genius.evaluate.measure import Asked, Place, measure


@dataclass(frozen=True, slots=True)
class Source:
    """Data and model by name, so that another process can open them."""

    layout: str
    root: Path
    datasets: tuple[str, ...]
    model: str


def jobs_of(systems: str, settings: Sequence[Asked]) -> list[tuple[str, list[Asked]]]:
    """Systems and settings in groups that can be searched side by side, the longest work first.

    Baselines that learn stay together: the second setting uses what was trained for the first.
    """
    names = names_of(",".join(word for word in systems.split(",") if "=" not in word))
    learning = [name for name in names if name in LEARNING]
    alone = [name for name in names if name == "genius"]  # every code is decoded: the longest search
    rest = [name for name in names if name not in (*learning, *alone)]
    jobs = [(learning, list(settings)), *((group, [asked]) for group in (alone, rest) for asked in settings)]
    return [(",".join(group), asked) for group, asked in jobs if group]


def find_answers(
    source: Source,
    systems: str,
    settings: Sequence[Asked],
    place: Place,
    processes: int,
    say: Callable[[str], None],
) -> None:
    """Fill the cache of answers for all systems and settings with several processes.

    Vectors and codes have to be cached already: one process writes them.
    """
    context = get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_one_thread) as pool:
        jobs = jobs_of(systems, settings)
        waiting = {pool.submit(_find, source, group, asked, place): group for group, asked in jobs}
        for done in as_completed(waiting):
            try:
                done.result()
                say(f"found: {waiting[done]}")
            except (GeniusError, BrokenProcessPool, OSError) as error:
                say(f"{waiting[done]}: {error}; its answers are found again, one after the other")


def _find(source: Source, systems: str, settings: Sequence[Asked], place: Place) -> None:
    dataset = open_dataset(source.layout, source.root, source.datasets)
    for asked in settings:
        measure(dataset, source.root.name, source.model, systems, asked, replace(place, runs=None), _say)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _one_thread() -> None:
    """As many processes as cores: each has one."""
    import torch

    torch.set_num_threads(1)
