"""The tiny dataset and CLIP, and a model that `genius train all` made of them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
SETTINGS = {
    "device": "cpu",
    "encoder.name": "clip",
    "encoder_training.optimiser.steps": 40,
    "encoder_training.optimiser.batch": 32,
    "encoder_training.optimiser.rate": 2e-3,
    "encoder_training.optimiser.check_every": 20,
    "encoder_training.temperature": 0.05,
    "quantizer.levels": 4,
    "quantizer.codes": 16,
    "quantizer_training.temperature": 0.05,
    "quantizer_training.optimiser.steps": 40,
    "quantizer_training.optimiser.batch": 64,
    "quantizer_training.optimiser.rate": 1e-3,
    "quantizer_training.optimiser.check_every": 20,
    "quantizer_training.refine_rounds": 2,
    "decoder.prefix": 4,
    "decoder_training.optimiser.steps": 60,
    "decoder_training.optimiser.batch": 32,
    "decoder_training.optimiser.rate": 1e-3,
    "decoder_training.optimiser.warmup": 5,
    "decoder_training.optimiser.check_every": 30,
}


@pytest.fixture(scope="session")
def tiny() -> dict[str, Any]:
    return runpy.run_path(str(Path(__file__).with_name("tiny.py")))


@pytest.fixture(scope="session")
def root(tiny: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset."""
    return Path(tiny["write_mbeir"](tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="session")
def clip_folder(tiny: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CLIP, untrained."""
    return Path(tiny["write_clip"](tmp_path_factory.mktemp("clip")))


@pytest.fixture(scope="session")
def settings(root: Path, clip_folder: Path) -> dict[str, Any]:
    """What makes a shipped recipe small enough for a test."""
    return {**SETTINGS, "data.root": root, "encoder.source": clip_folder}


@pytest.fixture(scope="session")
def run_folder(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`genius train all recipes/mini.toml --to FOLDER --set …`, done."""
    from genius import cli

    folder = tmp_path_factory.mktemp("runs") / "tiny"
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys, "argv", ["genius", "train", "all", str(RECIPES / "mini.toml"), "--to", str(folder), *changes]
        )
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert not ended.value.code
    return folder
