"""Two hosts: network namespaces with an address each, joined by a cable that can be cut (root on Linux only).

Each side sees a folder of its own at the same path, as two machines would. One folder is shared, for what the
docs ask to share: the folder of a training run, sources, and `--parts`.
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

    def processes(self) -> dict[int, list[bytes]]:
        """The command lines of what runs on this host."""
        found = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True)
        words = {}
        for pid in map(int, found.stdout.split()):
            try:
                words[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended
                continue
        return words

    def kill(self) -> None:
        """The machine is switched off."""
        for pid in self.processes():
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

    def wait(self, true: Callable[[], Any], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, self.said()
            time.sleep(0.1)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def finish(process: subprocess.Popen[Any], seconds: float) -> int:
    try:
        return process.wait(seconds)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
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
