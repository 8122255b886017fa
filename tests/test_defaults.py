"""One default per option: where code repeats a recipe's option as a keyword, its default is the recipe's."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from genius import config
from genius.config import ConfigTable

# the tables of a recipe whose values reach each room
TABLES: dict[str, tuple[type[ConfigTable], ...]] = {
    "encode": (config.EncoderTrainingConfig, config.DistillationConfig, config.OptimiserConfig),
    "quantize": (
        config.QuantizerConfig, config.QuantizerTrainingConfig, config.TuningConfig, config.OptimiserConfig,
    ),
    "decode": (config.DecoderConfig, config.DecoderTrainingConfig, config.OptimiserConfig),
}  # fmt: skip


def keywords(room: str) -> Iterator[tuple[str, str, Any]]:
    """(where, name, default) of every keyword of the room's public functions and classes, but None."""
    package = import_module(f"genius.{room}")
    for found in pkgutil.walk_packages(package.__path__, f"genius.{room}."):
        module = import_module(found.name)
        for name, value in vars(module).items():
            own = getattr(value, "__module__", None) == found.name and not name.startswith("_")
            if not own or not (inspect.isfunction(value) or inspect.isclass(value)):
                continue
            try:
                parameters = inspect.signature(value).parameters
            except ValueError:
                continue
            for parameter in parameters.values():
                if parameter.default is not parameter.empty and parameter.default is not None:
                    yield f"{found.name}:{name}", parameter.name, parameter.default


@pytest.mark.parametrize("room", TABLES)
def test_keywords_have_the_defaults_of_the_recipe(room: str) -> None:
    allowed: dict[str, list[Any]] = {}
    for table in TABLES[room]:
        for name, field in table.model_fields.items():
            if not field.is_required():
                allowed.setdefault(name, []).append(field.default)
    compared = [entry for entry in keywords(room) if entry[1] in allowed]
    assert compared
    drifted = [(where, name, default) for where, name, default in compared if default not in allowed[name]]
    assert not drifted
