"""Those who use the index in chaos.py: processes that are started again when they die, and clients.

Every actor counts its operations, what was refused to it for a good reason (`refused`: a lock, a full disk, a
busy server) and everything else that was no answer (`unexpected`), which is a finding.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from chaos_judge import Answer, Judge
from chaos_roles import ASK, COLOURS, IDS, apply, found, item, next_operation, stored

from genius import Client
from genius.errors import GeniusError

ROLES = Path(__file__).with_name("chaos_roles.py")
GENIUS = [sys.executable, "-c", "from genius.cli import main; main()"]
REFUSALS = ("IndexLocked", "StorageError")  # what a full disk and another writer may cause
RECOVERY_S = 30.0  # in which Ray's own proxy may answer 404 or 500, while the front starts again
PATIENCE_S = 150.0  # of clients that write: longer than the server lets anything take
SEARCH_S = 40.0  # the same of a search


class Actor(ABC):
    """A thread that works until it is told to stop, and what it has counted."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.operations: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.unexpected: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and everything it has started with it."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_S)

    @abstractmethod
    def _work(self) -> None:
        """What the thread does until it is told to stop."""


class Program(Actor):
    """A process that is started again whenever it ends; lines of its stdout are events."""

    def __init__(self, name: str, command: list[str], env: dict[str, str]) -> None:
        super().__init__(name)
        self.process: subprocess.Popen[str] | None = None
        self.killed = False  # by a fault
        self.generation = 0  # how often it was started
        self._command, self._env = command, env

    @property
    def pid(self) -> int | None:
        """The process, if it runs."""
        process = self.process
        return process.pid if process is not None and process.poll() is None else None

    def signal(self, number: int) -> bool:
        """Send a signal; whether there was anybody to get it."""
        pid = self.pid
        if pid is None:
            return False
        self.killed |= number == signal.SIGKILL
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    def stop(self) -> None:
        """Stop the process and wait for its end."""
        self._stopping.set()
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + 60
        while self.pid is not None and time.monotonic() < deadline:
            time.sleep(0.1)
        if self.pid is not None:
            self.unexpected.append("did not stop within 60 s of SIGTERM")
            self.signal(signal.SIGKILL)
        super().stop()

    def _work(self) -> None:
        while not self._stopping.is_set():
            self.killed = False
            self.generation += 1
            self.process = subprocess.Popen(
                self._command, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                start_new_session=True,
            )  # fmt: skip
            errors: list[str] = []
            listener = threading.Thread(target=self._listen, args=(self.process.stderr, errors), daemon=True)
            listener.start()
            assert self.process.stdout is not None
            for line in self.process.stdout:
                with suppress(ValueError):  # the last line of a killed process may be torn
                    self.handle(json.loads(line))
            code = self.process.wait()
            listener.join(5)
            if code == 11 and not self._stopping.is_set():  # Ray itself did not start in time
                self.refused["exit 11"] += 1
            elif not self.killed and not self._stopping.is_set():
                self.unexpected.append(f"ended with {code}: {' '.join(errors[-12:])[-1500:]}")
                self._stopping.wait(2.0)
            self.after_end()

    def _listen(self, stream: Any, errors: list[str]) -> None:
        """Keep the last lines of stderr; a traceback is a finding."""
        trace: list[str] = []
        for line in stream:
            errors.append(line.rstrip())
            del errors[:-60]
            if "Traceback (most recent call last)" in line:
                trace = [line.strip()]
            elif trace:
                trace.append(line.strip())
                if not line.startswith((" ", "\n")):  # the error itself, after its frames
                    self.unexpected.append(" | ".join(trace)[-1500:])
                    trace = []

    def handle(self, event: dict[str, Any]) -> None:
        """Take in what the process says."""

    def after_end(self) -> None:
        """The process is gone for certain."""


