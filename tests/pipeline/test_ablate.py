"""`genius ablate` trains, evaluates and reports variants of a recipe, and goes on where it was stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from genius import cli
from genius.evaluate.report.studies import ablation_table
from genius.pipeline import stages

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "bench.toml"


def test_one_command_that_is_stopped_and_goes_on(
    settings: dict[str, Any], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {key: value for key, value in settings.items() if not key.startswith("encoder_training")}
    changes |= {"quantizer_training.kmeans_sample": 500, "quantizer_training.tuning.steps": 2}
    changes |= {f"{stage}_training.optimiser.steps": 4 for stage in ("quantizer", "decoder")}
    changes |= {"quantizer_training.refine_rounds": 0, "quantizer_training.encode_beam": 1}
    for key in ("device", "data.root"):
        del changes[key]
    options = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    numbers = tmp_path / "ablations.json"
    command = ["genius", "ablate", str(RECIPE), "--data", str(root), "--to", str(tmp_path / "runs")]
    command += ["--cache", str(tmp_path / "cache"), "--save", str(numbers), "--split", "val", "--limit", "5"]
    command += [
        "--seeds",
        "2",
        "--variants",
        "small fusion,targets around the item alone,beam 1",
        "--device",
        "cpu",
        *options,
    ]
    monkeypatch.setattr(sys, "argv", command)

    trained: list[str] = []
    train = stages.train_stages

    def until(limit: int) -> Any:
        def stopped(recipe: Any, stage: str, folder: Path) -> None:
            if len(trained) == limit:
                raise KeyboardInterrupt
            trained.append(folder.name)
            train(recipe, stage, folder)

        return stopped

    monkeypatch.setattr(stages, "train_stages", until(3))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code
    assert json.loads(numbers.read_text())["variants"] == []
    monkeypatch.setattr(stages, "train_stages", until(99))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    both = ["base", "small-fusion", "targets-around-the-item-alone"]
    assert sorted(trained) == sorted(name + seed for name in both for seed in ("", "-seed1"))

    outcome = json.loads(numbers.read_text())
    assert outcome["command"].startswith("genius ablate")
    assert "--data BENCH" in outcome["command"]
    assert [by["command"] for by in outcome["trained_by"]] == [outcome["command"]]
    assert {"commit", "versions", "seeds", "split", "recipe"} <= outcome.keys()
    lines = {line[0]: line for line in ablation_table(outcome).lines}
    assert lines.keys() == {"base", "small fusion", "targets around the item alone", "beam 1"}
    assert all(len(v["effects"]["genius"]["by_seed"]) == 2 for v in outcome["variants"])
