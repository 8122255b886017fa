"""torchrun over two hosts: the cable is cut, or one of them is switched off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from genius.training.log import read_log

pytestmark = pytest.mark.slow

STAGES = Path(__file__).parents[2] / "faults" / "torchrun_stages.py"


def train(host: Any, pair: Any, run: Path, *strike: Any, **env: str) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    torchrun += ["--rdzv-backend=c10d", f"--rdzv-endpoint={pair.a.address}:29500", f"--rdzv-id={run.name}"]
    torchrun += [f"--local-addr={host.address}", f"--rdzv-conf=is_host={int(host is pair.a)},read_timeout=10"]
    return host.start([*torchrun, STAGES, run, *strike], **env)


def losses(folder: Path) -> list[tuple[int, float]]:
    logs = [read_log(folder / stage / "log.jsonl") for stage in ("quantizer", "decoder")]
    return [(line["step"], line["loss"]) for log in logs for line in log if "loss" in line]


@pytest.fixture(scope="module")
def expected(hosts: Any) -> list[tuple[int, Any]]:
    """The losses of a run on one host."""
    (hosts.shared / "alone").mkdir()
    assert hosts.a.run([sys.executable, STAGES, hosts.shared / "alone"]) == 0, hosts.said()
    return [(step, pytest.approx(loss, rel=1e-3)) for step, loss in losses(hosts.shared / "alone")]


@pytest.mark.parametrize("fault", ["cut", "kill"])
def test_training_ends_in_time_when_the_other_host_is_gone_and_goes_on_later(
    hosts: Any, expected: list[Any], fault: str
) -> None:
    """The second process stops at its tenth step; then the cable is cut, or its host is switched off."""
    run = hosts.shared / fault
    run.mkdir()
    strike = ("1", "10", str(int(signal.SIGSTOP)))
    nodes = [train(host, hosts, run, *strike, GENIUS_TIMEOUT_S="10") for host in (hosts.a, hosts.b)]
    stopped: list[int] = []
    hosts.wait(lambda: stopped.extend(pid for pid in ranks(hosts) if state(pid) == "T") or stopped, 120)
    if fault == "cut":
        hosts.cut()
        os.kill(stopped[0], signal.SIGCONT)
        hosts.wait(lambda: not ranks(hosts), 120)  # both sides give up
        hosts.restore()  # torchrun itself ends where it can say so: it waits for the other's as TCP does
    elif stopped[0] in hosts.b.processes():
        hosts.b.kill()
    else:
        hosts.a.kill()
    hosts.wait(lambda: all(node.poll() is not None for node in nodes), 150)
    assert all(node.returncode for node in nodes), hosts.said()
    assert [line["step"] for line in read_log(run / "quantizer" / "log.jsonl")][-1] == 8
    nodes = [train(host, hosts, run) for host in (hosts.a, hosts.b)]
    hosts.wait(lambda: all(node.poll() is not None for node in nodes), 240)
    assert [node.returncode for node in nodes] == [0, 0], hosts.said()
    assert losses(run) == expected


def ranks(pair: Any) -> list[int]:
    """The training processes of both hosts."""
    processes = {**pair.a.processes(), **pair.b.processes()}
    stages = STAGES.as_posix().encode()
    return [
        pid for pid, words in processes.items() if stages in words and b"torch.distributed.run" not in words
    ]


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
