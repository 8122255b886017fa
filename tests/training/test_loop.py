import json
from pathlib import Path

import pytest
import torch
from torch import nn

from genius.config import OptimiserConfig
from genius.errors import BadInput, ModelMismatch, TrainingStopped
from genius.seeding import generator_for
from genius.training import loop
from genius.training.log import read_log
from genius.training.loop import run
from genius.weights import save_weights

PLAN = OptimiserConfig(steps=24, batch=8, rate=0.05, warmup=4, weight_decay=0.1, check_every=6)


def regression(seed: int = 0):
    """A module and its step: fit y = x W with dropout, fresh x at each step."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    target = torch.tensor([1.0, -2.0, 0.5, 0.0])

    def step(number: int):
        x = torch.randn(8, 4, generator=generator_for("cpu", 5, "data", number))
        return {"loss": ((module(x).squeeze(1) - x @ target) ** 2).mean()}

    return module, step


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in read_log(folder / "log.jsonl") if "loss" in line]


@pytest.mark.parametrize(("clip", "most"), [(0.0, float("inf")), (0.5, 0.5)])
def test_gradients_are_clipped_as_the_recipe_says(tmp_path, monkeypatch, clip, most):
    given = []
    plain = nn.utils.clip_grad_norm_

    def noted(parameters, longest):
        given.append(longest)
        return plain(parameters, longest)

    monkeypatch.setattr(nn.utils, "clip_grad_norm_", noted)
    module, step = regression()
    plan = PLAN.model_copy(update={"steps": 3, "clip": clip})
    run("toy", module, step, plan, folder=tmp_path, seed=1, show=False)
    assert given == [most] * 3


def test_only_the_first_process_validates(tmp_path, monkeypatch):
    monkeypatch.setattr(loop.distributed, "is_main", lambda: False)
    monkeypatch.setattr(loop.distributed, "broadcast_values", lambda values: {**values, "hit@5": 0.25})

    def validate():
        raise AssertionError("a process beside the first one validates")

    module, step = regression()
    plan = PLAN.model_copy(update={"steps": 6})
    result = run("toy", module, step, plan, folder=tmp_path, seed=1, validate=validate, show=False)
    assert result.metrics == {"hit@5": 0.25}  # what the first process found


class Killed(Exception):
    pass


def killed_at(step, number_of_death):
    def dying(number: int):
        if number == number_of_death:
            raise Killed
        return step(number)

    return dying


@pytest.mark.parametrize("death", [3, 6, 13, 23])
def test_a_resumed_run_gives_the_losses_and_weights_of_one_left_alone(tmp_path, death):
    module, step = regression()
    alone = run("toy", module, step, PLAN, folder=tmp_path / "a", seed=1, log_every=4, show=False)
    other, step = regression()
    with pytest.raises(Killed):
        run(
            "toy", other, killed_at(step, death), PLAN, folder=tmp_path / "b", seed=1, log_every=4, show=False
        )
    other, step = regression(seed=99)  # other weights at first: all must come from the checkpoint or step 0
    if death < PLAN.check_every:
        other, step = regression()
    resumed = run("toy", other, step, PLAN, folder=tmp_path / "b", seed=1, log_every=4, show=False)
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert alone.losses == resumed.losses
    for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert losses(tmp_path / "a")[-1][1] < losses(tmp_path / "a")[0][1] / 2


def test_a_run_may_be_checked_more_or_less_often_when_it_is_resumed(tmp_path):
    module, step = regression()
    alone = run("toy", module, step, PLAN, folder=tmp_path / "a", seed=1, show=False)
    other, step = regression()
    often = PLAN.model_copy(update={"check_every": 2})
    with pytest.raises(Killed):
        run("toy", other, killed_at(step, 5), often, folder=tmp_path / "b", seed=1, show=False)
    other, step = regression(seed=99)
    assert run("toy", other, step, PLAN, folder=tmp_path / "b", seed=1, show=False).steps == alone.steps
    for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    faster = PLAN.model_copy(update={"rate": 2 * PLAN.rate})
    with pytest.raises(BadInput, match="another rate"):
        run("toy", other, step, faster, folder=tmp_path / "b", seed=1, show=False)


def test_a_finished_run_is_not_run_again(tmp_path):
    module, step = regression()
    first = run("toy", module, step, PLAN, folder=tmp_path, seed=1, show=False)
    again = run("toy", module, killed_at(step, 0), PLAN, folder=tmp_path, seed=1, show=False)
    assert first == again


def test_early_stop_keeps_the_best_weights(tmp_path):
    module, step = regression()
    kept = {}
    scores = iter([0.2, 0.5, 0.4, 0.3, 0.9])

    def validate():
        assert not module.training
        figures = {"hit@5": next(scores)}
        kept[figures["hit@5"]] = module[0].weight.clone()
        return figures

    plan = OptimiserConfig(steps=60, batch=8, rate=0.05, check_every=6, patience=2)
    result = run("toy", module, step, plan, folder=tmp_path, seed=1, validate=validate, show=False)
    assert (result.steps, result.best_step, result.metrics) == (24, 12, {"hit@5": 0.5})
    assert torch.equal(module[0].weight, kept[0.5])


def test_nan_stops_with_step_and_figure_and_leaves_the_checkpoint(tmp_path):
    module, step = regression()

    def spoilt(number: int):
        found = step(number)
        return {**found, "part": found["loss"] * (torch.nan if number >= 8 else 1.0)}

    with pytest.raises(TrainingStopped, match=r"part = nan at step 9;"):
        run("toy", module, spoilt, PLAN, folder=tmp_path, seed=1, show=False)
    assert (tmp_path / "checkpoint.safetensors").exists()
    with pytest.raises(TrainingStopped, match=r"loss = inf, gradient = (nan|inf) at step 11;"):
        run(
            "toy",
            module,
            lambda n: {"loss": step(n)["loss"] * (torch.inf if n == 10 else 1.0)},
            PLAN,
            folder=tmp_path,
            seed=1,
            show=False,
        )


def test_a_run_with_other_values_is_refused(tmp_path):
    module, step = regression()
    run("toy", module, step, PLAN, folder=tmp_path, seed=1, settings={"sizes": (3, 8)}, show=False)
    with pytest.raises(BadInput, match="another seed, sizes"):
        run("toy", module, step, PLAN, folder=tmp_path, seed=2, settings={"sizes": (3, 9)}, show=False)


def test_bfloat16_trains(tmp_path):
    module, step = regression()
    plan = OptimiserConfig(steps=60, batch=8, rate=0.02, precision="bfloat16", check_every=60)
    run("toy", module, step, plan, folder=tmp_path, seed=1, log_every=20, show=False)
    history = losses(tmp_path)
    assert history[-1][1] < history[0][1] / 2


def test_a_damaged_or_foreign_checkpoint_is_refused(tmp_path):
    module, step = regression()
    file = tmp_path / "checkpoint.safetensors"
    file.write_bytes(b"\x80\x04pickle")
    with pytest.raises(ModelMismatch, match="not a checkpoint of genius"):
        run("toy", module, step, PLAN, folder=tmp_path, seed=1, show=False)
    save_weights(module.state_dict(), file)
    with pytest.raises(ModelMismatch, match="not a checkpoint of genius"):
        run("toy", module, step, PLAN, folder=tmp_path, seed=1, show=False)


SCRIPT = """
import sys
from pathlib import Path
import torch
from torch import nn
from genius.training import distributed
from genius.training.loop import run
from genius.seeding import generator_for
from genius.config import OptimiserConfig

