"""docs/paper.md: the recipes of the paper have the values in its table."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from genius.config import load_recipe

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "paper.md"
PAPERS = ("mbeir-encoder", "mbeir", "coco", "flickr30k")
COLUMNS = 7


class Setting(NamedTuple):
    recipe: str
    key: str
    value: Any


def settings() -> list[Setting]:
    """Every (recipe, key, value) of the table above the first heading of a part."""
    found = []
    table, _, _ = PAGE.read_text(encoding="utf-8").partition("\n## ")
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    for row in rows[1:]:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == COLUMNS, row
        *_, recipes, key, value = cells
        parsed = tomllib.loads(f"value = {value.strip('`')}")["value"]
        found += [Setting(name.strip(), key.strip("`"), parsed) for name in recipes.split(",")]
    return found


def value_of(recipe: str, key: str) -> Any:
    found: Any = load_recipe(ROOT / "recipes" / f"{recipe}.toml")
    for part in key.split("."):
        found = getattr(found, part)
    return list(found) if isinstance(found, tuple) else found


@pytest.mark.parametrize("setting", settings(), ids=lambda setting: f"{setting.recipe} {setting.key}")
def test_the_recipe_has_the_value_of_the_table(setting: Setting) -> None:
    assert value_of(setting.recipe, setting.key) == setting.value


def test_the_table_names_every_value_that_a_recipe_of_the_paper_sets() -> None:
    """But those that no paper has: where the data is, how often to validate, how many of it."""
    ours = {"name", "seed", "data.root", "data.format", "data.val_queries", "data.val_items", "encoder.name"}
    ours |= {"encoder.source", "quantizer.fusion", "decoder.dropout", "quantizer_training.contrastive"}
    listed = {(setting.recipe, setting.key) for setting in settings()}
    for recipe in PAPERS:
        tables = tomllib.loads((ROOT / "recipes" / f"{recipe}.toml").read_text(encoding="utf-8"))
        for key in keys(tables):
            free = key in ours or key.rpartition(".")[2] in ("precision", "check_every", "steps")
            stage_0_batch = key == "encoder_training.optimiser.batch"
            assert free or stage_0_batch or (recipe, key) in listed, f"{recipe}: {key}"


def keys(table: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in table.items():
        found += keys(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name]
    return found


@pytest.mark.parametrize("file", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda file: file.stem)
def test_all_other_recipes_are_called_ours(file: Path) -> None:
    ours = file.read_text(encoding="utf-8").startswith("# Ours, not the paper's")
    assert ours == (file.stem not in PAPERS)
