"""Works on an index until it is killed; also the records and the reading that the store's fault tests share.

Run as a program it takes a folder and a JSON list of operations, and writes lines before and after each:
`begin N`, then `done N` once the operation is acknowledged, or `failed N reason`. It needs no torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from genius.errors import StorageError
from genius.search.trie import Trie
from genius.store.check import repair
from genius.store.index import Index
from genius.store.records import Record
from genius.types import Modality

SIZES = (3, 16, 16, 16)
DIM = 8

State = dict[str, int]  # id -> number that codes and vector follow from
Operation = tuple[str, list[Any]]


def create(folder: Path) -> None:
    Index.create(folder, model="fake", fingerprint="f" * 64, sizes=SIZES, dim=DIM)


def record(id: str, number: int) -> Record:
    noise = np.random.default_rng(number)
    codes = np.array([number % 3, *noise.integers(0, 16, 3)], dtype=np.uint16)
    vector = noise.standard_normal(DIM).astype(np.float16)
    return Record(id, list(Modality)[number % 3], codes, vector, text=f"text {number} " + "x" * 200)


def apply(state: State, operation: Operation) -> State:
    """What the operation makes of a state: the oracle."""
    name, values = operation
    if name == "add":
        return state | dict(values)
    if name == "remove":
        return {id: number for id, number in state.items() if id not in values}
    return state


def perform(index: Index, operation: Operation) -> None:
    name, values = operation
    if name == "add":
        index.add([record(id, number) for id, number in values])
    elif name == "remove":
        index.remove(values)
    elif name == "compact":
        index.compact()
    elif name == "rebuild":
        index.rebuild()


def visible(index: Index) -> dict[str, tuple[Any, ...]]:
    """What a search can see, by id: read through the generation and the delta, texts from the truth."""
    snapshot = index.snapshot()
    places = np.flatnonzero(snapshot.alive())
    rows = [*snapshot.runs.rows(places).tolist(), *snapshot.delta.rows.tolist()]
    trie = Trie.from_arrays(snapshot.generation.arrays)
    settled = np.empty((trie.items, len(trie.sizes)), np.uint16)
    settled[trie.rows(slice(None))] = trie.codes(np.arange(trie.items))
    codes = [*settled[places], *snapshot.delta.codes]
    vectors = [*snapshot.generation.large["vectors"][places], *snapshot.vectors]
    records = index.truth.records(rows)
    seen = {
        records[row].id: (tuple(code.tolist()), vector.tobytes(), records[row].text)
        for row, code, vector in zip(rows, codes, vectors, strict=True)
    }
    assert len(seen) == len(rows), "an id was seen twice"
    return seen


def expected(state: State) -> dict[str, tuple[Any, ...]]:
    """What must be visible in a state."""
    made = [record(id, number) for id, number in state.items()]
    return {one.id: (tuple(one.codes.tolist()), one.vector.tobytes(), one.text) for one in made}


def random_operations(seed: int, count: int) -> list[Operation]:
    """Mostly adds of a few items, some new and some known; now and then a removal or a compaction."""
    noise = np.random.default_rng(seed)
    operations: list[Operation] = []
    for step in range(count):
        kind = noise.choice(["add", "remove", "compact"], p=[0.8, 0.1, 0.1])
        ids = [f"item-{n}" for n in noise.integers(0, 200, noise.integers(1, 8))]
        if kind == "add":
            operations.append(("add", [[id, int(1000 * seed + 10 * step + n)] for n, id in enumerate(ids)]))
        else:
            operations.append((str(kind), ids if kind == "remove" else []))
    return operations


def work(folder: Path, operations: Iterable[Operation], *, slow: bool = False) -> None:
    """Perform the operations; when `slow`, each waits for a line on stdin."""
    with Index.open(folder) as index:
        for number, operation in enumerate(operations):
            if slow:
                sys.stdin.readline()
            print(f"begin {number}", flush=True)
            try:
                perform(index, operation)
            except StorageError as error:
                print(f"failed {number} {error}", flush=True)
            else:
                print(f"done {number}", flush=True)


if __name__ == "__main__":
    if sys.argv[2] == "repair":
        repair(Path(sys.argv[1]))
    elif sys.argv[2] == "random":
        work(Path(sys.argv[1]), random_operations(int(sys.argv[3]), 2000))
    else:
        if "create" in sys.argv[3:]:
            create(Path(sys.argv[1]))
            print("created", flush=True)
        work(Path(sys.argv[1]), json.loads(sys.argv[2]), slow="slow" in sys.argv[3:])
