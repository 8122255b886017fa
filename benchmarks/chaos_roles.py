"""The processes that chaos.py starts and kills: writers and readers of one index, one JSON line per event.

    python benchmarks/chaos_roles.py write FOLDER NAMESPACE SEED
    python benchmarks/chaos_roles.py read FOLDER NAMESPACE,NAMESPACE

Events carry the system's monotonic clock, which all processes share.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from genius.engine import Engine
from genius.errors import GeniusError
from genius.types import Item

IDS = 24  # of one namespace; all namespaces together stay below the 200 hits a search may have
COLOURS = ("red", "green", "blue", "yellow", "white")
ASK = {"k": 200, "want": "text", "beam": 500}


def item(namespace: str, number: int, version: int) -> Item:
    """Number `number` of a namespace; its text tells the version."""
    id = f"{namespace}-{number}"
    return Item(id, text=f"{id} version {version} {COLOURS[(number + version) % len(COLOURS)]}")


def version_of(text: str | None) -> int:
    """The version that a text tells."""
    return int((text or "").split()[2])


def found(hits: Iterable[Any]) -> dict[str, dict[str, int]]:
    """The items of an answer by namespace; hits have an id and a text."""
    answer: dict[str, dict[str, int]] = {}
    for hit in hits:
        answer.setdefault(hit.id.split("-")[0], {})[hit.id] = version_of(hit.text)
    return answer


def stored(folder: Path, namespace: str, patience: float = 60.0) -> dict[str, int]:
    """What the file has of a namespace, read by SQLite itself."""
    end = time.monotonic() + patience
    while True:
        try:
            with closing(sqlite3.connect(f"file:{folder / 'index.sqlite'}?mode=ro", uri=True)) as truth:
                rows = truth.execute(
                    "SELECT id, text FROM items WHERE id GLOB ?", (f"{namespace}-*",)
                ).fetchall()
                return {id: version_of(text) for id, text in rows}
        except sqlite3.OperationalError:  # busy, or no room on the disk
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def next_operation(chance: random.Random, namespace: str, version: int) -> dict[str, Any]:
    """What a writer does next: ids with the version they get (None: they go), or a compaction."""
    if chance.random() < 0.08:
        return {"compact": True, "items": {}}
    numbers = chance.sample(range(IDS), chance.randint(1, 6))
    gone = chance.random() < 0.25
    return {"items": {f"{namespace}-{number}": None if gone else version for number in numbers}}


def apply(operation: dict[str, Any], items: dict[str, int]) -> dict[str, int]:
    """The items after an operation."""
    for id, version in operation["items"].items():
        if version is None:
            items.pop(id, None)
        else:
            items[id] = version
    return items


def tell(event: str, **more: Any) -> None:
    """One line on stdout, at once."""
    print(json.dumps({"event": event, "at": time.monotonic(), **more}), flush=True)


def write(folder: Path, namespace: str, seed: int) -> None:
    """Change the items of a namespace until killed; says what it begins and how it ended."""
    chance = random.Random(seed)
    with Engine.open(folder) as engine:
        engine.warm()
        tell("ready", items=stored(folder, namespace))
        for step in range(10**9):
            operation = next_operation(chance, namespace, seed * 10_000 + step)
            tell("begin", operation=operation)
            try:
                do(engine, operation)
            except GeniusError as error:
                tell("failed", error=type(error).__name__, message=str(error))
                tell("settled", items=stored(folder, namespace))
                time.sleep(chance.uniform(0.1, 1.0))
            else:
                tell("done")
            time.sleep(chance.uniform(0.0, 0.3))


def do(engine: Engine, operation: dict[str, Any]) -> None:
    """One operation, through the engine."""
    if operation.get("compact"):
        engine.compact()
        return
    gone = [id for id, version in operation["items"].items() if version is None]
    if gone:
        engine.remove(gone)
        return
    numbered = [(id.split("-"), version) for id, version in operation["items"].items()]
    report = engine.add([item(name, int(number), version) for (name, number), version in numbered]).report
    assert not report.skipped, report.names


def read(folder: Path) -> None:
    """Ask for everything until killed."""
    chance = random.Random(0)
    with Engine.open(folder) as engine:
        engine.warm()
        tell("ready")
        while True:
            asked = time.monotonic()
            try:
                rerank = chance.choice(("vectors", "codes"))
                hits = engine.search(chance.choice(COLOURS), rerank=rerank, **ASK)  # type: ignore[arg-type]
            except GeniusError as error:
                tell("failed", error=type(error).__name__, message=str(error))
                time.sleep(0.5)
            else:
                tell("answer", asked=asked, found=found(hits))
            time.sleep(chance.uniform(0.0, 0.1))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        read(Path(sys.argv[2]))