class Gaps:
    """The longest time without an answer, but for times in which there was nobody to give one."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._last: float | None = None

    def answered(self, at: float) -> None:
        """An answer came."""
        if self._last is not None:
            self.longest = max(self.longest, at - self._last)
        self._last = at

    def excuse(self) -> None:
        """What answers was killed or stopped: time counts again from its next answer on."""
        self._last = None


class Writer(Program):
    """A process that changes the items of a namespace through the engine."""

    def __init__(self, name: str, index: Path, judge: Judge, env: dict[str, str], seed: int) -> None:
        super().__init__(name, [], env)
        self._index, self._judge, self._seed = index, judge, seed
        self._history = judge.histories[name]
        self._next_command()

    def _next_command(self) -> None:
        self._seed += 10
        self._command = [sys.executable, str(ROLES), "write", str(self._index), self.name, str(self._seed)]

    def handle(self, event: dict[str, Any]) -> None:
        """Tell the judge what the writer begins, and how it ends."""
        kind, at = event["event"], event["at"]
        with self._judge.turn:
            if kind in ("ready", "settled"):
                self._judge.observe(self.name, event["items"])
            elif kind == "begin":
                operation = event["operation"]
                self._history.begin(partial(apply, operation), at)
            elif kind == "done":
                self._history.acknowledge(at)
                self.operations["writes"] += 1
            elif kind == "failed":
                self._history.give_up()
                self._failed(event["error"], event["message"])

    def _failed(self, error: str, message: str) -> None:
        if error in REFUSALS:
            self.refused[error] += 1
        else:
            self.unexpected.append(f"{error}: {message}")

    def after_end(self) -> None:
        """What was under way has happened or not: the file tells; then another writer goes on."""
        with self._judge.turn:
            self._history.give_up()
        self._judge.observe(self.name, stored(self._index, self.name))
        self._next_command()


class Reader(Program):
    """A process that searches through the engine."""

    def __init__(self, name: str, index: Path, judge: Judge, env: dict[str, str]) -> None:
        super().__init__(name, [sys.executable, str(ROLES), "read", str(index)], env)
        self._judge, self._gaps = judge, Gaps()

    @property
    def longest_gap(self) -> float:
        """Seconds."""
        return self._gaps.longest

    def signal(self, number: int) -> bool:
        """A process that is stopped or gone does not answer."""
        self._gaps.excuse()
        return super().signal(number)

    def handle(self, event: dict[str, Any]) -> None:
        """Pass answers on to the judge."""
        if event["event"] == "answer":
            self.operations["searches"] += 1
            self._gaps.answered(event["at"])
            self._judge.add(Answer(self.name, event["asked"], event["at"], event["found"]))
        elif event["event"] == "failed" and event["error"] in REFUSALS:
            self.refused[event["error"]] += 1
        elif event["event"] == "failed":
            self.unexpected.append(f"{event['error']}: {event['message']}")


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


class ClusterIndexing(Actor):
    """Runs of `genius index --cluster local`, each of which changes all items of a namespace."""

    def __init__(self, name: str, index: Path, judge: Judge, env: dict[str, str]) -> None:
        super().__init__(name)
        self.process: subprocess.Popen[str] | None = None
        self._index, self._judge, self._env = index, judge, env
        self._file = index.parents[1] / "lines.jsonl"  # not on the small disk

    def signal(self, number: int) -> bool:
        """Send a signal to the run under way; whether there is one."""
        process = self.process
        if process is None or process.poll() is not None:
            return False
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
        return True

    def stop(self) -> None:
        """End, with the run under way."""
        self._stopping.set()
        self.signal(signal.SIGTERM)
        super().stop()

    def _work(self) -> None:
        history, chance = self._judge.histories[self.name], random.Random(2)
        for version in range(1, 10**9):
            new = [item(self.name, number, version) for number in range(IDS)]
            self._file.write_text("".join(json.dumps({"id": i.id, "text": i.text}) + "\n" for i in new))
            with self._judge.turn:
                history.begin(partial(apply, {"items": {i.id: version for i in new}}), time.monotonic())
            code, errors = self._run()
            with self._judge.turn:
                history.acknowledge(time.monotonic()) if code == 0 else history.give_up()
            self._judge.observe(self.name, stored(self._index, self.name))
            if code == 0:
                self.operations["cluster runs"] += 1
            elif code in (7, 9, 11):
                self.refused[f"exit {code}"] += 1
            elif code != -signal.SIGKILL and not self._stopping.is_set():
                self.unexpected.append(f"genius index --cluster ended with {code}: {errors[-1500:]}")
            if self._stopping.wait(chance.uniform(10, 40)):
                return

    def _run(self) -> tuple[int, str]:
        command = [*GENIUS, "index", str(self._file), "--to", str(self._index), "--cluster", "local"]
        command += ["--workers", "1"]
        self.process = subprocess.Popen(
            command, env=self._env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        _, errors = self.process.communicate()
        return self.process.returncode, errors