folder = Path(sys.argv[1])
with distributed.process_group("cpu") as device:
    torch.manual_seed(distributed.rank())  # weights differ until the loop makes them the same
    module = nn.Linear(4, 4, bias=False)
    if distributed.is_main():
        nn.init.eye_(module.weight)
    else:
        nn.init.zeros_(module.weight)

    def step(number):
        x = torch.randn(8, 4, generator=generator_for("cpu", 0, number))[distributed.rank_slice(8)]
        z = module(x)
        everyone = distributed.all_gather_rows(z)
        scores = z @ everyone.T
        first = distributed.rank_slice(8).start
        loss = nn.functional.cross_entropy(scores, torch.arange(first, first + len(x)))
        return {"loss": loss}

    run("toy", module, step, OptimiserConfig(steps=6, batch=8, rate=0.01, check_every=3), folder=folder,
        seed=0, validate=lambda: {"hit@5": float(module.weight.sum())}, log_every=1, show=False)
"""


def test_two_processes_do_what_one_does(run_by_one_and_two, tmp_path):
    script = tmp_path / "toy.py"
    script.write_text(SCRIPT)
    run_by_one_and_two(script, tmp_path)
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) == 6
    for (step, mine), (also, theirs) in zip(one, two, strict=True):
        assert step == also
        assert mine == pytest.approx(theirs, rel=1e-5)


def test_the_log_survives_a_cut_line(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps({"step": 1, "loss": 2.0}) + '\n{"step": 2, "lo')
    assert read_log(file) == [{"step": 1, "loss": 2.0}]
