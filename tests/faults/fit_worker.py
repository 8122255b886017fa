"""Fits an index in child processes that are killed or kept waiting, and prints what is left: one JSON object.

python fit_worker.py FOLDER

torch is imported once; the children are forks.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from genius import Engine, Item, Query
from genius.errors import IndexLocked
from genius.failpoints import VARIABLE
from genius.store.check import check

DIM, COUNT = 12, 300
PLACES = (
    "before-rename",
    "after-rename",
    "after-cache-write",
    "before-fit-commit",
    "during-fit-commit",
    "before-commit",
    "after-commit",
)


def main(root: Path) -> dict[str, Any]:
    points = np.random.default_rng(0).standard_normal((COUNT, DIM)).astype(np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    with Engine.create(root / "old", encoder="vectors", dim=DIM) as engine:
        engine.add(Item(f"i{n}", vector=point) for n, point in enumerate(points))
        engine.fit(seed=1)
    shutil.copytree(root / "old", root / "new")
    with Engine.open(root / "new") as engine:
        engine.fit(seed=2)
    states = {name: state(root / name, points) for name in ("old", "new")}
    assert states["old"] != states["new"]
    found: dict[str, Any] = {"killed": {}}
    for place in PLACES:
        folder = root / place
        shutil.copytree(root / "old", folder)
        code = os.waitstatus_to_exitcode(os.waitpid(forked(partial(fit, folder, place)), 0)[1])
        left = [name for name, known in states.items() if known == state(folder, points)]
        again = fit(folder)
        found["killed"][place] = {"code": code, "state": left, "clean": check(folder).clean, "again": again}
    return {**found, "together": together(root / "old", points)}


def state(folder: Path, points: np.ndarray) -> tuple[Any, ...]:
    """The codes of all items, in the truth and in the arrays, and some answers."""
    with Engine.open(folder) as engine:
        queries = [Query(vector=point) for point in points[:3]]
        answers = [
            [(hit.id, tuple(hit.codes)) for hit in hits] for hits in engine.search_batch(queries, k=COUNT)
        ]
        assert all(hits[0][0] == f"i{n}" for n, hits in enumerate(answers))
        return engine.index.settings["fingerprint"], *map(sorted, answers)


def fit(folder: Path, place: str = "", progress: Callable[[str, int], None] | None = None) -> int:
    os.environ[VARIABLE] = place
    with Engine.open(folder) as engine:
        return engine.fit(seed=2, progress=progress).items


def forked(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def together(folder: Path, points: np.ndarray) -> dict[str, str]:
    """What others get while a fit is at work; it ends afterwards."""
    begun, go_on = os.pipe(), os.pipe()

    def held(what: str, items: int) -> None:
        if what == "learning codes from items":
            os.write(begun[1], b"x")
            os.read(go_on[0], 1)

    child = forked(partial(fit, folder, progress=held))
    os.read(begun[0], 1)
    told = {}
    with Engine.open(folder) as engine:
        others: dict[str, Callable[[], object]] = {
            "fit": engine.fit,
            "compact": engine.compact,
            "add": lambda: engine.add([Item("more", vector=points[0])]),
            "remove": lambda: engine.remove(["i0"]),
        }
        for name, call in others.items():
            try:
                told[name] = f"done: {call()}"
            except IndexLocked as error:
                told[name] = str(error)
        told["search"] = engine.search(Query(vector=points[7]))[0].id
        os.write(go_on[1], b"x")
        assert os.waitpid(child, 0)[1] == 0
        told["then"] = str(engine.fit().items)
    return {**told, "pid": str(child)}


if __name__ == "__main__":
    signal.alarm(240)
    print(json.dumps(main(Path(sys.argv[1]))))
