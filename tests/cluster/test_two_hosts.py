"""Two hosts: network namespaces with an address each, joined by a cable that can be cut (root on Linux only).

Each side sees a folder of its own at the same path, as two machines would, and one folder that both share:
the folder of a training run, as docs/design.md asks.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from genius.training.log import read_log

pytestmark = pytest.mark.slow

STAGES = Path(__file__).parents[1] / "faults" / "torchrun_stages.py"


@dataclass(frozen=True)
class Host:
    """One side: a network namespace, its address, and the folder that it alone sees at `home`."""

    namespace: str
    device: str
    address: str
    own: Path
    home: Path

    def start(self, command: Sequence[Any], **env: str) -> subprocess.Popen[str]:
        """Run a command on this host; its stdout and stderr together are a file in its own folder."""
        inside = ["sh", "-c", f'mount --bind {self.own} {self.home} && exec "$@"', "sh", *map(str, command)]
        outside = ["ip", "netns", "exec", self.namespace, "unshare", "--mount", "--propagation", "private"]
        known = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": self.device, **env}
        with (self.own / f"log-{time.monotonic_ns()}.txt").open("w") as log:
            return subprocess.Popen(
                [*outside, *inside], env=known, stdout=log, stderr=log, text=True, cwd=self.home.parent
            )

    def run(self, command: Sequence[Any], seconds: float = 240, **env: str) -> int:
        return finish(self.start(command, **env), seconds)

    def said(self) -> str:
        """The end of what its commands had to say."""
        logs = sorted(self.own.glob("log-*.txt"))[-3:]
        return "\n".join(f"{self.address}: {log.read_text()[-2500:]}" for log in logs)

    def pids(self) -> list[int]:
        found = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def kill(self) -> None:
        """The machine is switched off."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@dataclass(frozen=True)
class Pair:
    """Both hosts, and the folder that they share."""

    a: Host
    b: Host
    shared: Path

    def cut(self) -> None:
        ip("-n", self.a.namespace, "link", "set", self.a.device, "down")

    def restore(self) -> None:
        ip("-n", self.a.namespace, "link", "set", self.a.device, "up")
        ip("-n", self.a.namespace, "route", "replace", "default", "dev", self.a.device)

    def said(self) -> str:
        return f"{self.a.said()}\n{self.b.said()}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def finish(process: subprocess.Popen[Any], seconds: float) -> int:
    try:
        return process.wait(seconds)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait(pair: Pair, true: Callable[[], Any], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, pair.said()
        time.sleep(0.1)


@pytest.fixture
def hosts() -> Iterator[Pair]:
    """Two hosts, which are gone afterwards with all that runs on them."""
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("network namespaces need Linux, root, iproute2 and util-linux")
    root = Path(tempfile.mkdtemp(prefix="g2h-"))  # short: Ray puts sockets into it
    names = [f"genius-{os.getpid()}-{side}" for side in "ab"]
    made: list[Host] = []
    try:
        for side, name in zip("ab", names, strict=True):
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"network namespaces are not allowed here: {error.stderr.strip()}")
            for folder in (root / side, root / "home", root / "shared"):
                folder.mkdir(exist_ok=True)
            address = f"10.77.0.{1 + len(made)}"
            made.append(Host(name, f"cable-{side}", address, root / side, root / "home"))
        a, b = made
        ip("link", "add", a.device, "netns", a.namespace, "type", "veth", "peer", "name", b.device,
           "netns", b.namespace)  # fmt: skip
        for host in made:
            ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", host.device)
            for device in ("lo", host.device):
                ip("-n", host.namespace, "link", "set", device, "up")
            ip("-n", host.namespace, "route", "replace", "default", "dev", host.device)
        yield Pair(a, b, root / "shared")
    finally:
        for host in made:
            host.kill()
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        time.sleep(0.5)
        shutil.rmtree(root, ignore_errors=True)


# --- training ---------------------------------------------------------------------------------------------


def train(host: Host, pair: Pair, *strike: Any, **env: str) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    torchrun += ["--rdzv-backend=c10d", f"--rdzv-endpoint={pair.a.address}:29500", "--rdzv-id=job"]
    torchrun += [f"--local-addr={host.address}", f"--rdzv-conf=is_host={int(host is pair.a)},read_timeout=10"]
    return host.start([*torchrun, STAGES, pair.shared / "run", *strike], **env)


def losses(folder: Path) -> list[tuple[int, float]]:
    logs = [read_log(folder / stage / "log.jsonl") for stage in ("quantizer", "decoder")]
    return [(line["step"], line["loss"]) for log in logs for line in log if "loss" in line]


@pytest.mark.parametrize("fault", ["cut", "kill"])
def test_training_ends_in_time_when_the_other_host_is_gone_and_goes_on_later(hosts: Pair, fault: str) -> None:
    """The second host stops at its tenth step; then its cable is cut, or it is switched off."""
    (hosts.shared / "run").mkdir()
    (hosts.shared / "alone").mkdir()
    assert hosts.a.run([sys.executable, STAGES, hosts.shared / "alone"]) == 0, hosts.said()
    strike = ("1", "10", str(int(signal.SIGSTOP)))
    nodes = [train(host, hosts, *strike, GENIUS_TIMEOUT_S="10") for host in (hosts.a, hosts.b)]
    stopped: list[int] = []
    wait(hosts, lambda: stopped.extend(pid for pid in ranks(hosts) if state(pid) == "T") or stopped, 120)
    if fault == "cut":
        hosts.cut()
        os.kill(stopped[0], signal.SIGCONT)
        wait(hosts, lambda: not ranks(hosts), 120)  # both sides give up
        hosts.restore()  # torchrun itself ends where it can say so: it waits for the other's as TCP does
    elif stopped[0] in hosts.b.pids():
        hosts.b.kill()
    else:
        hosts.a.kill()
    wait(hosts, lambda: all(node.poll() is not None for node in nodes), 150)
    assert all(node.returncode for node in nodes), hosts.said()
    assert [line["step"] for line in read_log(hosts.shared / "run" / "quantizer" / "log.jsonl")][-1] == 8
    nodes = [train(host, hosts) for host in (hosts.a, hosts.b)]
    assert [finish(node, 240) for node in nodes] == [0, 0], hosts.said()
    assert losses(hosts.shared / "run") == [
        (step, pytest.approx(loss, rel=1e-3)) for step, loss in losses(hosts.shared / "alone")
    ]


def ranks(pair: Pair) -> list[int]:
    """The training processes of both hosts."""
    found = []
    for pid in (*pair.a.pids(), *pair.b.pids()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if STAGES.as_posix().encode() in words and b"torch.distributed.run" not in words:
            found.append(pid)
    return found


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
