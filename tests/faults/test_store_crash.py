"""Faults 1, 2, 3: SIGKILL at random moments and named places: the old state or the new one, never a mix."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from genius.failpoints import VARIABLE
from genius.store import schema
from genius.store.check import check
from genius.store.index import Index

TRIALS = 50


def start(worker, folder, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, worker.__file__, str(folder), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def states_after(worker, state, operations, lines):
    """The states that the acknowledgements allow: one, or two when an operation was begun and not ended."""
    done = [int(line.split()[1]) for line in lines if line.startswith("done ")]
    for number in done:
        state = worker.apply(state, operations[number])
    begun = [int(line.split()[1]) for line in lines if line.startswith("begin ")]
    if len(begun) > len(done):
        return [state, worker.apply(state, operations[begun[-1]])]
    return [state]


def settle(worker, folder, states):
    """The one allowed state the index is in, seen through the cache as left, a fresh one, and `check`."""
    with Index.open(folder) as index:
        seen = worker.visible(index)
        assert seen in [worker.expected(state) for state in states]
        index.rebuild()
        assert worker.visible(index) == seen
    assert check(folder).clean
    return next(state for state in states if worker.expected(state) == seen)


def test_sigkill_at_random_moments(worker, tmp_path):
    folder = tmp_path / "index"
    worker.create(folder)
    state: dict[str, int] = {}
    acknowledged = 0
    chance = random.Random(7)
    for trial in range(TRIALS):
        operations = worker.random_operations(trial, 2000)
        process = start(worker, folder, "random", str(trial))
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(chance.uniform(0, 0.12))
        process.send_signal(signal.SIGKILL)
        lines = [first, *process.stdout.read().splitlines()]
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
        states = states_after(worker, state, operations, lines)
        acknowledged += sum(line.startswith("done ") for line in lines)
        state = settle(worker, folder, states)
    assert acknowledged > TRIALS  # the kills fell into work, not before it


ADD = ("add", [["a", 901], ["item-3", 902]])
PLACES = [
    ("before-commit", ADD),
    ("after-commit", ADD),
    ("during-remove", ("remove", ["item-1", "item-2"])),
    ("before-commit", ("remove", ["item-1", "item-2"])),
    ("after-commit", ("remove", ["item-1", "item-2"])),
    *(
        (place, (operation, []))
        for operation in ("compact", "rebuild")
        for place in (
            "before-build",
            "during-build",
            "after-cache-write",
            "before-rename",
            "after-rename",
            "before-generation-commit",
            "before-commit",
            "after-commit",
        )
    ),
]


@pytest.mark.parametrize(
    ("place", "operation"), PLACES, ids=lambda value: value[0] if isinstance(value, tuple) else value
)
def test_sigkill_at_each_failpoint(worker, tmp_path, place, operation):
    folder = tmp_path / "index"
    worker.create(folder)
    with Index.open(folder) as index:
        first = ("add", [[f"item-{n}", n] for n in range(20)])
        changes = [("compact", []), ("add", [["item-5", 805], ["new", 806]]), ("remove", ["item-7"])]
        state: dict[str, int] = {}
        for step in [first, *changes]:
            worker.perform(index, step)
            state = worker.apply(state, step)
    process = start(worker, folder, json.dumps([operation]), **{VARIABLE: place})
    out, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, "the failpoint was not reached"
    assert out.splitlines() == ["begin 0"]
    old, new = state, worker.apply(state, operation)
    state = settle(worker, folder, [new] if place == "after-commit" else [old, new])
    with Index.open(folder) as index:  # and it goes on working
        worker.perform(index, operation)
        assert worker.visible(index) == worker.expected(worker.apply(state, operation))


def make_version_1(file):
    """Take an index back to the tables of version 1."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("DROP TABLE removed")
    connection.execute("DROP TABLE thumbnails")
    connection.execute("PRAGMA user_version = 1")
    connection.execute("COMMIT")
    connection.close()


@pytest.mark.parametrize("place", ["during-migration", "before-migration-commit", "after-commit"])
def test_sigkill_during_migration(worker, tmp_path, place):
    folder = tmp_path / "index"
    worker.create(folder)
    state = {f"item-{n}": n for n in range(10)}
    with Index.open(folder) as index:
        index.add([worker.record(id, number) for id, number in state.items()])
        index.compact()
    make_version_1(folder / "index.sqlite")
    process = start(worker, folder, "[]", **{VARIABLE: place})
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    connection = sqlite3.connect(folder / "index.sqlite")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    assert version == (schema.VERSION if place == "after-commit" else 1)
    assert ("removed" in tables) == ("thumbnails" in tables) == (version == schema.VERSION)
    assert settle(worker, folder, [state]) == state
