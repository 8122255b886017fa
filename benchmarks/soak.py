"""Searches, adds and removes on one server for minutes: every answer is of a committed state, memory is flat.

    python benchmarks/soak.py --minutes 10               # part `soak` of benchmarks/results/server.json
    python benchmarks/soak.py --minutes 0.5 --out -      # a quick look

Four clients ask for everything without a pause, one adds and removes, and every 15 seconds 200 searches come
at once. The server says with each answer which state of the index it is of; it is held against that state.
It may refuse what is too much (429, 503); anything else that is no answer is a failure. All traffic stays on
loopback.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from _harness import run
from server import PROGRAM, Server, fill, p99_by_p50, phrase

from genius import Client, Item
from genius.client import ServerError

BURST = 200
INTENDED = (429, 503)  # the server may refuse what is too much, with Retry-After
ITEMS = 40


class Traffic:
    """What was asked of the server and what came back; threads share it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.answers: list[tuple[int, frozenset[str]]] = []  # changes that the answer knows of, ids found
        self.generations: set[int] = set()
        self.seconds: dict[str, list[float]] = {"steady": [], "burst": []}
        self.refused: Counter[int] = Counter()
        self.failed: list[str] = []  # anything but an answer or an intended refusal

    def ask(self, body: dict[str, Any], kind: str) -> Any:
        """One search; the answer, or None if the server refused it for now."""
        began = time.perf_counter()
        try:
            answer = self.client._json("POST", "/v1/search", body)
        except ServerError as error:
            if error.status in INTENDED:
                self.refused[error.status] += 1
            else:
                self.failed.append(f"{error.status} {error}")
            return None
        self.seconds[kind].append(time.perf_counter() - began)
        return answer

    def search_on(self, stop: threading.Event) -> None:
        """Ask for everything again and again, and keep what is found."""
        body = {"text": phrase(random.Random(3)), "want": "text", "limit": 200, "beam": 500}
        while not stop.is_set():
            answer = self.ask(body, "steady")
            if answer is None:
                time.sleep(0.2)
                continue
            self.answers.append((answer["changes"], frozenset(hit["id"] for hit in answer["hits"])))
            self.generations.add(answer["generation"])

    def burst_on(self, stop: threading.Event, pause: float) -> None:
        """200 searches at once, then a pause."""
        with ThreadPoolExecutor(BURST) as many:
            while not stop.wait(pause):
                list(many.map(lambda n: self.ask({"text": phrase(random.Random(n))}, "burst"), range(BURST)))


def soak(server: Server, minutes: float, pause: float = 15.0) -> dict[str, Any]:
    """Searches, changes and bursts at once; every answer is held against the state that it says it is of."""
    with Client(server.url, timeout=120) as client:
        traffic, stop = Traffic(client), threading.Event()
        steady = [threading.Thread(target=traffic.search_on, args=[stop]) for _ in range(4)]
        threads = [*steady, threading.Thread(target=traffic.burst_on, args=[stop, pause])]
        ids = {hit.id for hit in client.search("a", k=200, want="text")}
        states = {client.stats()["changes"]: frozenset(ids)}
        for thread in threads:
            thread.start()
        try:
            memory = _change_on(server, client, ids, states, 60 * minutes)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    third = max(1, len(memory) // 3)
    return {
        "minutes": minutes,
        "answers": len(traffic.answers),
        "wrong": sum(states.get(change) != found for change, found in traffic.answers),
        "states": len(states),
        "generations": len(traffic.generations),
        "burst_answers": len(traffic.seconds["burst"]),
        "refused": {str(status): count for status, count in sorted(traffic.refused.items())},
        "failed": traffic.failed[:10],
        "p99_by_p50": {kind: p99_by_p50(took) for kind, took in traffic.seconds.items()},
        "memory_mb": [round(memory[0]), round(memory[-1])],
        "memory_growth": round(median(memory[-third:]) / median(memory[third : 2 * third] or memory), 3),
    }


def _change_on(
    server: Server, client: Client, ids: set[str], states: dict[int, frozenset[str]], seconds: float
) -> list[float]:
    """Add and remove one after the other, noting each state; the server's memory in MB, now and then."""
    chance, began, memory = random.Random(4), time.monotonic(), [server.memory_mb()]
    while time.monotonic() - began < seconds:
        id = f"soak-{chance.randrange(60)}"
        if id in ids:
            client.remove([id])
            ids.discard(id)
        else:
            client.add([Item(id, text=phrase(chance))])
            ids.add(id)
        states[client.stats()["changes"]] = frozenset(ids)
        if time.monotonic() - began > seconds / 120 * len(memory):
            memory.append(server.memory_mb())
    return memory


def main(model: str = "mini", minutes: float = 10.0) -> Iterator[dict[str, Any]]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        fill(index, ITEMS, PROGRAM, "--model", model)
        server = Server(index)
        try:
            found = soak(server, minutes)
        finally:
            server.stop()
    yield {"model": model, **found}
    if found["wrong"] or found["failed"]:
        raise SystemExit("some answers match no committed state, or failed")


if __name__ == "__main__":
    run(main, name="server", part="soak")
