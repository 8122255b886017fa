"""Fault 12 for stage 2: training killed with SIGKILL and started again gives the losses of one left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from genius.training.log import read_log

SCRIPT = Path(__file__).resolve().parents[1] / "decode" / "clusters.py"


def train(folder: Path, die_at: int = -1) -> int:
    """Run 30 steps with dropout in a process of their own, which kills itself at the given step."""
    command = [sys.executable, str(SCRIPT), str(folder), "0.2", str(die_at)]
    return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600).returncode


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    assert train(folder) == 0
    return folder


@pytest.mark.parametrize("die_at", [4, 17])  # before and after the first checkpoint
def test_killed_and_resumed_training_gives_the_same_losses(
    left_alone: Path, tmp_path: Path, die_at: int
) -> None:
    assert train(tmp_path, die_at) == -signal.SIGKILL
    assert (tmp_path / "checkpoint.safetensors").exists() == (die_at > 10)
    assert train(tmp_path) == 0
    alone, resumed = (read_log(folder / "log.jsonl") for folder in (left_alone, tmp_path))
    timeless = [
        [{k: v for k, v in line.items() if k != "samples_per_s"} for line in log] for log in (alone, resumed)
    ]
    assert timeless[0] == timeless[1]
    assert (left_alone / "best.safetensors").read_bytes() == (tmp_path / "best.safetensors").read_bytes()
