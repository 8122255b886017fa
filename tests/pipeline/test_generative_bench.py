"""benchmarks/generative.py on the tiny dataset: it chooses rates on val, resumes, and keeps to its budget."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from genius.config import load_recipe
from genius.decode.shape import DecoderShape
from genius.evaluate.baselines import generative
from genius.evaluate.options import GenerativeConfig

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "generative.py"
STEPS = 40
SMALL = [f"decoder_training.optimiser.{key}={value}" for key, value in
         {"steps": STEPS, "batch": 32, "warmup": 5, "precision": '"float32"'}.items()]  # fmt: skip
RATES = [1e-5, 2e-3]


@pytest.fixture
def script(load_file: Callable[[Path], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return load_file(SCRIPT)


@pytest.fixture(scope="module")
def data(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny dataset with a pool for each row of test."""
    own = tmp_path_factory.mktemp("data") / "flags"
    shutil.copytree(root, own)
    pools = own / "cand_pool"
    (pools / "local").mkdir()
    for task in (0, 2, 3):
        union = pools / "global" / "mbeir_union_test_cand_pool.jsonl"
        shutil.copy(union, pools / "local" / f"mbeir_flags_task{task}_cand_pool.jsonl")
    return own


def measure(script: ModuleType, data: Path, run_folder: Path, cache: Path, **values: Any) -> dict[str, Any]:
    options = {"seeds": 2, "more": 2, "rates": RATES, "baselines": ["irgen"], "change": SMALL} | values
    *_, last = script.main(data, model=str(run_folder / "model"), cache=cache, **options)
    return dict(last)


def test_the_default_is_the_decoder_of_our_recipe() -> None:
    recipe = load_recipe("bench")
    config = GenerativeConfig.like_decoder(recipe)
    assert config == GenerativeConfig()
    assert recipe.decoder_training is not None
    optimiser = recipe.decoder_training.optimiser
    assert (config.steps, config.batch) == (optimiser.steps, optimiser.batch)
    system = generative.GenerativeBaseline("irgen", lambda: None, config)  # type: ignore[arg-type,return-value]
    ours = DecoderShape.preset(
        recipe.decoder.preset, 24, (16, 8), recipe.decoder.prefix, recipe.decoder.dropout
    )
    assert system._fresh_decoder(24, (16, 8)).shape == ours


def test_rates_are_chosen_on_val_and_test_is_searched_with_each_seed(
    script: ModuleType, data: Path, run_folder: Path, tmp_path: Path
) -> None:
    found = measure(script, data, run_folder, tmp_path)
    assert found["samples"] == STEPS * 32
    assert not found["complete"]  # one of six baselines
    irgen = found["baselines"]["irgen"]
    slow, fast = (each["curve"] for each in irgen["rates"])
    assert [step for step, _ in fast] == list(range(5, STEPS + 1, 5))
    assert fast[-1][1] > slow[-1][1] + 0.2  # a rate that learns nothing is not taken
    assert irgen["rate"] == RATES[1]
    assert irgen["more"]["curve"][-1][0] == 2 * STEPS
    for setting in ("universal", "local"):
        test = irgen["test"][setting]
        assert len(test["seeds"]) == 2 and test["seeds"][0] != test["seeds"][1]
        assert test["headline"] == pytest.approx(sum(test["seeds"]) / 2)
        assert [(row["dataset"], row["task"]) for row in test["rows"]] == [("flags", 0)]
        assert test["headline"] > 0.2


def test_a_run_that_is_out_of_time_goes_on_at_its_last_checkpoint(
    script: ModuleType, data: Path, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: dict[str, Any] = {"seeds": 1, "more": 1, "rates": RATES[1:]}
    whole = measure(script, data, run_folder, tmp_path / "whole", **values)
    ticks = itertools.chain([0.0] * 12, itertools.repeat(math.inf))  # of the clock, one a step
    with monkeypatch.context() as patch:
        patch.setattr(generative, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
        stopped = measure(script, data, run_folder, tmp_path / "parts", **values, budget=1e9)
    assert stopped["baselines"] == {} and not stopped["complete"]
    assert "irgen: no time is left at step 12" in stopped["stopped"]

    steps = []
    train = generative.GenerativeBaseline._train

    def counted(self: Any, *arguments: Any) -> None:
        clock = SimpleNamespace(monotonic=lambda: steps.append(1) or 0.0)
        with monkeypatch.context() as patch:
            patch.setattr(generative, "time", clock)
            train(self, *arguments)

    monkeypatch.setattr(generative.GenerativeBaseline, "_train", counted)
    resumed = measure(script, data, run_folder, tmp_path / "parts", **values)
    assert len(steps) == (STEPS - 10) + STEPS  # the rest on val, then all on test
    for result in (whole, resumed):
        del result["baselines"]["irgen"]["seconds"]
    assert resumed["baselines"] == whole["baselines"]


def test_all_six_make_it_complete(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "measured", lambda study, name, *_: {"rate": 1e-3})
    model = SimpleNamespace(name="m", fingerprint="f")
    monkeypatch.setattr(script, "Study", lambda *_: None)
    monkeypatch.setattr(script, "open_dataset", lambda *_: None)
    monkeypatch.setattr(script, "Model", SimpleNamespace(load=lambda *_: model))
    complete = [found["complete"] for found in script.main(tmp_path)]
    assert complete == [False] * 5 + [True]
