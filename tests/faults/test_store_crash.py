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
import zlib
from dataclasses import replace

import pytest

from genius.failpoints import VARIABLE
from genius.store import schema
from genius.store.check import check, repair
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
    assert acknowledged > TRIALS // 4  # the kills fell into work, also on a busy machine


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


def crc(*fields):
    """The checksum of versions 1 and 2."""
    total = 0
    for value in fields:
        data = b"-" if value is None else value.encode() if isinstance(value, str) else value
        total = zlib.crc32(data if value is None else b"%d:%b" % (len(data), data), total)
    return total


def make_older(file, version):
    """Take an index back to the tables of an older version."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("DROP TABLE passages")
    if version < 3:
        content = "id, modality, path, text, source, meta, hash"
        for row, codes, vector, *values in connection.execute(
            f"SELECT row, codes, vector, {content} FROM items"
        ).fetchall():
            sums = (crc(*values), crc(codes, vector), row)
            connection.execute("UPDATE items SET content_sum = ?, codes_sum = ? WHERE row = ?", sums)
        connection.execute("ALTER TABLE meta DROP COLUMN sum")
        connection.execute("ALTER TABLE thumbnails DROP COLUMN sum")
        connection.execute("DELETE FROM meta WHERE key IN ('last_row', 'removed')")
        connection.execute("INSERT INTO meta VALUES ('uuid', '\"abc\"')")
    if version == 1:
        connection.execute("DROP TABLE removed")
        connection.execute("DROP TABLE thumbnails")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.execute("COMMIT")
    connection.close()


STATE = {f"item-{n}": n for n in range(10)}


@pytest.fixture
def older(worker, tmp_path):
    """Makes an index as an older version left it: a generation, after version 1 a delta and a tombstone."""

    def make(version):
        folder = tmp_path / "index"
        worker.create(folder)
        with Index.open(folder) as index:
            index.add([worker.record(id, number) for id, number in STATE.items() if number < 8])
            index.compact()
            if version > 1:
                index.add([replace(worker.record("gone", 99), thumbnail=b"\xff\xd8\xff small")])
                index.remove(["gone", "item-1"])
            jpeg = b"\xff\xd8\xff small" if version > 1 else None
            index.add([replace(worker.record("item-8", 8), thumbnail=jpeg), worker.record("item-9", 9)])
            if version == 1:
                index.compact()
        make_older(folder / "index.sqlite", version)
        left = {id: number for id, number in STATE.items() if version == 1 or id != "item-1"}
        return folder, left

    return make


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_index_of_an_older_version_opens_and_works(worker, older, version):
    folder, state = older(version)
    with Index.open(folder) as index:
        assert worker.visible(index) == worker.expected(state)
        row, _ = index.truth.record("item-8")
        assert index.truth.thumbnail(row) == (b"\xff\xd8\xff small" if version > 1 else None)
        index.add([worker.record("new", 77)])
        index.remove(["item-2"])
        assert index.truth.record("new")[0] > row  # row numbers go on
    assert check(folder).clean
    del state["item-2"]
    assert settle(worker, folder, [state | {"new": 77}])


@pytest.mark.parametrize("version", [1, 2, 3])
def test_damage_from_before_a_migration_is_still_damage(worker, older, version):
    folder, state = older(version)
    connection = sqlite3.connect(folder / "index.sqlite")
    connection.execute("UPDATE items SET text = 'another' WHERE id = 'item-3'")
    connection.execute("UPDATE items SET id = CAST(id AS BLOB) WHERE id = 'item-4'")  # had the same checksum
    connection.commit()
    connection.close()
    assert check(folder).truth
    _, salvage = repair(folder)
    assert salvage.saved == len(state) - 2
    assert check(folder).clean


def test_a_damaged_index_of_an_older_version_is_repaired(worker, older):
    folder, state = older(2)
    data = bytearray((folder / "index.sqlite").read_bytes())
    data[:100] = bytes(100)
    (folder / "index.sqlite").write_bytes(data)
    _, salvage = repair(folder)
    assert salvage.lost == []
    assert settle(worker, folder, [state]) == state


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("place", ["during-migration", "before-migration-commit", "after-commit"])
def test_sigkill_during_migration(worker, older, place, version):
    folder, state = older(version)
    process = start(worker, folder, "[]", **{VARIABLE: place})
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    connection = sqlite3.connect(folder / "index.sqlite")
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    assert found == (schema.VERSION if place == "after-commit" else version)
    assert ("passages" in tables) == (found == schema.VERSION)
    assert settle(worker, folder, [state]) == state
