"""The server beside the bare engine, in one run: throughput, latency, start-up.

    python benchmarks/server.py                          # benchmarks/results/server.json
    python benchmarks/server.py --seconds 3 --out -      # a quick look

All figures are ratios of two things measured in turns on the same machine, so that the load of others falls
on both. The engine gets its queries in whole batches, in a process of its own: the most it can do. The server
gets them one by one from 32 clients. All traffic stays on loopback.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

from _harness import Timer, run, spread

from genius import Client
from genius.client import ServerError

if TYPE_CHECKING:
    from genius.engine import Engine

PROGRAM = (sys.executable, "-c", "from genius.cli import main; main()")
CLIENTS = 32
BATCH = 32
STARTS = 3
THINGS = ("chair", "bird", "dress", "cup", "boat", "lamp", "dog", "street", "flower", "clock")
LOOKS = ("red", "small", "wooden", "old", "shiny", "blue", "striped", "broken", "soft", "tall")


class Rate(NamedTuple):
    """Answers or items per second, the same per second of processor time, and the time to start."""

    per_s: float
    per_cpu_s: float
    start_s: float = 0.0


def cpu_seconds(processes: Iterable[int]) -> float:
    """Seconds of processor time that processes have used so far."""
    total = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def rate_of(processes: Sequence[int], search: Callable[[], int]) -> Rate:
    """The rate of processes while `search` queries them; it returns the number of answers."""
    before = cpu_seconds(processes)
    with Timer() as timer:
        done = search()
    return Rate(done / timer.seconds, done / max(cpu_seconds(processes) - before, 1e-3))


def keep_asking(ask: Callable[[random.Random], Any], clients: int, seconds: float) -> int:
    """How many answers clients get that ask again as soon as they have an answer."""
    done = [0] * clients
    end = time.perf_counter() + seconds

    def client(number: int) -> None:
        chance = random.Random(number)
        while time.perf_counter() < end:
            ask(chance)
            done[number] += 1

    with ThreadPoolExecutor(clients) as many:
        list(many.map(client, range(clients)))
    return sum(done)


def phrase(chance: random.Random) -> str:
    one, other = (f"a {chance.choice(LOOKS)} {chance.choice(THINGS)}" for _ in range(2))
    return f"{one} beside {other}"


class Server:
    """`genius serve` in a process of its own."""

    def __init__(self, folder: Path, program: Sequence[str] = PROGRAM) -> None:
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [*program, "serve", "--in", str(folder), "--port", "0", "--quiet", "--max-seconds", "120"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        (self.url,) = re.findall(r"http://127\.0\.0\.1:\d+", line)
        self._reader = threading.Thread(target=self._read_on, daemon=True)
        self._reader.start()
        with Client(self.url) as client:
            while True:
                try:
                    client._send("GET", "/readyz")
                    break
                except ServerError:
                    time.sleep(0.01)
        self.start_s = time.perf_counter() - began

    def _read_on(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            print(line, end="", file=sys.stderr)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


class Bare:
    """The engine in a process of its own."""

    def __init__(self, folder: Path) -> None:
        with Timer() as timer:
            self._worker = ProcessPoolExecutor(1, get_context("spawn"), _open_engine, (folder,))
            self.pid = self._worker.submit(os.getpid).result()
        self.start_s = timer.seconds

    def answer(self, seconds: float) -> int:
        """How many queries it answers in that time."""
        return self._worker.submit(_search_on, seconds).result()

    def stop(self) -> None:
        self._worker.shutdown()


_opened: list[Engine] = []  # in the process of `Bare`


def _open_engine(folder: Path) -> None:
    from genius.engine import Engine

    _opened.append(Engine.open(folder))
    _opened[0].search("first", k=1)


def _search_on(seconds: float) -> int:
    chance = random.Random(1)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        _opened[0].search_batch([phrase(chance) for _ in range(BATCH)], want="text")
        done += BATCH
    return done


def ask_all(client: Client, seconds: float) -> int:
    """How many searches 32 clients get answered."""
    return keep_asking(lambda chance: client.search(phrase(chance), want="text"), CLIENTS, seconds)


def latencies(client: Client, rate: float, seconds: float) -> list[float]:
    """Seconds to the answer of searches that come at random moments, `rate` of them a second."""
    chance = random.Random(2)
    moments = [0.0]
    while moments[-1] < seconds:
        moments.append(moments[-1] + chance.expovariate(rate))
    asked = [(moment, phrase(chance)) for moment in moments]
    began = time.perf_counter()

    def ask(one: tuple[float, str]) -> float:
        time.sleep(max(0.0, began + one[0] - time.perf_counter()))
        client.search(one[1], want="text")
        return time.perf_counter() - began - one[0]

    with ThreadPoolExecutor(2 * CLIENTS) as many:
        return list(many.map(ask, asked))


def starts(folder: Path) -> list[tuple[float, float]]:
    """Seconds until the engine and until the server can answer, started in turns."""
    took = []
    for _ in range(STARTS + 1):
        engine = Bare(folder)
        engine.stop()
        server = Server(folder)
        server.stop()
        took.append((engine.start_s, server.start_s))
    return took[1:]  # the first one reads everything from disk


def compare(folder: Path, seconds: float, rounds: int) -> dict[str, Any]:
    started = starts(folder)
    engine, server = Bare(folder), Server(folder)
    try:
        with Client(server.url, timeout=120) as client:
            ask_all(client, min(1.0, seconds))
            pairs = [
                (
                    rate_of([engine.pid], lambda: engine.answer(seconds)),
                    rate_of([server.process.pid], lambda: ask_all(client, seconds)),
                )
                for _ in range(rounds)
            ]
            batches = client._send("GET", "/metrics").decode()
            alone = [latencies(client, 1e6, 0.0)[0] for _ in range(50)]
            took = latencies(client, median(theirs.per_s for _, theirs in pairs) / 2, 2 * seconds)
    finally:
        engine.stop()
        server.stop()
    count, total = (
        float(re.findall(rf"genius_search_batch_size_{part} (\S+)", batches)[0]) for part in ("count", "sum")
    )
    return {
        "clients": CLIENTS,
        "throughput_by_engine": spread([theirs.per_s / own.per_s for own, theirs in pairs]),
        "per_cpu_second_by_engine": spread([theirs.per_cpu_s / own.per_cpu_s for own, theirs in pairs]),
        "engine_per_s": round(median(own.per_s for own, _ in pairs), 1),
        "server_per_s": round(median(theirs.per_s for _, theirs in pairs), 1),
        "mean_batch": round(total / count, 1),
        "half_load_p99_by_p50": p99_by_p50(took),
        "half_load_searches": len(took),
        "half_load_p50_by_one_search": round(median(took) / median(alone), 2),
        "start_by_engine_start": spread([theirs / own for own, theirs in started]),
    }


def p99_by_p50(took: list[float]) -> float:
    cuts = quantiles(took, n=100)
    return round(cuts[98] / cuts[49], 2)


def fill(folder: Path, items: int, program: Sequence[str] = PROGRAM, *options: str) -> None:
    """Make the index, in a process of its own, so that this one stays small and quick."""
    lines = "".join(
        json.dumps({"id": f"n-{n}", "text": phrase(random.Random(n))}) + "\n" for n in range(items)
    )
    source = folder.parent / "items.jsonl"
    source.write_text(lines)
    command = [*program, "index", str(source), "--to", str(folder), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main(model: str = "mini", items: int = 500, seconds: float = 5.0, rounds: int = 7) -> dict[str, Any]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        fill(index, items, PROGRAM, "--model", model)
        return {"model": model, "cores": os.cpu_count(), **compare(index, seconds, rounds)}


if __name__ == "__main__":
    run(main)
