"""Fault 39: a reader without write permission sees every commit, or says at once that it cannot."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest

from genius.errors import IndexLocked, StorageError
from genius.store import connection
from genius.store.index import Index

READ = """
import os, sys
from pathlib import Path
from genius.store.index import Index
os.setuid(65534)
with Index.open(Path(sys.argv[1])) as index:
    for _ in sys.stdin:
        snapshot = index.snapshot()
        seen = int(snapshot.alive().sum()) + len(snapshot.delta)
        print(seen, sum(index.truth.counts().values()), flush=True)
"""


@pytest.fixture
def unprivileged(monkeypatch):
    """This process may write nothing, though it is perhaps root's: opens files as such a reader would."""
    monkeypatch.setattr(connection.os, "access", lambda path, mode: mode != os.W_OK)


def count(index):
    snapshot = index.snapshot()
    return int(snapshot.alive().sum()) + len(snapshot.delta)


def write(worker, folder, steps):
    """A writer in another process that opens the index, performs the steps and closes it."""
    command = [sys.executable, worker.__file__, str(folder), json.dumps(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("done") == len(steps), done.stdout


def test_a_reader_sees_what_writers_commit_who_come_and_go(worker, tmp_path, unprivileged):
    worker.create(tmp_path)
    with Index.open(tmp_path) as reader:
        assert count(reader) == 0
        for number in range(1, 4):
            write(worker, tmp_path, [("add", [[f"a{number}", number]]), ("add", [[f"b{number}", number]])])
            assert count(reader) == 2 * number == sum(reader.truth.counts().values())
        write(worker, tmp_path, [("remove", ["a1", "b1"]), ("compact", [])])
        assert count(reader) == 4
        assert set(worker.visible(reader)) == {"a2", "b2", "a3", "b3"}
        with pytest.raises(IndexLocked), reader.truth.reading():  # changed while it is read
            write(worker, tmp_path, [("add", [["c", 9]])])
        assert count(reader) == 5


def test_a_reader_sees_the_commits_of_a_writer_that_stays(worker, tmp_path, monkeypatch):
    worker.create(tmp_path)
    with Index.open(tmp_path) as writer:
        writer.add([worker.record("a", 1)])
        monkeypatch.setattr(connection.os, "access", lambda path, mode: mode != os.W_OK)
        with Index.open(tmp_path) as reader:
            for number in range(5):
                assert count(reader) == number + 1
                writer.add([worker.record(f"b{number}", number)])
    with Index.open(tmp_path) as reader:
        assert count(reader) == 6


def test_a_reader_beside_a_busy_writer_counts_committed_states_only(worker, tmp_path, unprivileged):
    """Each step adds two items at once, so an odd number never existed."""
    worker.create(tmp_path)
    steps = [("add", [[f"a{n}", n], [f"b{n}", n]]) for n in range(150)]
    command = [sys.executable, worker.__file__, str(tmp_path), json.dumps(steps)]
    with Index.open(tmp_path) as reader:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        counts = [0]
        while process.poll() is None:
            try:
                counts.append(count(reader))
            except IndexLocked:
                continue
        assert count(reader) == 300
    assert all(number % 2 == 0 for number in counts) and counts == sorted(counts)
    assert len(set(counts)) > 3


def test_another_user_without_write_permission(worker, tmp_path):
    """The same with a real user, where this may be tried."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    folder = tmp_path / "index"
    worker.create(folder)
    for path in (folder, *folder.parents):
        made = path.is_relative_to("/tmp") or path.is_relative_to("/dev/shm")
        if made and not path.stat().st_mode & stat.S_IXOTH:
            path.chmod(0o755)
    reader = subprocess.Popen(
        [sys.executable, "-c", READ, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdin is not None and reader.stdout is not None
    for number in range(1, 4):
        write(worker, folder, [("add", [[f"a{number}", number]])])
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline().split() == [str(number)] * 2
    reader.communicate()
    assert reader.returncode == 0


def test_a_reader_cannot_write(worker, tmp_path, unprivileged):
    worker.create(tmp_path)
    with Index.open(tmp_path) as reader, pytest.raises(StorageError, match=str(tmp_path)):
        reader.add([worker.record("a", 1)])
