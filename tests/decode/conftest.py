from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def world() -> Any:
    """The small world of clusters.py."""
    return runpy.run_path(str(Path(__file__).with_name("clusters.py")))["make_world"]()
