"""Faults 37, 38: a disk that fails during repair, and a repair beside an open index."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from genius.errors import IndexMismatch, StorageError
from genius.store.check import check, repair
from genius.store.connection import INDEX_FILE
from genius.store.index import Index
from genius.store.repair import REPAIRED, finish_repair

STATE = {f"item-{n:03d}": n for n in range(120)}


@pytest.fixture
def damaged(worker, tmp_path):
    """An index with a damaged item, part of it still in the journal."""
    folder = tmp_path / "index"
    worker.create(folder)
    with Index.open(folder) as index:
        index.add([worker.record(id, number) for id, number in STATE.items()])
        index.compact()
    damage(folder, "item-020")
    return folder


def damage(folder, id):
    connection = sqlite3.connect(folder / INDEX_FILE)
    connection.execute("UPDATE items SET text = 'another' WHERE id = ?", (id,))
    connection.commit()
    connection.close()


@pytest.fixture(scope="module")
def failing_io(tmp_path_factory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    library = tmp_path_factory.mktemp("preload") / "failing_io.so"
    source = Path(__file__).with_name("failing_io.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.parametrize("forever", [False, True], ids=["once", "from-then-on"])
def test_the_disk_fails_during_repair(worker, damaged, failing_io, forever):
    """At whatever write or fsync it fails: the old files are whole, or the new one is complete."""
    left = {id: number for id, number in STATE.items() if id != "item-020"}
    before = (damaged / INDEX_FILE).read_bytes()
    refused = 0
    for attempt in range(1, 60, 3):
        folder = shutil.copytree(damaged, damaged.with_name(f"copy-{attempt}"))
        environment = {
            **os.environ,
            "LD_PRELOAD": str(failing_io),
            "FAIL_UNDER": str(folder),
            "FAIL_AT": str(attempt),
            **({"FAIL_FOREVER": "1"} if forever else {}),
        }
        command = [sys.executable, worker.__file__, str(folder), "repair"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        if done.returncode:
            refused += 1
            assert "StorageError" in done.stderr and str(folder) in done.stderr, done.stderr
        if not (folder / "damaged-1.sqlite").exists():
            assert (folder / INDEX_FILE).read_bytes() == before
            repair(folder)
        with Index.open(folder) as index:
            assert worker.visible(index) == worker.expected(left), attempt
        assert check(folder).clean
        assert len(list(folder.glob("damaged-*.sqlite"))) == 1
        shutil.rmtree(folder)
    assert refused > 3


def test_the_damaged_file_keeps_its_journal(worker, damaged):
    """What was set aside can be looked at again: the journal lies beside it, under the same name."""
    with Index.open(damaged) as index:
        index.add([worker.record("late", 700)])
        for ending in ("", "-wal"):
            shutil.copyfile(damaged / (INDEX_FILE + ending), damaged / ("kept" + ending))
    for ending in ("", "-wal"):
        (damaged / ("kept" + ending)).replace(damaged / (INDEX_FILE + ending))
    _, salvage = repair(damaged)
    assert salvage.damaged is not None and salvage.lost == ["item-020"]
    connection = sqlite3.connect(salvage.damaged)
    assert connection.execute("SELECT count(*) FROM items WHERE id = 'late'").fetchone() == (1,)
    connection.close()
    with Index.open(damaged) as index:
        assert "late" in worker.visible(index)
    damage(damaged, "item-030")
    _, second = repair(damaged)
    assert second.damaged not in (None, salvage.damaged) and salvage.damaged.exists()


def test_a_journal_that_is_left_goes_with_the_damaged_file(damaged):
    """Beside the new file it would be replayed onto that one."""
    shutil.copyfile(damaged / INDEX_FILE, damaged / REPAIRED)
    (damaged / INDEX_FILE).replace(damaged / "damaged-1.sqlite")
    (damaged / (INDEX_FILE + "-wal")).write_bytes(b"journal")
    finish_repair(damaged)
    assert not (damaged / (INDEX_FILE + "-wal")).exists()
    assert (damaged / "damaged-1.sqlite-wal").read_bytes() == b"journal"


def test_an_open_index_goes_on_in_the_repaired_file(worker, damaged):
    left = {id: number for id, number in STATE.items() if id != "item-020"}
    with Index.open(damaged) as server:
        server.snapshot()
        subprocess.run([sys.executable, worker.__file__, str(damaged), "repair"], check=True)
        server.add([worker.record("after", 901)])
        assert worker.visible(server) == worker.expected(left | {"after": 901})
        server.remove(["item-001"])
        server.compact()
    del left["item-001"]
    with Index.open(damaged) as index:  # nothing that was acknowledged is lost
        assert worker.visible(index) == worker.expected(left | {"after": 901})
    assert check(damaged).clean


def test_a_reader_sees_the_repaired_file_at_its_next_search(worker, damaged):
    left = {id: number for id, number in STATE.items() if id != "item-020"}
    with Index.open(damaged) as reader:
        reader.snapshot()
        repair(damaged)
        assert worker.visible(reader) == worker.expected(left)


def test_a_file_that_is_gone_or_another_index_is_not_written_to(worker, damaged, tmp_path):
    with Index.open(damaged) as server:
        server.snapshot()
        (damaged / INDEX_FILE).rename(tmp_path / "aside")
        with pytest.raises(StorageError, match="is gone"):
            server.add([worker.record("after", 901)])
        (damaged / "index.sqlite-wal").unlink(missing_ok=True)
        (damaged / "index.sqlite-shm").unlink(missing_ok=True)
        Index.create(damaged, model="other", fingerprint="0" * 64, sizes=worker.SIZES, dim=worker.DIM)
        with pytest.raises(IndexMismatch, match="open it again"):
            server.add([worker.record("after", 901)])
    with Index.open(damaged) as index:
        assert worker.visible(index) == {}


def test_steps_of_a_server_beside_a_repair_in_another_process(worker, damaged):
    """The worker adds, a repair comes in between, it adds again: both are there."""
    steps = [("add", [["first", 801]]), ("add", [["second", 802]])]
    command = [sys.executable, worker.__file__, str(damaged), json.dumps(steps)]
    process = subprocess.Popen([*command, "slow"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    while process.stdout.readline() != "done 0\n":
        pass
    repair(damaged)
    out, _ = process.communicate("\n", timeout=60)
    assert "done 1" in out
    with Index.open(damaged) as index:
        assert {"first", "second"} <= worker.visible(index).keys()
