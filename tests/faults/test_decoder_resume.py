"""Fault 12 for stage 2: training killed with SIGKILL and started again gives the losses of one left alone."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from genius.training.log import read_log

SCRIPT = Path(__file__).resolve().parents[1] / "decode" / "clusters.py"


def test_killed_and_resumed_training_gives_the_same_losses(start_script: Any, tmp_path: Path) -> None:
    """30 steps with dropout, in processes that kill themselves at the given step."""

    def train(folder: Path, die_at: int = -1) -> int | None:
        process = start_script(SCRIPT, folder, 0.2, die_at)
        process.join(600)
        return process.exitcode

    left_alone, killed = tmp_path / "alone", tmp_path / "killed"
    assert train(left_alone) == 0
    for die_at in (4, 17):  # before the first checkpoint, and after it
        assert train(killed, die_at) == -signal.SIGKILL
        assert (killed / "checkpoint.safetensors").exists() == (die_at > 10)
    assert train(killed) == 0
    alone, resumed = (read_log(folder / "log.jsonl") for folder in (left_alone, killed))
    timeless = [
        [{k: v for k, v in line.items() if k != "samples_per_s"} for line in log] for log in (alone, resumed)
    ]
    assert timeless[0] == timeless[1]
    assert (left_alone / "best.safetensors").read_bytes() == (killed / "best.safetensors").read_bytes()
