"""What the fault tests share."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def worker() -> ModuleType:
    """The module that works on an index, in this process or (by its file) in one that is killed."""
    return _module(Path(__file__).with_name("store_worker.py"))


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """The module of a model whose answers can be foreseen; run as a program, it is the command line."""
    return _module(Path(__file__).parents[1] / "cli" / "fake_model.py")


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
