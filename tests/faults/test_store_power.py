"""Fault 44: power loss. What was not fsynced is dropped; everything that was acknowledged is there."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from genius.errors import IndexNotFound
from genius.store import connection
from genius.store.check import check
from genius.store.index import Index

STEPS = [
    ("add", [[f"item-{n}", n] for n in range(6)]),
    ("add", [["late", 50]]),
    ("compact", []),
    ("add", [["item-2", 77], ["new", 78]]),
    ("remove", ["item-4"]),
    ("compact", []),
    ("add", [["last", 90]]),
]


@pytest.fixture(scope="module")
def power(load_file):
    return load_file(Path(__file__).with_name("power_loss.py"))


@pytest.fixture(scope="module")
def log(worker, power, tmp_path_factory):
    """What the worker did from the making of the index on, and the folder above it."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    scratch = tmp_path_factory.mktemp("power")
    library = scratch / "sync_log.so"
    source = Path(__file__).with_name("sync_log.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    root = scratch / "disk"
    root.mkdir()
    environment = {"LD_PRELOAD": str(library), "LOG_UNDER": str(root), "LOG_TO": str(scratch / "log")}
    folder = root / "some" / "where" / "index"
    command = [sys.executable, worker.__file__, str(folder), json.dumps(STEPS), "create"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    assert done.stdout.count("done") == len(STEPS)
    events = power.read_log(scratch / "log")
    assert sum(event.op == "sync" for event in events) > 20
    return events, root


def allowed(worker, lines):
    """The states that the acknowledgements allow; None where the index itself may be missing."""
    states = [{}]
    for line in lines:
        verdict, _, number = line.partition(" ")
        if verdict == "begin":
            states = [states[0], worker.apply(states[0], STEPS[int(number)])]
        elif verdict == "done":
            states = states[1:]
    return states if "created" in lines else None


@pytest.mark.parametrize("kept", ["nothing", "some"])
def test_acknowledged_items_survive_a_power_loss_at_any_moment(worker, power, log, tmp_path, kept):
    events, root = log
    disk, out, acknowledged = power.Disk(root), "", 0
    step = 3 if kept == "nothing" else 7
    for number, event in enumerate(events):
        if event.op == "out":
            out += event.data.decode()
        else:
            disk.see(event)
        if number % step and not (event.op == "out" and b"done" in event.data):
            continue
        target = tmp_path / str(number)
        disk.after_power_loss(target, None if kept == "nothing" else random.Random(number))
        folder = target / "some" / "where" / "index"
        states = allowed(worker, out.splitlines())
        try:
            with Index.open(folder) as index:
                seen = worker.visible(index)
        except IndexNotFound:
            assert states is None, f"the index is gone after {out.splitlines()}"
            continue
        assert seen in [worker.expected(state) for state in states or [{}]], (number, out.splitlines())
        assert check(folder).clean
        acknowledged += len(seen)
        shutil.rmtree(target)
    assert acknowledged > 50


def test_commits_are_synced_whatever_the_library_does_by_default(worker, tmp_path, monkeypatch):
    """Some builds of SQLite are less careful; the setting is ours to make."""
    worker.create(tmp_path)
    real = sqlite3.connect

    def careless(*arguments, **options):
        opened = real(*arguments, **options)
        opened.execute("PRAGMA synchronous = OFF")
        return opened

    monkeypatch.setattr(connection.sqlite3, "connect", careless)
    with Index.open(tmp_path) as index:
        assert index.truth.connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert index.truth.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
