"""What goes wrong in chaos.py, one fault after the other at random."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos_actors import Program
from chaos_clients import BadClients

BALLAST = "ballast"
HOW = ("flip", "cut", "delete")


class Faults:
    """Chooses faults by chance and counts them; what lasts a while ends by itself or by `heal`."""

    def __init__(
        self,
        chance: random.Random,
        index: Path,
        actors: list[Any],
        clients: BadClients,
        token: str,
        *,
        full_disk: bool,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._chance, self._index, self._clients, self._token = chance, index, clients, token
        self._programs = [actor for actor in actors if hasattr(actor, "signal") and actor.name != "cluster"]
        self._services = [actor for actor in actors if actor.name == "cluster"]
        self._stopped: set[Any] = set()
        self._threads: list[threading.Thread] = []
        self._kinds: list[tuple[int, str, Callable[[], bool]]] = [
            (4, "killed process", self._kill),
            (4, "stopped process", self._stop),
            (4, "damaged cache file", self._damage),
            (2 if full_disk else 0, "full disk", self._fill),
            (
                2 if any(actor.name == "cluster" for actor in actors) else 0,
                "killed replica",
                self._kill_replica,
            ),
            *((1, name.replace("_", " "), self._client(name)) for name in CLIENTS),
        ]

    def strike(self) -> None:
        """One fault, or none if there is nothing it could strike."""
        weights = [weight for weight, _, _ in self._kinds]
        _, name, fault = self._chance.choices(self._kinds, weights)[0]
        self.counts[name] += fault()

    def heal(self) -> None:
        """End all faults that last."""
        end = time.monotonic() + 20
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        (self._index.parent / BALLAST).unlink(missing_ok=True)

    def _kill(self) -> bool:
        return bool(self._chance.choice(self._programs).signal(signal.SIGKILL))

    def _stop(self) -> bool:
        program = self._chance.choice([one for one in self._programs if isinstance(one, Program)])
        seconds = self._chance.uniform(0.3, 5.0)
        if program in self._stopped or not program.signal(signal.SIGSTOP):
            return False
        self._stopped.add(program)

        def go_on() -> None:
            time.sleep(seconds)
            program.signal(signal.SIGCONT)
            self._stopped.discard(program)

        self._later(go_on)
        return True

    def _fill(self) -> bool:
        file, seconds = self._index.parent / BALLAST, self._chance.uniform(2, 6)
        if file.exists():
            return False

        def fill() -> None:
            with suppress(OSError), file.open("wb", buffering=0) as ballast:
                while True:
                    ballast.write(bytes(1 << 20))
            with suppress(OSError), file.open("ab", buffering=0) as ballast:
                while True:
                    ballast.write(bytes(4096))
            time.sleep(seconds)
            file.unlink(missing_ok=True)

        self._later(fill)
        return True

    def _damage(self) -> bool:
        """A file of the newest generation is cut short, deleted, or has a bit flipped.

        The flipped bit is in a new file of that name, as a disk would give it back: written into the old one,
        it would change memory that other processes have mapped.
        """
        folders = sorted(self._index.glob("generation-*"))
        files = sorted(file for file in folders[-1].glob("*") if file.is_file()) if folders else []
        if not files:
            return False
        file, how, place = self._chance.choice(files), self._chance.choice(HOW), self._chance.random()
        try:
            if how == "delete":
                file.unlink()
            elif how == "cut":
                os.truncate(file, int(file.stat().st_size * place))
            else:
                data = bytearray(file.read_bytes())
                data[int(len(data) * place)] ^= 16
                copy = self._index.parent / "flipped"
                copy.write_bytes(data)
                copy.replace(file)
        except (OSError, IndexError):  # no room, an empty file, or the generation was replaced meanwhile
            return False
        return True

    def _kill_replica(self) -> bool:
        """A replica, a front or a holder of the cluster that serves."""
        found = [
            int(process.name)
            for process in Path("/proc").glob("[0-9]*")
            if _starts_with(process / "cmdline", b"ray::ServeReplica:genius")
            and _contains(process / "environ", self._token.encode())
        ]
        if not found:
            return False
        for service in self._services:
            service.struck_at = time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(self._chance.choice(sorted(found)), signal.SIGKILL)
        return True

    def _client(self, name: str) -> Callable[[], bool]:
        def behave() -> bool:
            chance = random.Random(self._chance.random())
            self._later(lambda: getattr(self._clients, name)(chance))
            return True

        return behave

    def _later(self, work: Callable[[], None]) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()


CLIENTS = ("never_read", "upload_slowly", "leave", "talk_nonsense", "send_costly_pictures")


def _starts_with(file: Path, words: bytes) -> bool:
    try:
        return file.read_bytes().startswith(words)
    except OSError:  # it has ended
        return False


def _contains(file: Path, words: bytes) -> bool:
    try:
        return words in file.read_bytes()
    except OSError:
        return False
