"""Engines with a model whose answers can be foreseen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from genius.engine import Engine


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
