"""Engines with a model whose answers can be foreseen."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from genius.engine import Engine


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    file = Path(__file__).parents[1] / "cli" / "fake_model.py"
    spec = importlib.util.spec_from_file_location("fake_model", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def make_engine(fake: ModuleType, tmp_path: Path) -> Iterator[Callable[[], Engine]]:
    """Makes an engine over an empty index."""
    made: list[Engine] = []

    def make() -> Engine:
        made.append(Engine.create(tmp_path / f"index-{len(made)}", fake.FakeModel()))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
