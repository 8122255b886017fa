"""Those who use the index in chaos.py through the engine or the command line; who dies is started again.

Every actor counts its operations, what was refused to it for a good reason (`refused`: a lock, a full disk, a
busy server) and everything else that was no answer (`unexpected`), which is a finding.
"""

from __future__ import annotations

import json
import os
import random
import signal
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

from chaos_judge import Answer, Judge
from chaos_roles import IDS, apply, item, stored

ROLES = Path(__file__).with_name("chaos_roles.py")
GENIUS = [sys.executable, "-c", "from genius.cli import main; main()"]
REFUSALS = ("IndexLocked", "StorageError")  # what a full disk and another writer may cause
PATIENCE_S = 150.0  # of clients that write: longer than the server lets anything take


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
