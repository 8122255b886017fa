"""benchmarks/generative.py on mixed colours: it chooses rates on val, resumes, and keeps to its budget."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from genius.config import load_recipe
from genius.decode.shape import DecoderShape
from genius.evaluate.baselines import generative
from genius.evaluate.options import GenerativeConfig

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "generative.py"
STEPS = 80
SMALL = [f"decoder_training.optimiser.{key}={value}" for key, value in
         {"steps": STEPS, "batch": 48, "warmup": 5, "precision": '"float32"'}.items()]  # fmt: skip
RATES = [1e-5, 1e-2]


@pytest.fixture
def script(load_file, tiny_model, monkeypatch):
    """The script with a tiny model, and a decoder small enough for seconds."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    loaded = load_file(SCRIPT)
    monkeypatch.setattr(loaded, "Model", SimpleNamespace(load=lambda *_: tiny_model()))
    like = GenerativeConfig.like_decoder
    small = lambda recipe: replace(like(recipe), network=(1, 32, 1, 32, 64), prefix=2, beam=20)  # noqa: E731
    monkeypatch.setattr(loaded, "GenerativeConfig", SimpleNamespace(like_decoder=small))
    return loaded


@pytest.fixture
def data(root):
    """Texts that name two colours ask for the picture of their mixture; train, val and test are the same."""
    from_world = ["red", "green", "blue", "yellow", "black", "white", "pink", "grey"]
    pairs = list(itertools.combinations(from_world, 2))
    shown = {
        name: np.asarray(Image.open(root.path / root.picture(name, name)))[0, 0].astype(float)
        for name in from_world
    }
    items, asked = [], []
    for number, (one, other) in enumerate(pairs):
        file = f"mbeir_images/mixed-{number}.png"
        colour = tuple(((shown[one] + shown[other]) / 2).round().astype(int).tolist())
        Image.new("RGB", (8, 8), colour).save(root.path / file)
        items.append({"id": f"30:{number}", "img": file})
        asked.append({"id": f"30:{number}", "txt": f"{one} and {other}", "positives": [f"30:{number}"]})
    root.row("mixed", 30, 0, asked, items)
    for file in [f for f in root.path.rglob("*") if f.is_file() and f.suffix != ".png"]:
        for split in ("train", "val"):
            if "test" in file.name:
                folder = file.parent.parent / split if file.parent.name == "test" else file.parent
                folder.mkdir(exist_ok=True)
                (folder / file.name.replace("test", split)).write_text(file.read_text())
    return root.path


def measure(script, data, cache, **values):
    options = {"seeds": 2, "more": 2, "rates": RATES, "baselines": ["irgen"], "change": SMALL} | values
    *_, last = script.main(data, cache=cache, **options)
    return dict(last)


def test_the_default_is_the_decoder_of_our_recipe():
    recipe = load_recipe("bench")
    config = GenerativeConfig.like_decoder(recipe)
    assert config == GenerativeConfig()
    optimiser = recipe.decoder_training.optimiser
    assert (config.steps, config.batch) == (optimiser.steps, optimiser.batch)
    system = generative.GenerativeBaseline("irgen", lambda: None, config)
    ours = recipe.decoder
    shape = DecoderShape.preset(ours.preset, 24, (16, 8), ours.prefix, ours.dropout)
    assert system._fresh_decoder(24, (16, 8)).shape == shape


def test_rates_are_chosen_on_val_and_test_is_searched_with_each_seed(script, data, tmp_path):
    found = measure(script, data, tmp_path)
    assert found["samples"] == STEPS * 48
    assert not found["complete"]  # one of six baselines
    irgen = found["baselines"]["irgen"]
    slow, fast = (each["curve"] for each in irgen["rates"])
    assert [step for step, _ in fast] == list(range(10, STEPS + 1, 10))
    assert fast[-1][1] > slow[-1][1] + 0.2  # a rate that learns nothing is not taken
    assert irgen["rate"] == RATES[1]
    assert irgen["more"]["curve"][-1][0] == 2 * STEPS
    for setting in ("universal", "local"):
        test = irgen["test"][setting]
        assert len(test["seeds"]) == 2
        assert test["headline"] == pytest.approx(sum(test["seeds"]) / 2)
        assert [(row["dataset"], row["task"]) for row in test["rows"]] == [("mixed", 0)]
        assert test["headline"] > 0.4


def test_a_run_that_is_out_of_time_goes_on_at_its_last_checkpoint(script, data, tmp_path, monkeypatch):
    values = {"seeds": 1, "more": 1, "rates": RATES[1:]}
    whole = measure(script, data, tmp_path / "whole", **values)
    ticks = itertools.chain([0.0] * 23, itertools.repeat(math.inf))  # of the clock, one a step
    with monkeypatch.context() as patch:
        patch.setattr(generative, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
        stopped = measure(script, data, tmp_path / "parts", **values, budget=1e9)
    assert stopped["baselines"] == {} and not stopped["complete"]
    assert "irgen: no time is left at step 23" in stopped["stopped"]

    steps = []
    monkeypatch.setattr(generative, "time", SimpleNamespace(monotonic=lambda: steps.append(1) or 0.0))
    resumed = measure(script, data, tmp_path / "parts", **values)
    assert len(steps) == STEPS - 20  # the rest on val; test has the same items, and nothing is learned twice
    for result in (whole, resumed):
        del result["baselines"]["irgen"]["seconds"]
    assert resumed["baselines"] == whole["baselines"]


def test_all_six_make_it_complete(script, monkeypatch, tmp_path):
    monkeypatch.setattr(script, "measured", lambda study, name, *_: {"rate": 1e-3})
    monkeypatch.setattr(script, "Study", lambda *_: None)
    monkeypatch.setattr(script, "open_dataset", lambda *_: None)
    complete = [found["complete"] for found in script.main(tmp_path)]
    assert complete == [False] * 5 + [True]
