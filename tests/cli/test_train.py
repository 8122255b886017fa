"""`genius train`: what it hands on, what it refuses; and the shipped recipes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from genius.config import load_recipe

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
SHIPPED = sorted(RECIPES.glob("*.toml"))


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command hands to the stages; none of them is run."""
    calls: list[Any] = []
    monkeypatch.setattr("genius.pipeline.stages.train_stages", lambda *args: calls.append(args))
    return calls


def test_recipe_stage_and_folder_are_handed_on(genius, handed, tmp_path) -> None:
    done = genius(
        "train", "quantizer", RECIPES / "mini.toml", "--to", tmp_path / "run",
        "--set", "seed=7", "--set", "quantizer.levels=3",
    )  # fmt: skip
    assert (done.code, done.out) == (0, "")
    ((recipe, stage, folder),) = handed
    assert (recipe.seed, recipe.quantizer.levels, stage, folder) == (7, 3, "quantizer", tmp_path / "run")


def test_the_folder_is_named_after_the_recipe(genius, handed) -> None:
    assert genius("train", "all", RECIPES / "bench.toml").code == 0
    assert handed[0][2] == Path("runs/bench")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("all", "absent.toml"), 2, "no recipe at absent.toml"),
        (("all", RECIPES / "mini.toml", "--set", "quantizer.lvels=3"), 2, "quantizer.lvels: unknown key"),
        (("all", RECIPES / "mini.toml", "--set", "seed"), 2, "write it as a.b=value"),
        (("encoder", RECIPES / "mini.toml"), 2, "no table that trains 'encoder'"),
        (("dreams", RECIPES / "mini.toml"), 2, "dreams"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(genius, arguments, code, said) -> None:
    done = genius("train", *arguments)
    assert done.code == code
    assert said in done.err
    assert "Traceback" not in done.err
    assert done.out == ""
    assert not Path("runs").exists()


def test_no_data_at_the_root(genius, tmp_path) -> None:
    changes = ("--set", f"data.root={tmp_path}", "--set", "device=cpu", "--to", tmp_path / "run")
    done = genius("train", "encoder", RECIPES / "flickr30k.toml", *changes)
    assert (done.code, "no dataset_*.json here" in done.err) == (2, True)
    done = genius("train", "encoder", RECIPES / "mini-heads.toml", *changes)
    assert (done.code, "no M-BEIR data here" in done.err) == (2, True)


def test_a_wrong_recipe_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from genius.errors import BadRecipe\n"
        "from genius.cli.train import TrainingStage, train\n"
        "try: train(TrainingStage.ALL, Path('absent.toml'))\n"
        "except BadRecipe: sys.exit('torch' in sys.modules)\n"
        "sys.exit('not refused')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("file", SHIPPED, ids=[file.stem for file in SHIPPED])
def test_a_shipped_recipe_begins_with_its_command(file: Path) -> None:
    text = file.read_text()
    header = text[: text.index("\nname = ")]
    assert re.search(rf"genius train (all|encoder) recipes/{file.name}\b", header)
    assert load_recipe(file).name == file.stem
    for mentioned in re.findall(r"recipes/([\w-]+\.toml)", text):
        assert (RECIPES / mentioned).is_file()


@pytest.mark.parametrize("file", SHIPPED, ids=[file.stem for file in SHIPPED])
def test_what_a_shipped_recipe_describes_can_be_built(file: Path) -> None:
    from genius.decode.shape import DecoderShape
    from genius.encode.base import ENCODERS
    from genius.quantize.residual import code_sizes
    from genius.training.schedule import rate_at

    recipe = load_recipe(file)
    assert recipe.encoder.name in ENCODERS
    sizes = code_sizes(recipe.quantizer.levels, recipe.quantizer.codes, recipe.quantizer.modality)
    DecoderShape.preset(recipe.decoder.preset, 512, sizes, recipe.decoder.prefix)
    tables = [recipe.encoder_training, recipe.quantizer_training, recipe.decoder_training]
    for table in filter(None, tables):
        config = table.optimiser
        assert config.warmup < config.steps
        assert config.check_every <= config.steps
        assert rate_at(config, config.steps) == pytest.approx(config.final_rate)


def test_the_papers_epochs() -> None:
    """All other values of the paper are checked against docs/paper.md."""
    recipe = load_recipe(RECIPES / "mbeir.toml")
    assert recipe.quantizer_training is not None
    assert recipe.decoder_training is not None
    queries = 1_100_000
    for plan, epochs in ((recipe.quantizer_training.optimiser, 20), (recipe.decoder_training.optimiser, 30)):
        assert plan.steps == pytest.approx(epochs * queries / plan.batch, rel=1e-3)
