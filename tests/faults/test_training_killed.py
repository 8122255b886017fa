"""Fault 12: training that is killed and started again gives the losses of a run left alone (CPU)."""

import os
import signal
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from genius.training.log import read_log

SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
import torch
from genius.quantize import train as module
from genius.quantize.fusion import PRESETS
from genius.quantize.model import Quantizer, save_quantizer
from genius.data.pairs import build_pairs
from genius.config import OptimiserConfig

torch.manual_seed(0)
torch.set_num_threads(1)
PRESETS["small"] = (32, 32)
random = np.random.default_rng(0)
images = random.standard_normal((60, 16), dtype=np.float32)
texts = images + random.standard_normal((60, 16), dtype=np.float32) / 2
pairs = build_pairs(images, texts, query_image=[-1] * 60, query_texts=[[i] for i in range(60)],
                    positives=[[i] for i in range(60)], item_image=range(60), item_text=[-1] * 60)
quantizer = Quantizer(16, (3, 8, 8), fusion="small", dropout=0.1)
slow = float(sys.argv[2])
plain = module.make_step
def slowed(*arguments):
    step = plain(*arguments)
    def wait(number):
        time.sleep(slow)
        return step(number)
    return wait
module.make_step = slowed
folder = Path(sys.argv[1])
module.train_quantizer(quantizer, pairs, pairs, OptimiserConfig(steps=60, batch=16, rate=1e-3, check_every=5),
                       module.QuantizerObjective(temperature=0.1), folder=folder, seed=3, kmeans_sample=100,
                       refine_rounds=2, show=False)
save_quantizer(quantizer, folder)
"""


def losses(folder: Path) -> list[tuple[int, float, float]]:
    lines = read_log(folder / "log.jsonl")
    return [(line["step"], line.get("loss"), line.get("hit@5")) for line in lines]


def finish(process):
    process.join(600)
    return process.exitcode


def test_killed_again_and_again_it_ends_as_one_left_alone(start_script, tmp_path):
    script = tmp_path / "stage.py"
    script.write_text(SCRIPT)
    alone = start_script(script, tmp_path / "alone", 0.0)
    killed = 0
    for least in (1, 20, 35):  # steps that must be done before the next kill
        process = start_script(script, tmp_path / "killed", 0.05)
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline and process.is_alive():
            done = losses(tmp_path / "killed")
            if done and done[-1][0] >= least:
                process.kill()
                killed += 1
                break
            time.sleep(0.02)
        finish(process)
    assert killed == 3
    assert finish(start_script(script, tmp_path / "killed", 0.0)) == 0
    assert finish(alone) == 0
    assert losses(tmp_path / "killed") == losses(tmp_path / "alone")
    one, other = (load_file(tmp_path / name / "quantizer.safetensors") for name in ("alone", "killed"))
    assert one.keys() == other.keys()
    assert all(bool((one[name] == other[name]).all()) for name in one)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_ends_the_run_with_a_failure_and_whole_files(start_script, tmp_path, kind):
    script = tmp_path / "stage.py"
    script.write_text(SCRIPT)
    process = start_script(script, tmp_path / "run", 0.05)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and not (tmp_path / "run" / "checkpoint.safetensors").exists():
        time.sleep(0.02)
    os.kill(process.pid, kind)
    assert finish(process) not in (0, None)
    assert not list((tmp_path / "run").glob("*.part"))
    assert load_file(tmp_path / "run" / "checkpoint.safetensors")
