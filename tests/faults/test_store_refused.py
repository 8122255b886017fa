"""Faults 9, 10: a second writer is told who the first is; other versions and models are refused."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys

import pytest

from genius.errors import IndexCorrupt, IndexLocked, IndexMismatch
from genius.store import schema
from genius.store.connection import INDEX_FILE
from genius.store.index import Index

HOLD = """
import sys, time
from pathlib import Path
from genius.store.index import Index
with Index.open(Path(sys.argv[1])) as index, index.writing():
    print("holding", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_told_who_holds_the_lock_and_readers_go_on(worker, tmp_path):
    worker.create(tmp_path)
    with Index.open(tmp_path) as index:
        index.add([worker.record("a", 1)])
        index.compact()
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "holding\n"
        with Index.open(tmp_path) as index:
            for attempt in (
                lambda: index.add([worker.record("b", 2)]),
                lambda: index.remove(["a"]),
                index.compact,
            ):
                with pytest.raises(IndexLocked, match=f"process {holder.pid} on ") as caught:
                    attempt()
                assert caught.value.exit_code == 7
            assert worker.visible(index) == worker.expected({"a": 1})
            generation = tmp_path / "generation-000001"
            (generation / "records.bin").write_bytes(b"")
        with Index.open(tmp_path) as index:  # the cache cannot be published now, so it is built in memory
            assert worker.visible(index) == worker.expected({"a": 1})
            assert index.pinned().number == 1
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    with Index.open(tmp_path) as index:  # the lock died with its holder
        index.add([worker.record("b", 2)])
        assert worker.visible(index) == worker.expected({"a": 1, "b": 2})


def test_readers_keep_their_generation_while_another_process_compacts(worker, tmp_path):
    worker.create(tmp_path)
    with Index.open(tmp_path) as reader:
        reader.add([worker.record("a", 1)])
        reader.compact()
        before = reader.snapshot()
        command = [sys.executable, worker.__file__, str(tmp_path)]
        steps = [("add", [["b", 2]]), ("compact", []), ("remove", ["a"]), ("compact", [])]
        subprocess.run([*command, json.dumps(steps)], check=True, capture_output=True)
        assert before.runs.rows(before.runs.place[:1]).tolist() == [1]
        assert (tmp_path / "generation-000001").exists()
        assert worker.visible(reader) == worker.expected({"b": 2})


def test_a_newer_version_is_refused_with_the_cure(worker, tmp_path):
    worker.create(tmp_path)
    connection = sqlite3.connect(tmp_path / INDEX_FILE)
    connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    connection.close()
    with pytest.raises(IndexMismatch, match="pip install --upgrade genius-search"):
        Index.open(tmp_path)


def test_a_foreign_database_is_not_taken_for_an_index(tmp_path):
    connection = sqlite3.connect(tmp_path / INDEX_FILE)
    connection.execute("CREATE TABLE theirs (x)")
    connection.commit()
    connection.close()
    with pytest.raises(IndexCorrupt):
        Index.open(tmp_path)


def test_another_model_is_refused_with_the_cure(worker, tmp_path):
    worker.create(tmp_path)
    with Index.open(tmp_path) as index, pytest.raises(IndexMismatch, match="--to NEW_FOLDER --model mini"):
        index.require_model("mini", "a" * 64, worker.SIZES, worker.DIM)


def test_the_store_needs_no_torch(worker, tmp_path):
    worker.create(tmp_path)
    script = 'import sys, runpy; sys.argv[1:] = [sys.argv[1], \'[["add", [["a", 1]]], ["compact", []]]\'];'
    script += f"runpy.run_path({worker.__file__!r}, run_name='__main__'); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["begin", "0", "done", "0", "begin", "1", "done", "1"]
