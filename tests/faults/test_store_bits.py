"""Fault 36: a truth cut anywhere, a block zeroed, a bit flipped: check and repair end without a traceback."""

from __future__ import annotations

import random
import shutil
import sqlite3
import time
from contextlib import suppress

import numpy as np
import pytest

from genius.errors import IndexCorrupt
from genius.store.check import check, repair
from genius.store.connection import INDEX_FILE
from genius.store.exporting import export_lines, export_tar
from genius.store.index import Index
from genius.store.stats import stats

STATE = {f"item-{n:03d}": n for n in range(200)}
SAMPLES = 40  # of each kind
SECONDS = 20  # that a check or a repair may take; they take 0.1


@pytest.fixture(scope="module")
def whole(worker, tmp_path_factory):
    """An index with a generation, a delta, a tombstone and thumbnails."""
    folder = tmp_path_factory.mktemp("whole")
    worker.create(folder)
    with Index.open(folder) as index:
        index.add([worker.record(id, number) for id, number in STATE.items() if number < 180])
        index.add([worker.record("short-lived", 500)])
        index.compact()
        index.add([worker.record(id, number) for id, number in STATE.items() if number >= 180])
        index.remove(["short-lived"])
    connection = sqlite3.connect(folder / INDEX_FILE)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return folder


def cut(data, chance):
    return data[: chance.randrange(len(data))]


