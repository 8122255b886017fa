"""Recipes on little data: smaller batches and fewer steps; data without val is refused at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from genius.config import OptimiserConfig, load_recipe
from genius.errors import BadInput
from genius.pipeline.scaling import fit_to_data
from genius.pipeline.stages import train_stages

USUAL = OptimiserConfig(steps=600, batch=1024, warmup=20, check_every=150)


def test_much_data_is_trained_as_the_recipe_says() -> None:
    assert fit_to_data(USUAL, 20_000) is USUAL


def test_little_data_has_smaller_batches_and_fewer_steps() -> None:
    fitted = fit_to_data(USUAL, 200)
    assert (fitted.batch, fitted.steps, fitted.warmup, fitted.check_every) == (200, 100, 10, 33)
    assert fit_to_data(USUAL, 1).steps == 100 and fit_to_data(USUAL, 1).batch == 1
    assert fit_to_data(OptimiserConfig(steps=30, batch=8), 5).steps == 30


def test_data_without_val_is_refused_before_anything_is_encoded(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "data", ignore=shutil.ignore_patterns("val", "images"))
    recipe = load_recipe("mini", [f"data.root={tmp_path / 'data'}"])
    with pytest.raises(BadInput, match="no split 'val'"):
        train_stages(recipe, "all", tmp_path / "run")
    assert not (tmp_path / "run").exists()
