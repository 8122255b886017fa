"""Adding, removing, replacing and compacting: what a search sees is what was acknowledged."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genius.errors import BadInput, IndexLocked, IndexMismatch, IndexNotFound, StorageError
from genius.store.check import check
from genius.store.generations import numbers
from genius.store.index import Index
from genius.store.stats import disk_use, stats
from genius.types import Modality


def test_an_empty_index_has_nothing_and_is_whole(index, contents):
    assert contents(index) == {}
    assert index.compact() == 1
    assert contents(index) == {}
    assert check(index.folder).clean


def test_items_are_searchable_at_once_and_after_compaction(index, record, contents):
    index.add([record(n) for n in range(10)])
    before = contents(index)
    assert set(before) == {f"item-{n}" for n in range(10)}
    assert before["item-3"] == (tuple(record(3).codes.tolist()), record(3).vector.tobytes())
    index.compact()
    assert contents(index) == before
    index.add([record(n) for n in range(10, 15)])
    assert set(contents(index)) == {f"item-{n}" for n in range(15)}


def test_an_id_added_again_is_replaced_in_the_generation_and_in_the_delta(index, record, contents):
    index.add([record(1, id="x"), record(2, id="x"), record(3, id="y")])
    assert contents(index)["x"][0] == tuple(record(2).codes.tolist())
    index.compact()
    index.add([record(4, id="x")])  # another modality too
    assert contents(index)["x"][0] == tuple(record(4).codes.tolist())
    _, stored = index.truth.record("x")
    assert stored.modality == record(4).modality
    assert sum(index.truth.counts().values()) == 2


def test_removal_counts_what_was_there(index, record, contents):
    index.add([record(n) for n in range(4)])
    index.compact()
    index.add([record(4)])
    assert index.remove(["item-1", "item-4", "item-4", "nobody"]) == 2
    assert set(contents(index)) == {"item-0", "item-2", "item-3"}
    assert index.remove(["item-1"]) == 0


def test_rows_are_never_used_twice(index, record):
    index.add([record(0)])
    index.remove(["item-0"])
    index.compact()
    index.add([record(1)])
    assert index.truth.record("item-1")[0] == 2


def test_reopening_gives_the_same(folder, record, contents):
    with Index.open(folder) as index:
        index.add([record(n) for n in range(6)])
        index.compact()
        index.add([record(7)])
        index.remove(["item-2"])
        expected = contents(index)
    with Index.open(folder) as index:
        assert contents(index) == expected
        assert len(index.snapshot().delta) == 1
    assert check(folder).clean


def test_without_vectors_only_codes_are_kept(tmp_path, record, contents):
    Index.create(tmp_path, model="m", fingerprint="f", sizes=(3, 16, 16, 16), dim=8, vectors=False)
    with Index.open(tmp_path) as index:
        index.add([record(n, vectors=False) for n in range(5)])
        index.compact()
        index.add([record(5, vectors=False)])
        assert len(contents(index)) == 6
        assert disk_use(index)["vectors"] == 0
        assert stats(index)["vectors"] is False
    assert check(tmp_path).clean


def test_another_process_sees_each_commit_and_keeps_its_generation_meanwhile(folder, record, contents):
    with Index.open(folder) as writer, Index.open(folder) as reader:
        writer.add([record(n) for n in range(4)])
        writer.compact()
        held = reader.snapshot()
        assert held is reader.snapshot()  # nothing changed: nothing is read again
        writer.add([record(9)])
        writer.compact()
        assert numbers(folder) == [1, 2]  # the reader still holds generation 1
        assert len(held.runs) == 4
        assert held.generation.large["vectors"][np.array([3])].tobytes() == record(3).vector.tobytes()
        assert len(contents(reader)) == 5
        writer.compact()
        assert numbers(folder) == [2, 3]  # held generations go once their readers moved on
        contents(reader)
        writer.compact()
        assert numbers(folder) == [3, 4]


def test_one_writer_at_a_time_and_readers_go_on(folder, record, contents):
    with Index.open(folder) as first, Index.open(folder) as second:
        first.add([record(1)])
        with first.writing():
            with pytest.raises(IndexLocked, match=r"process \d+ on "):
                second.add([record(2)])
            assert set(contents(second)) == {"item-1"}
        second.add([record(2)])
        assert set(contents(first)) == {"item-1", "item-2"}


def test_a_second_index_in_the_same_folder_is_refused(folder):
    with pytest.raises(BadInput, match="holds an index already"):
        Index.create(folder, model="m", fingerprint="f", sizes=(3,), dim=1)


def test_no_index_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(IndexNotFound, match="genius index"):
        Index.open(tmp_path)


def test_another_model_is_refused_with_the_cure(index):
    index.require_model("fake", "f" * 64, (3, 16, 16, 16), 8)
    with pytest.raises(IndexMismatch, match="genius index PATH --to NEW_FOLDER --model other"):
        index.require_model("other", "0" * 64, (3, 16, 16, 16), 8)


def test_threads_share_an_index(index, record, contents):
    errors: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for n in range(start, start + 12):
                index.add([record(n)])
                index.snapshot()
                if n % 5 == 0:
                    index.compact()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(contents(index)) == 36


def test_the_cache_of_codes_is_small(tmp_path, record):
    """Row numbers and modalities cost next to nothing beside the codes themselves."""
    Index.create(tmp_path, model="m", fingerprint="f", sizes=(3, 16, 16, 16), dim=8, vectors=False)
    with Index.open(tmp_path) as index:
        index.add([record(n, vectors=False) for n in range(4000)])
        index.compact()
        codes = 4000 * 4 * 2
        assert disk_use(index)["codes"] - codes < 4000 * 0.25 + 2000


def test_removals_are_compacted_by_themselves(index, record, contents):
    """Tombstones slow a search down as much as fresh items do."""
    index.add([record(n) for n in range(1200)])
    index.compact()
    index.remove([f"item-{n}" for n in range(1000)])
    assert index.pinned().number == 1 and len(index.snapshot().gone) == 1000
    index.remove(["item-1000"])
    assert index.pinned().number == 2 and len(index.snapshot().gone) == 0
    assert len(contents(index)) == 199


def test_items_that_come_and_go_leave_no_tombstones_for_ever(index, record, contents):
    """Also those of rows that no generation ever had."""
    index.add([record(9999)])
    for round in range(4):
        index.add([record(n) for n in range(400)])
        index.remove([f"item-{n}" for n in range(400)])
        assert len(index.snapshot().gone) <= 1000, round
    assert index.pinned().number >= 1
    assert set(contents(index)) == {"item-9999"}


def test_a_removal_on_a_full_disk_is_acknowledged(index, record, contents, monkeypatch, caplog):
    index.add([record(n) for n in range(1100)])

    def full(*_: object) -> int:
        raise StorageError("no space left")

    monkeypatch.setattr(index, "compact", full)
    assert index.remove([f"item-{n}" for n in range(1050)]) == 1050
    assert "not compacted" in caplog.text
    assert len(contents(index)) == 50


def test_stats_while_another_thread_compacts(index, record):
    index.add([record(n) for n in range(50)])
    index.compact()
    done = threading.Event()
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            while not done.is_set():
                assert stats(index)["items"] == 50
        except BaseException as error:
            errors.append(error)

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    for _ in range(25):
        index.compact()
    done.set()
    for thread in asking:
        thread.join()
    assert not errors


def test_the_size_of_a_generation_that_goes_away_meanwhile(index, record, monkeypatch):
    index.add([record(1)])
    index.compact()
    monkeypatch.setattr("genius.store.stats._files", lambda folder: [folder / "vectors.bin", folder / "gone"])
    assert disk_use(index)["vectors"] == 16
    monkeypatch.undo()
    monkeypatch.setattr(index, "pinned", lambda: index.truth and type(Index.pinned(index))(99))
    assert disk_use(index)["vectors"] == 0


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 8), max_size=4)),
        st.tuples(st.just("remove"), st.lists(st.integers(0, 8), max_size=3)),
        st.tuples(st.just("compact"), st.just([])),
        st.tuples(st.just("reopen"), st.just([])),
    ),
    max_size=12,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=OPERATIONS)
def test_any_sequence_of_operations_agrees_with_a_dict(tmp_path_factory, record, contents, operations):
    folder: Path = tmp_path_factory.mktemp("index")
    Index.create(folder, model="m", fingerprint="f", sizes=(3, 16, 16, 16), dim=8)
    oracle: dict[str, int] = {}
    version = 0
    index = Index.open(folder)
    try:
        for name, keys in operations:
            if name == "add":
                batch = []
                for key in keys:
                    version += 1
                    oracle[f"k{key}"] = version
                    batch.append(record(version, id=f"k{key}"))
                index.add(batch)
            elif name == "remove":
                known = {f"k{key}" for key in keys} & oracle.keys()
                assert index.remove([f"k{key}" for key in keys]) == len(known)
                oracle = {id: version for id, version in oracle.items() if id not in known}
            elif name == "compact":
                index.compact()
            else:
                index.close()
                index = Index.open(folder)
            assert contents(index) == {
                id: (tuple(record(n).codes.tolist()), record(n).vector.tobytes()) for id, n in oracle.items()
            }
        modalities = [record(n).modality for n in oracle.values()]
        assert index.truth.counts() == {m: modalities.count(m) for m in Modality}
    finally:
        index.close()
    assert check(folder).clean
