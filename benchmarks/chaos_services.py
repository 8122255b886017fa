"""Servers in chaos.py, alone or on Ray, and the clients that search and write through them."""

from __future__ import annotations

import random
import re
import signal
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from chaos_actors import GENIUS, PATIENCE_S, Actor, Gaps, Program
from chaos_judge import Answer, Judge
from chaos_roles import ASK, COLOURS, apply, found, item, next_operation, stored

from genius import Client
from genius.errors import GeniusError

RECOVERY_S = 30.0  # in which Ray's own proxy may answer 404 or 500, while the front starts again
SEARCH_S = 40.0  # in which a search is answered, or given up


class Service(Program):
    """`genius serve`, alone or on Ray; started again on the same port."""

    def __init__(self, name: str, index: Path, env: dict[str, str], more: list[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        command = [*GENIUS, "serve", "--in", str(index), "--port", str(self.port), "--quiet", *more]
        super().__init__(name, command, env)
        self.url = f"http://127.0.0.1:{self.port}"
        self.ready = False
        self.struck_at = -RECOVERY_S  # when a replica or the front of a cluster was killed
        self.longest_restart = 0.0
        self.gaps = Gaps()
        self._down_since: float | None = None
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    @property
    def longest_gap(self) -> float:
        """Seconds."""
        return self.gaps.longest

    def start(self) -> None:
        """Begin, and look at /readyz now and then."""
        super().start()
        self._watcher.start()

    def signal(self, number: int) -> bool:
        """A server that is stopped or gone does not answer."""
        self.gaps.excuse()
        if number == signal.SIGKILL:
            self.ready, self._down_since = False, time.monotonic()
        return super().signal(number)

    def memory_mb(self) -> float:
        """Of the process and its children; 0 while it is not there."""
        pid, total = self.pid, 0.0
        for each in [pid, *_children(pid)] if pid else []:
            with suppress(OSError, IndexError):
                status = Path(f"/proc/{each}/status").read_text()
                total += int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024
        return total

    def _watch(self) -> None:
        while not self._stopping.wait(0.25):
            try:
                with urlopen(f"{self.url}/readyz", timeout=10) as answer:
                    self.ready = answer.status == 200
            except OSError:
                self.ready = False
                continue
            if self.ready and self._down_since is not None:
                self.longest_restart = max(self.longest_restart, time.monotonic() - self._down_since)
                self._down_since = None


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in task.read_text().split()]
    return found


class Searcher(Actor):
    """A client that asks a service for everything."""

    def __init__(self, name: str, judge: Judge, service: Service, key: str) -> None:
        super().__init__(name)
        self._judge, self._service, self._key = judge, service, key

    def _work(self) -> None:
        chance = random.Random(1)
        with Client(self._service.url, self._key, timeout=SEARCH_S) as client:
            while not self._service.ready and not self._stopping.wait(0.2):
                pass
            while not self._stopping.is_set():
                asked, generation = time.monotonic(), self._service.generation
                try:
                    hits = client.search(chance.choice(COLOURS), **ASK)  # type: ignore[arg-type]
                except GeniusError as error:
                    self._refused(error)
                    self._stopping.wait(0.5)
                    continue
                answered = time.monotonic()
                self.operations["searches"] += 1
                if generation == self._service.generation:
                    self._service.gaps.answered(answered)
                self._judge.add(Answer(self.name, asked, answered, found(hits)))
                self._stopping.wait(chance.uniform(0.0, 0.1))

    def _refused(self, error: GeniusError) -> None:
        status = getattr(error, "status", None)
        if time.monotonic() - self._service.struck_at < RECOVERY_S:
            self.refused["no front"] += 1
        elif status is None or status == 500:
            self.unexpected.append(f"{type(error).__name__}: {error}")
        elif status == 0 and "timed out" in str(error):
            self.refused["no answer in time"] += 1
        else:
            self.refused[f"HTTP {status}" if status else "no connection"] += 1


class HttpWriter(Searcher):
    """A client that changes the items of a namespace."""

    def __init__(self, name: str, index: Path, judge: Judge, service: Service, key: str, seed: int) -> None:
        super().__init__(name, judge, service, key)
        self._index, self._seed = index, seed

    def _work(self) -> None:
        chance, history = random.Random(self._seed), self._judge.histories[self.name]
        with Client(self._service.url, self._key, timeout=PATIENCE_S) as client:
            for version in range(10**9):
                if self._stopping.wait(chance.uniform(0.0, 0.4)):
                    return
                operation = next_operation(chance, self.name, version)
                if None in operation["items"].values():  # one request removes one item
                    operation["items"] = dict([next(iter(operation["items"].items()))])
                if operation.get("compact") or not self._service.ready:
                    continue
                with self._judge.turn:
                    history.begin(partial(apply, operation), time.monotonic())
                try:
                    self._send(client, operation)
                except GeniusError as error:
                    self._settle(error)
                else:
                    with self._judge.turn:
                        history.acknowledge(time.monotonic())
                    self.operations["writes"] += 1

    def _send(self, client: Client, operation: dict[str, Any]) -> None:
        gone = [id for id, version in operation["items"].items() if version is None]
        if gone:
            client.remove(gone)
            return
        new = [item(self.name, int(id.split("-")[1]), version) for id, version in operation["items"].items()]
        client.add(new)

    def _settle(self, error: GeniusError) -> None:
        """The outcome is not known; when what was under way must have ended, the file tells."""
        self._refused(error)
        with self._judge.turn:
            self._judge.histories[self.name].give_up()
        time.sleep(2.0)
        self._judge.observe(self.name, stored(self._index, self.name))
