"""What the fault tests share."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def worker(load_file: Callable[[Path], ModuleType]) -> ModuleType:
    """The module that works on an index, in this process or (by its file) in one that is killed."""
    return load_file(Path(__file__).with_name("store_worker.py"))


@pytest.fixture(scope="session")
def start_script() -> Callable[..., BaseProcess]:
    """Starts `python SCRIPT ARGUMENTS` as a fork of a process that has imported torch's optimisers."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["torch._dynamo", "genius.quantize.train", "genius.decode.train"])

    def start(script: Path, *arguments: object) -> BaseProcess:
        words = [str(script), *map(str, arguments)]
        run = f"import runpy, sys; sys.argv = {words}; runpy.run_path({words[0]!r}, run_name='__main__')"
        process = forks.Process(target=exec, args=(run, {}))
        process.start()
        return process

    return start