def zeroed(data, chance):
    at = 512 * chance.randrange(len(data) // 512)
    return data[:at] + bytes(512) + data[at + 512 :]


def flipped(data, chance):
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def use_everything(worker, folder):
    """All that a user does with an index that check calls fine."""
    with Index.open(folder) as index:
        seen = worker.visible(index)
        for id in seen:
            index.truth.record(id)
        assert sum(1 for _ in export_lines(index)) >= len(seen)
        index.compact()
        assert worker.visible(index) == seen
    return seen


def look_up_all(index):
    """What a search reads; that there is no row for an item is for the engine to notice."""
    snapshot = index.snapshot()
    places = np.flatnonzero(snapshot.alive())
    index.truth.records([*snapshot.runs.rows(places).tolist(), *snapshot.delta.rows.tolist()])


def try_everything(worker, folder):
    """Whatever a user does with a damaged index ends well or says that it is damaged."""
    uses = [
        look_up_all,
        lambda index: [index.truth.record(id) for id in STATE],
        lambda index: index.truth.known(list(STATE)),
        lambda index: index.truth.ids_from("/nowhere"),
        lambda index: stats(index),
        lambda index: list(export_lines(index)),
        lambda index: b"".join(export_tar(index)),
        lambda index: index.add([worker.record("more", 901)]),
        lambda index: index.remove(["item-007", "item-190"]),
        lambda index: index.compact(),
    ]
    for number, use in enumerate(uses):
        copy = shutil.copytree(folder, folder.with_name(f"{folder.name}-{number}"))
        with suppress(IndexCorrupt), Index.open(copy) as index:
            use(index)
        shutil.rmtree(copy)


@pytest.mark.parametrize("damage", [cut, zeroed, flipped], ids=lambda damage: damage.__name__)
def test_a_damaged_truth_is_noticed_and_repaired_in_time(worker, whole, tmp_path, damage):
    expected = worker.expected(STATE)
    data = (whole / INDEX_FILE).read_bytes()
    chance = random.Random(damage.__name__)
    noticed = 0
    for sample in range(SAMPLES):
        folder = shutil.copytree(whole, tmp_path / str(sample))
        (folder / INDEX_FILE).write_bytes(damage(data, chance))
        began = time.monotonic()
        findings = check(folder)
        if findings.clean:
            assert use_everything(worker, folder) == expected, sample
        else:
            noticed += 1
            if sample % 8 == 0:
                try_everything(worker, folder)
            try:
                _, salvage = repair(folder)
            except IndexCorrupt as error:
                assert "genius index" in str(error)  # nothing is left to save; the way on is named
                continue
            assert check(folder).clean, sample
            saved = use_everything(worker, folder)
            assert saved.items() <= expected.items(), sample
            assert not findings.truth or len(saved) == salvage.saved
        assert time.monotonic() - began < SECONDS, sample
        shutil.rmtree(folder)
    assert noticed > SAMPLES // 4


def test_a_cut_inside_a_page_of_many_does_not_keep_repair_for_ever(worker, tmp_path):
    """A tree that lost its last pages gives rows that go backwards."""
    worker.create(tmp_path / "index")
    state = {f"item-{n}": n for n in range(1000)}
    with Index.open(tmp_path / "index") as index:
        index.add([worker.record(id, number) for id, number in state.items()])
    file = tmp_path / "index" / INDEX_FILE
    data = file.read_bytes()
    assert len(data) > 336_021
    for size in (336_021, len(data) // 2 + 17, 100_000, 20_001):
        file.write_bytes(data[:size])
        began = time.monotonic()
        _, salvage = repair(tmp_path / "index")
        assert time.monotonic() - began < SECONDS
        assert check(tmp_path / "index").clean
        with Index.open(tmp_path / "index") as index:
            saved = worker.visible(index)
        assert saved.items() <= worker.expected(state).items()
        assert len(saved) == salvage.saved


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE items SET codes = CAST(codes AS TEXT) WHERE row = 7",
        "UPDATE items SET codes = 5 WHERE row = 7",
        "UPDATE items SET id = CAST(id AS BLOB) WHERE row = 7",
        "UPDATE items SET path = 'text' WHERE row = 7",
        "UPDATE items SET text = CAST(text AS BLOB) WHERE row = 7",
        "UPDATE items SET meta = 3.5 WHERE row = 7",
        "UPDATE items SET mtime_ns = 'yesterday' WHERE row = 7",
        "UPDATE items SET seen_ns = seen_ns + 1 WHERE row = 7",
        "UPDATE items SET vector = NULL WHERE row = 7",
        "UPDATE items SET content_sum = 'x' WHERE row = 7",
        "UPDATE items SET modality = 'text' WHERE row = 7",
        "UPDATE items SET modality = 1 WHERE row = 7",
        "UPDATE meta SET value = '999' WHERE key = 'change'",
        "UPDATE meta SET value = CAST(value AS BLOB) WHERE key = 'sizes'",
        "UPDATE meta SET value = '5' WHERE key = 'last_row'",
        "DELETE FROM meta WHERE key = 'dim'",
        "DELETE FROM removed",
        "UPDATE removed SET row = row + 1",
        "INSERT INTO removed VALUES (12)",
        "UPDATE thumbnails SET jpeg = 'text'",
        "UPDATE thumbnails SET jpeg = x'00'",
        "UPDATE thumbnails SET row = row + 1",
        "INSERT INTO thumbnails VALUES (9999, x'ff', 0)",
        "DROP TABLE thumbnails",
        "ALTER TABLE removed ADD COLUMN more",
    ],
)
def test_every_value_is_covered_by_a_checksum(worker, whole, tmp_path, change):
    folder = shutil.copytree(whole, tmp_path / "index")
    from dataclasses import replace

    with Index.open(folder) as index:
        index.add([replace(worker.record("pictured", 300), thumbnail=b"\xff\xd8\xff picture")])
    connection = sqlite3.connect(folder / INDEX_FILE)
    connection.execute(change)
    connection.commit()
    connection.close()
    try_everything(worker, folder)
    assert check(folder).truth
    _, salvage = repair(folder)
    assert check(folder).clean
    saved = use_everything(worker, folder)
    expected = worker.expected(STATE | {"pictured": 300})
    assert saved.items() <= expected.items()
    assert len(saved) >= len(expected) - 1 and len(saved) == salvage.saved
