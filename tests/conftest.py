"""For all tests: Ctrl-C reaches the processes they start, also where a shell runs them in the background.

Locks that are taken out of order are errors (`genius.locks`), in those processes too. `make test` runs tests
in several processes (pytest-xdist); their order, and which of them share a process, changes no outcome.
"""

import importlib.util
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

os.environ["GENIUS_DEBUG_LOCKS"] = "1"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes would compile the package anew
# Some virtual machines announce AMX and then kill what uses it (bfloat16 products): keep torch below it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"  # it would wait for an answer when the process ends
os.environ.setdefault("RAY_worker_niceness", "0")  # at Ray's 15, its tests would wait for all others
MEMORY = Path("/dev/shm")
ROOM = 6 * 2**30  # bytes: more than all that tests write
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
    shm = os.statvfs(MEMORY)
    if shm.f_bavail * shm.f_frsize >= ROOM and not shm.f_flag & os.ST_NOEXEC:
        # thousands of indexes: on a disk, tests would wait for fsync as long as they work
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
signal.signal(signal.SIGINT, signal.default_int_handler)  # such a shell ignores it, and children would, too


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With xdist: slow tests and groups begin first, and a file's tests share a process and its fixtures.

    A mark `xdist_group` puts tests of several files into one process: one after the other, most that use Ray,
    each of which takes more than a core, and all that use a browser.
    """
    if not hasattr(config, "workerinput"):
        return
    marks = ("slow", "xdist_group")
    first = {item.path for item in items if any(map(item.get_closest_marker, marks))}
    items.sort(key=lambda item: item.path not in first)
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(config.rootpath))))


@pytest.fixture(scope="session")
def load_file() -> Callable[[Path], ModuleType]:
    """Imports a file that is on no import path."""

    def load(file: Path) -> ModuleType:
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module  # where its dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def fake(load_file: Callable[[Path], ModuleType]) -> ModuleType:
    """The module of a model whose answers can be foreseen; run as a program, it is the command line."""
    return load_file(Path(__file__).parent / "cli" / "fake_model.py")


@pytest.fixture
def fake_loaded(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake model is loaded in place of every other."""
    monkeypatch.setattr(
        "genius.engine.opening.load_model", lambda name, device="cpu": fake.FakeModel(str(name))
    )


@pytest.fixture(scope="session")
def start_script() -> Callable[..., BaseProcess]:
    """Starts `python SCRIPT ARGUMENTS` as a fork of a process that has imported torch's optimisers."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["torch._dynamo", "genius.quantize.train", "genius.decode.train"])

    def start(script: Path, *arguments: object, **variables: object) -> BaseProcess:
        words = [str(script), *map(str, arguments)]
        changes = {name: str(value) for name, value in variables.items()}
        program = f"import os, runpy, sys; sys.argv = {words}; os.environ.update({changes})\n"
        program += f"runpy.run_path({words[0]!r}, run_name='__main__')"
        process = forks.Process(target=exec, args=(program, {}))
        process.start()
        return process

    return start


@pytest.fixture(scope="session")
def run_by_one_and_two(start_script: Callable[..., BaseProcess]) -> Callable[..., None]:
    """Runs `SCRIPT ARGUMENTS FOLDER/one` alone, and with FOLDER/two in two processes, as torchrun would."""

    def run(script: Path, folder: Path, *arguments: object, **variables: object) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        shared = {
            "WORLD_SIZE": 2,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "GLOO_SOCKET_IFNAME": "lo",
        }
        processes = [start_script(script, *arguments, folder / "one", **variables)]
        for rank in range(2):
            own = {**variables, **shared, "RANK": rank, "LOCAL_RANK": rank}
            processes.append(start_script(script, *arguments, folder / "two", **own))
        for process in processes:
            process.join(600)
        assert [process.exitcode for process in processes] == [0, 0, 0]

    return run


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def genius(monkeypatch, capsys, tmp_path) -> Iterator[Callable[..., Done]]:
    """Runs `genius ARGUMENTS` in this process, in an empty folder."""
    from genius import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GENIUS_INDEX", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["genius", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return Done(0 if code is None else int(code), out, err)

    yield run
    signal.signal(signal.SIGTERM, before)
