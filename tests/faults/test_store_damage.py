"""Faults 7, 8: a damaged cache is noticed and built anew; of a damaged truth, repair saves what it can."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from genius.errors import IndexCorrupt
from genius.failpoints import VARIABLE
from genius.store.check import check, repair
from genius.store.connection import INDEX_FILE
from genius.store.index import Index

STATE = {f"item-{n:03d}": n for n in range(120)}
FILES = [
    "records.bin",
    "run_place.bin",
    "run_row.bin",
    "modality.bin",
    "vectors.bin",
    "vectors.sums.bin",
    "manifest.json",
]


@pytest.fixture(scope="module")
def whole(worker, tmp_path_factory):
    """An index with a generation, a delta and a tombstone; tests damage copies of it."""
    folder = tmp_path_factory.mktemp("whole")
    worker.create(folder)
    with Index.open(folder) as index:
        index.add([worker.record(id, number) for id, number in STATE.items() if number < 110])
        index.add([worker.record("short-lived", 500)])
        index.compact()
        index.compact()  # so that generation 2 has the neighbour 1 to be confused with
        index.add([worker.record(id, number) for id, number in STATE.items() if number >= 110])
        index.remove(["short-lived"])
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "index")


def empty(file):
    file.write_bytes(b"")


def truncated(file):
    file.write_bytes(file.read_bytes()[:-3])


def longer(file):
    file.write_bytes(file.read_bytes() + b"\0")


def bit_flipped(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 16
    file.write_bytes(data)


def missing(file):
    file.unlink()


@pytest.mark.parametrize("damage", [empty, truncated, longer, bit_flipped, missing], ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_cache_is_noticed_and_built_anew(worker, folder, name, damage):
    damage(folder / "generation-000002" / name)
    assert not check(folder).clean
    with Index.open(folder) as index:
        answers = see(worker, index)
        assert answers == worker.expected(STATE)
        assert index.pinned().number == 3
    assert check(folder).clean


def see(worker, index):
    """What a search does: when a large array turns out damaged in use, the cache is built anew."""
    from genius.store.large_array import CacheDamaged

    try:
        return worker.visible(index)
    except CacheDamaged as error:
        index.rebuild(str(error))
        return worker.visible(index)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [empty, truncated, missing], ids=lambda d: d.__name__)
def test_a_cache_damaged_under_an_open_index(worker, folder, name, damage, caplog, monkeypatch):
    """Fault 40: the process goes on, with right answers; what it notices is logged and built anew."""
    monkeypatch.setattr("genius.store.large_array.IN_MEMORY", 0)
    with Index.open(folder) as index:
        index.snapshot()
        damage(folder / "generation-000002" / name)
        answers = see(worker, index)
        assert answers == worker.expected(STATE)
        if name == "vectors.bin" and damage is not missing:
            assert index.pinned().number == 3
            assert "rebuilding" in caplog.text and "vectors.bin" in caplog.text
    with Index.open(folder) as index:
        assert see(worker, index) == worker.expected(STATE)
    assert check(folder).clean


def test_a_cache_that_is_gone_is_built_anew(worker, folder):
    shutil.rmtree(folder / "generation-000002")
    with Index.open(folder) as index:
        assert worker.visible(index) == worker.expected(STATE)
    assert check(folder).clean


def test_another_generation_under_this_name_is_not_taken(worker, tmp_path):
    worker.create(tmp_path)
    with Index.open(tmp_path) as index:
        index.add([worker.record("a", 1)])
        index.compact()
        shutil.copytree(tmp_path / "generation-000001", tmp_path / "kept")
        index.add([worker.record("b", 2)])
        index.compact()
    shutil.rmtree(tmp_path / "generation-000002")
    (tmp_path / "kept").rename(tmp_path / "generation-000002")
    assert not check(tmp_path).clean
    with Index.open(tmp_path) as index:
        assert worker.visible(index) == worker.expected({"a": 1, "b": 2})
    assert check(tmp_path).clean


def test_the_repair_of_a_cache_loses_nothing(worker, folder):
    bit_flipped(folder / "generation-000002" / "records.bin")
    findings, salvage = repair(folder)
    assert findings.cache and not findings.truth and not salvage.lost
    assert check(folder).clean


def item_pages(file):
    """Where the pages that hold items begin: they are leaves of a table and have our texts in them."""
    data = file.read_bytes()
    pages = [at for at in range(4096, len(data), 4096) if data[at] == 13]
    return [at for at in pages if b"text " in data[at : at + 4096]]


def overwrite(file, at, data):
    with file.open("r+b") as stream:
        stream.seek(at)
        stream.write(data)


def settled(folder):
    """Bring everything out of the journal into the file."""
    connection = sqlite3.connect(folder / INDEX_FILE)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return folder / INDEX_FILE


def touch_everything(worker, folder):
    with Index.open(folder) as index:
        worker.visible(index)
        index.compact()


@pytest.mark.parametrize("kind", ["garbage", "zeros"])
@pytest.mark.parametrize("which", [0.3, 0.6, 0.9])
def test_a_damaged_page_of_items(worker, folder, kind, which):
    file = settled(folder)
    pages = item_pages(file)
    noise = np.random.default_rng(3).integers(0, 256, 4096, dtype=np.uint8).tobytes()
    overwrite(file, pages[int(which * len(pages))], noise if kind == "garbage" else bytes(4096))
    with pytest.raises(IndexCorrupt, match=f"genius check --repair --in {folder}"):
        touch_everything(worker, folder)
    assert check(folder).truth
    _, salvage = repair(folder)
    assert check(folder).clean
    with Index.open(folder) as index:
        saved = worker.visible(index)
    assert len(saved) == salvage.saved > 90
    assert saved.items() <= worker.expected(STATE).items()
    assert sorted({*saved, *salvage.lost}) == sorted(STATE)  # every lost item is named
    assert salvage.damaged.exists()


def test_a_flipped_bit_in_a_text_or_vector(worker, folder):
    """SQLite has no checksums of its own; ours notice."""
    file = settled(folder)
    data = file.read_bytes()
    vector = worker.record("", STATE["item-050"]).vector.tobytes()
    for at in (data.index(b"text 20 xxx") + 9, data.index(vector) + 5):
        overwrite(file, at, bytes([data[at] ^ 1]))
    assert any("checksum" in problem for problem in check(folder).truth)
    _, salvage = repair(folder)
    assert salvage.lost == ["item-020", "item-050"]
    with Index.open(folder) as index:
        assert len(worker.visible(index)) == len(STATE) - 2
    assert check(folder).clean


@pytest.mark.parametrize("size", [100, 4096])
def test_a_damaged_head(worker, folder, size):
    overwrite(settled(folder), 0, b"\xa5" * size)
    with pytest.raises(IndexCorrupt, match="check --repair"):
        Index.open(folder)
    _, salvage = repair(folder)
    assert salvage.lost == []
    with Index.open(folder) as index:
        assert worker.visible(index) == worker.expected(STATE)
    assert check(folder).clean


def test_damaged_settings_come_back_from_the_generation(worker, folder):
    file = settled(folder)
    data = file.read_bytes()
    pages = [at for at in range(4096, len(data), 4096) if data[at] == 13]
    (settings,) = [at for at in pages if b"fingerprint" in data[at : at + 4096]]
    overwrite(file, settings, bytes(4096))
    with pytest.raises(IndexCorrupt, match="check --repair"):
        Index.open(folder)
    repair(folder)
    with Index.open(folder) as index:
        index.require_model("fake", "f" * 64, worker.SIZES, worker.DIM)
        assert worker.visible(index) == worker.expected(STATE)


def test_a_file_that_lost_its_end(worker, folder):
    file = settled(folder)
    data = file.read_bytes()
    file.write_bytes(data[: item_pages(file)[6]])
    with pytest.raises(IndexCorrupt, match="check --repair"):
        touch_everything(worker, folder)
    _, salvage = repair(folder)
    assert 20 < salvage.saved < len(STATE)
    with Index.open(folder) as index:
        assert worker.visible(index).items() <= worker.expected(STATE).items()
    assert check(folder).clean


@pytest.mark.parametrize("content", [b"", b"not a database, but quite long enough to have a head" * 200])
def test_something_else_in_its_place(folder, content):
    for ending in ("-wal", "-shm"):
        (folder / (INDEX_FILE + ending)).unlink(missing_ok=True)
    (folder / INDEX_FILE).write_bytes(content)
    with pytest.raises(IndexCorrupt, match="check --repair"):
        Index.open(folder)
    repair(folder)  # saves nothing, but the folder can be indexed into again
    with Index.open(folder) as index:
        assert sum(index.truth.counts().values()) == 0


@pytest.mark.parametrize(
    "place", ["before-repair-swap", "during-repair-swap", "before-rename", "after-rename"]
)
def test_sigkill_during_repair(worker, folder, place):
    file = settled(folder)
    pages = item_pages(file)
    overwrite(file, pages[len(pages) // 2], bytes(4096))
    command = [sys.executable, worker.__file__, str(folder), "repair"]
    done = subprocess.run(command, env={**os.environ, VARIABLE: place}, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    repair(folder)
    with Index.open(folder) as index:
        assert len(worker.visible(index)) > 90
    assert check(folder).clean
    assert not list(folder.glob("*.partial"))
