"""Training under torchrun: two processes or machines make what one makes; one may die or hang (fault 13)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from genius.errors import BadInput
from genius.training import distributed
from genius.training.log import read_log

SCRIPT = Path(__file__).with_name("torchrun_stages.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TWO = [*TORCHRUN, "--standalone", "--nproc-per-node=2"]
KILL_TENTH = ["1", "10", str(int(signal.SIGKILL))]  # the second process, at its tenth step


def start(command: Sequence[str], folder: Path, *strike: str, **env: str) -> subprocess.Popen[bytes]:
    words = [*command, str(SCRIPT), str(folder), *strike]
    known = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **env}
    with (folder / f"stderr-{time.monotonic_ns()}.txt").open("w") as told:
        return subprocess.Popen(words, env=known, stderr=told)


def told(folder: Path) -> str:
    """What the last runs had to say."""
    return "\n".join(file.read_text()[-3000:] for file in sorted(folder.glob("stderr-*.txt")))


def finish(process: subprocess.Popen[bytes], seconds: float = 300) -> int:
    try:
        return process.wait(seconds)
    finally:
        if process.poll() is None:
            process.kill()


def train_alone(start_script: Any, folder: Path) -> None:
    """A run of one process, or the rest of a run that others began."""
    process = start_script(SCRIPT, folder)
    process.join(300)
    assert process.exitcode == 0


@pytest.fixture(scope="module")
def alone(start_script: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    folder = tmp_path_factory.mktemp("alone")
    train_alone(start_script, folder)
    return folder


def assert_same(one: Path, other: Path) -> None:
    """Losses, codebooks and weights of two runs, within what the order of sums does."""
    for stage in ("quantizer", "decoder"):
        for mine, theirs in zip(*(read_log(f / stage / "log.jsonl") for f in (one, other)), strict=True):
            assert mine["step"] == theirs["step"]
            for name in mine.keys() & {"loss", "contrastive", "residual", "agreement", "rate"}:
                assert mine[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-6), (stage, name)
            for name in mine.keys() & {"hit@5"}:
                assert mine[name] == pytest.approx(theirs[name], abs=2e-3), (stage, name)
        weights = [load_file(folder / f"{stage}.safetensors") for folder in (one, other)]
        assert weights[0].keys() == weights[1].keys()
        for name, tensor in weights[0].items():
            torch.testing.assert_close(tensor, weights[1][name], rtol=1e-3, atol=1e-3, msg=f"{stage} {name}")


def test_two_machines_train_one_model(alone, tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    more = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
    nodes = [start([*TORCHRUN, *more, "--rdzv-id=job", "--local-addr=127.0.0.1"], tmp_path) for _ in range(2)]
    assert [finish(node) for node in nodes] == [0, 0], told(tmp_path)
    assert_same(alone, tmp_path)


def test_a_killed_process_ends_the_job_and_another_number_of_them_goes_on(
    alone, start_script, tmp_path
) -> None:
    began = time.monotonic()
    assert finish(start(TWO, tmp_path, *KILL_TENTH), 120) != 0
    assert time.monotonic() - began < 100
    done = [line["step"] for line in read_log(tmp_path / "quantizer" / "log.jsonl")]
    assert done and max(done) == 8  # of 12: the last checkpoint before the tenth step
    assert not (tmp_path / "decoder").exists()
    train_alone(start_script, tmp_path)
    assert_same(alone, tmp_path)


def test_two_processes_make_what_one_makes_though_one_is_killed_and_started_again(alone, tmp_path) -> None:
    """Both go on from the checkpoint."""
    assert finish(start([*TWO, "--max-restarts=1"], tmp_path, *KILL_TENTH)) == 0, told(tmp_path)
    assert_same(alone, tmp_path)


def test_a_process_that_hangs_ends_the_job(tmp_path) -> None:
    """It is not dead: only the timeout can tell."""
    began = time.monotonic()
    assert finish(start(TWO, tmp_path, "1", "10", "0", GENIUS_TIMEOUT_S="5"), 150) != 0
    assert time.monotonic() - began < 120


def test_every_query_once_in_an_epoch_however_many_processes(monkeypatch) -> None:
    """100 queries in batches of 12 over 1, 2 and 4 processes: no duplicate, no gap, none waits at the end."""
    from genius.data.pairs import build_pairs

    vectors = torch.randn(100, 4).numpy()
    pairs = build_pairs(
        vectors, vectors, query_image=range(100), query_texts=[[i] for i in range(100)],
        positives=[[i] for i in range(100)], item_image=range(100), item_text=[-1] * 100,
    )  # fmt: skip
    orders = []
    for world in (1, 2, 4):
        monkeypatch.setattr(distributed, "world_size", lambda world=world: world)
        order: list[int] = []
        for step in range(25):  # three epochs
            for rank in range(world):
                monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
                batch: Any = pairs.sample(step, 12, seed=0)
                own = batch.query[distributed.rank_slice(len(batch.query))]
                assert len(own) == 12 // world
                order += own.tolist()
        orders.append(order)
    assert orders[0] == orders[1] == orders[2]
    assert [sorted(order) for order in (orders[0][:100], orders[0][100:200])] == [list(range(100))] * 2


def test_a_folder_that_is_not_shared_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(distributed, "world_size", lambda: 2)

    def gather(seen: list[Any], here: bool) -> None:
        seen[:] = [here, not here]

    monkeypatch.setattr(distributed.dist, "all_gather_object", gather)
    with pytest.raises(BadInput, match="seen by 1 of 2 processes: give --to a folder that all"):
        distributed.exists_on_all_ranks(tmp_path / "checkpoint.safetensors")
