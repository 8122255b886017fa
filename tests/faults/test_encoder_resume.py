"""Fault 12 for stage 0: training killed with SIGKILL and started again gives the losses of one left alone."""

from __future__ import annotations

import runpy
import signal
from pathlib import Path
from typing import Any

import pytest

from genius.training.log import read_log

SCRIPT = Path(__file__).resolve().parents[1] / "pipeline" / "tiny.py"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(runpy.run_path(str(SCRIPT))["write_mbeir"](tmp_path_factory.mktemp("data")))


def test_killed_and_resumed_training_gives_the_same_losses(
    start_script: Any, data: Path, tmp_path: Path
) -> None:
    """12 steps with random views, a checkpoint every 4, in processes that kill themselves at a step."""

    def train(folder: Path, die_at: int = -1) -> int | None:
        process = start_script(SCRIPT, data, folder, die_at)
        process.join(240)
        return process.exitcode

    alone, killed = tmp_path / "alone", tmp_path / "killed"
    assert train(alone) == 0
    assert train(killed, die_at=2) == -signal.SIGKILL  # before the first checkpoint
    assert not (killed / "checkpoint.safetensors").exists()
    assert train(killed, die_at=6) == -signal.SIGKILL  # after it
    assert read_log(killed / "log.jsonl")[-1]["step"] == 4
    assert train(killed) == 0
    logs = [
        [{k: v for k, v in line.items() if k != "samples_per_s"} for line in read_log(folder / "log.jsonl")]
        for folder in (alone, killed)
    ]
    assert [line["step"] for line in logs[0]] == [4, 4, 8, 8, 12, 12]
    assert logs[0] == logs[1]
    assert (alone / "best.safetensors").read_bytes() == (killed / "best.safetensors").read_bytes()
