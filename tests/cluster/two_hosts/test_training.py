"""torchrun over two hosts: the cable is cut, or one of them is switched off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
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


def logged_steps(folder: Path) -> list[int]:
    return [line["step"] for line in read_log(folder / "log.jsonl")]


def test_training_ends_in_time_when_the_other_host_is_gone_and_goes_on_later(hosts: Any) -> None:
    """The cable is cut in stage 1, the next run loses a host in stage 2, the third ends as one host does."""
    alone, run = (hosts.shared / name for name in ("alone", "run"))
    for folder in (alone, run):
        folder.mkdir()
    interrupted(hosts, run, 10, lambda stopped: cut_off(hosts, stopped))
    assert logged_steps(run / "quantizer")[-1] == 8
    # four steps of stage 1 are left; with them, the fifteenth is the eleventh of stage 2
    interrupted(hosts, run, 14, lambda stopped: switched_off(hosts, stopped))
    assert logged_steps(run / "quantizer")[-1] == 12 and logged_steps(run / "decoder")[-1] == 8
    nodes = [train(host, hosts, run) for host in (hosts.a, hosts.b)]
    assert hosts.a.run([sys.executable, STAGES, alone]) == 0, hosts.said()
    hosts.wait(lambda: all(node.poll() is not None for node in nodes), 240)
    assert [node.returncode for node in nodes] == [0, 0], hosts.said()
    assert losses(run) == [(step, pytest.approx(loss, rel=1e-3)) for step, loss in losses(alone)]


def interrupted(pair: Any, run: Path, step: int, fault: Callable[[int], None]) -> None:
    """Train; the second process stops before that step, and then comes the fault: both sides end non-zero."""
    strike = ("1", str(step), str(int(signal.SIGSTOP)))
    nodes = [train(host, pair, run, *strike, GENIUS_TIMEOUT_S="10") for host in (pair.a, pair.b)]
    stopped: list[int] = []
    pair.wait(lambda: stopped.extend(pid for pid in ranks(pair) if state(pid) == "T") or stopped, 120)
    fault(stopped[0])
    pair.wait(lambda: all(node.poll() is not None for node in nodes), 150)
    assert all(node.returncode for node in nodes), pair.said()


def cut_off(pair: Any, stopped: int) -> None:
    pair.cut()
    os.kill(stopped, signal.SIGCONT)
    pair.wait(lambda: not ranks(pair), 120)  # both sides give up
    pair.restore()  # torchrun itself ends where it can say so: it waits for the other's as TCP does


def switched_off(pair: Any, stopped: int) -> None:
    host = pair.b if stopped in pair.b.processes() else pair.a
    host.kill()


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
