"""What the fault tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def worker(load_file: Callable[[Path], ModuleType]) -> ModuleType:
    """The module that works on an index, in this process or (by its file) in one that is killed."""
    return load_file(Path(__file__).with_name("store_worker.py"))
