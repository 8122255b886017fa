"""Faults 4, 5, 6: a full, read-only or failing disk is named in the error; acknowledged items stay."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from genius import files
from genius.errors import IndexNotFound, StorageError
from genius.store.check import check
from genius.store.index import Index

STEPS = [
    ("add", [[f"item-{n}", n] for n in range(6)]),
    ("compact", []),
    ("add", [["item-2", 77], ["new", 78]]),
    ("remove", ["item-4"]),
    ("compact", []),
]


def possible_states(worker, lines, operations=STEPS):
    """Every state the answers allow: what failed may have happened or not."""
    states: list[dict[str, int]] = [{}]
    for line in lines:
        verdict, number = line.split()[:2]
        if verdict == "begin":
            continue
        after = [worker.apply(state, operations[int(number)]) for state in states]
        states = after if verdict == "done" else states + after
    return states


@pytest.fixture(scope="module")
def failing_io(tmp_path_factory) -> Path:
    """A library that makes the n-th write or fsync of a process fail."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    library = tmp_path_factory.mktemp("preload") / "failing_io.so"
    source = Path(__file__).with_name("failing_io.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.parametrize(("forever", "step"), [(False, 4), (True, 12)], ids=["once", "from-then-on"])
def test_the_nth_write_or_fsync_of_the_process_fails(worker, tmp_path, failing_io, forever, step):
    """Counts every write and fsync there is, SQLite's too: the steps make about 80 of them."""
    failures = 0
    for attempt in range(1, 100, step):
        folder = tmp_path / f"index-{attempt}"
        worker.create(folder)
        environment = {
            **os.environ,
            "LD_PRELOAD": str(failing_io),
            "FAIL_UNDER": str(folder),
            "FAIL_AT": str(attempt),
            **({"FAIL_FOREVER": "1"} if forever else {}),
        }
        done = subprocess.run(
            [sys.executable, worker.__file__, str(folder), json.dumps(STEPS)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        lines = done.stdout.splitlines()
        failed = [line for line in lines if line.startswith("failed")]
        assert all(str(folder) in line for line in failed), "the error names the path"
        assert done.returncode == 0 or str(folder) in done.stderr, done.stderr
        with Index.open(folder) as index:
            seen = worker.visible(index)
            assert seen in [worker.expected(state) for state in possible_states(worker, lines)]
            index.compact()  # works again
            assert worker.visible(index) == seen
        assert check(folder).clean
        failures += bool(failed) or done.returncode != 0
    assert failures >= 5


@pytest.mark.parametrize("name", ["_write", "_sync", "_rename"])
def test_the_nth_step_of_publishing_fails(worker, tmp_path, monkeypatch, name):
    """The same for our own files alone, on every platform: a generation is there whole or not at all."""
    worker.create(tmp_path)
    real = getattr(files, name)
    with Index.open(tmp_path) as index:
        worker.perform(index, STEPS[0])
        index.compact()
        worker.perform(index, STEPS[2])
        expected = worker.visible(index)
        for nth in range(1, 100):
            calls = 0

            def failing(*arguments, nth=nth):
                nonlocal calls
                calls += 1
                if calls == nth:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return real(*arguments)

            monkeypatch.setattr(files, name, failing)
            try:
                index.compact()
                break
            except StorageError as error:
                assert str(tmp_path) in str(error)
            finally:
                monkeypatch.setattr(files, name, real)
            assert not list(tmp_path.glob("*.partial"))
            with Index.open(tmp_path) as reader:
                assert worker.visible(reader) == expected
            assert check(tmp_path).clean
        assert nth > 1
        assert worker.visible(index) == expected


def test_a_file_is_there_whole_or_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "file"
    files.write_file(file, [b"old"])

    def refuse(*_):
        raise OSError(errno.EIO, "Input/output error")

    for name in ("_write", "_sync", "_rename"):
        with monkeypatch.context() as patch, pytest.raises(StorageError, match="Input/output error"):
            patch.setattr(files, name, refuse)
            files.write_file(file, [b"new ", b"content"])
        assert file.read_bytes() == b"old"
        assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    files.write_file(file, [b"new ", memoryview(b"content")])
    assert file.read_bytes() == b"new content"


def grow(worker, index) -> dict[str, int]:
    """Add until the disk refuses; what was acknowledged."""
    state: dict[str, int] = {}
    for number in range(0, 100_000, 20):
        step = ("add", [[f"item-{n}", n] for n in range(number, number + 20)])
        try:
            worker.perform(index, step)
        except StorageError as error:
            assert str(index.folder) in str(error)
            return state
        state = worker.apply(state, step)
    raise AssertionError("the disk was never full")


def test_a_full_disk(worker, tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1500k", "none", str(mount)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("may not mount a small disk here; the limit on file sizes below stands in for it")
    try:
        ballast = mount / "ballast"
        ballast.write_bytes(bytes(400_000))
        folder = mount / "index"
        worker.create(folder)
        with Index.open(folder) as index:
            state = grow(worker, index)
            assert worker.visible(index) == worker.expected(state)  # searching goes on
            with pytest.raises(StorageError, match=str(folder)):
                index.compact()
            assert worker.visible(index) == worker.expected(state)
            ballast.unlink()
            index.remove(list(state)[:100])
            index.compact()
            left = dict(list(state.items())[100:])
            assert worker.visible(index) == worker.expected(left)
        assert check(folder).clean
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_limit_on_file_sizes(worker, tmp_path):
    worker.create(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Index.open(tmp_path) as index:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
        try:
            state = grow(worker, index)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        index.add([worker.record("after", 5)])
        assert worker.visible(index) == worker.expected(state | {"after": 5})
    assert check(tmp_path).clean


def test_a_read_only_disk_is_refused_before_any_work_and_can_be_searched(worker, tmp_path):
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(mount)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("may not mount a disk here")
    try:
        worker.create(mount / "index")
        with Index.open(mount / "index") as index:
            worker.perform(index, STEPS[0])
            index.compact()
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        with Index.open(mount / "index") as index:
            assert worker.visible(index) == worker.expected(worker.apply({}, STEPS[0]))
            with pytest.raises(StorageError, match=f"{mount}.*Read-only"), index.writing():
                pytest.fail("no work may begin")
        with pytest.raises(StorageError, match=f"{mount}.*Read-only"):
            worker.create(mount / "other")
        assert check(mount / "index").clean
        (generation,) = (mount / "index").glob("generation-*")
        subprocess.run(["mount", "-o", "remount,rw", str(mount)], check=True)
        shutil.rmtree(generation)
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        with Index.open(mount / "index") as index:  # the cache cannot be written, so it is built in memory
            assert worker.visible(index) == worker.expected(worker.apply({}, STEPS[0]))
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_missing_folder_or_a_file_in_its_place(worker, tmp_path):
    with pytest.raises(IndexNotFound, match="genius index"):
        Index.open(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        worker.create(tmp_path / "file")
