"""The server beside the bare engine, in one run: throughput, latency, start-up; and a soak test.

    python benchmarks/server.py                          # benchmarks/results/server.json
    python benchmarks/server.py --seconds 3 --out -      # a quick look
    python benchmarks/server.py --minutes 10 --out -     # fault 32: searches, adds and removes, bursts of 200

All figures are ratios of two things measured in turns on the same machine, so that the load of others falls
on both. The engine gets its queries in whole batches, in a process of its own: the most it can do. The server
gets them one by one from 32 clients. All traffic stays on loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from genius import Client, Item
from genius.client import ServerError

RESULTS = Path(__file__).parent / "results" / "server.json"
CLIENTS = 32
BATCH = 32
THINGS = ("chair", "bird", "dress", "cup", "boat", "lamp", "dog", "street", "flower", "clock")
LOOKS = ("red", "small", "wooden", "old", "shiny", "blue", "striped", "broken", "soft", "tall")


def cpu_s(process: int) -> float:
    """Seconds of processor time that a process has used so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Rate(NamedTuple):
    """Searches a second, and a second of processor time."""

    per_s: float
    per_cpu_s: float


def rate_of(process: int, work: Callable[[], int]) -> Rate:
    """How quickly a process answers while `work` asks it; that gives the number of answers."""
    began, used = time.perf_counter(), cpu_s(process)
    done = work()
    return Rate(done / (time.perf_counter() - began), done / max(cpu_s(process) - used, 1e-3))


def phrase(chance: random.Random) -> str:
    one, other = (f"a {chance.choice(LOOKS)} {chance.choice(THINGS)}" for _ in range(2))
    return f"{one} beside {other}"


class Server:
    """`genius serve` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.began = time.perf_counter()
        program = [sys.executable, "-c", "from genius.cli import main; main()"]
        self.process = subprocess.Popen(
            [*program, "serve", "--in", str(folder), "--port", "0", "--quiet", "--max-seconds", "120"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        (self.url,) = re.findall(r"http://127\.0\.0\.1:\d+", line)
        threading.Thread(target=self._read_on, daemon=True).start()
        with Client(self.url) as client:
            while True:
                try:
                    client._send("GET", "/readyz")
                    break
                except ServerError:
                    time.sleep(0.01)
        self.start_s = time.perf_counter() - self.began

    def _read_on(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            print(line, end="", file=sys.stderr)

    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


class Bare:
    """The engine in a process of its own, which answers on demand how many queries a second it does."""

    def __init__(self, folder: Path) -> None:
        began = time.perf_counter()
        command = [sys.executable, __file__, "--bare", str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.start_s = time.perf_counter() - began

    def answer(self, seconds: float) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def stop(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


def bare(folder: Path) -> None:
    """What runs in the process of `Bare`."""
    from genius.engine import Engine

    chance = random.Random(1)
    with Engine.open(folder) as engine:
        engine.search("first", k=1)
        print("ready", flush=True)
        for line in sys.stdin:
            done, began = 0, time.perf_counter()
            while time.perf_counter() - began < float(line):
                engine.search_batch([phrase(chance) for _ in range(BATCH)], want="text")
                done += BATCH
            print(done, flush=True)


def ask_all(client: Client, seconds: float) -> int:
    """How many searches 32 clients get answered, each asking again as soon as it has its answer."""
    done = [0] * CLIENTS
    began = time.perf_counter()

    def ask(number: int) -> None:
        chance = random.Random(number)
        while time.perf_counter() - began < seconds:
            client.search(phrase(chance), want="text")
            done[number] += 1

    with ThreadPoolExecutor(CLIENTS) as many:
        list(many.map(ask, range(CLIENTS)))
    return sum(done)


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


def compare(folder: Path, seconds: float, rounds: int) -> dict[str, Any]:
    engine, server = Bare(folder), Server(folder)
    try:
        with Client(server.url, timeout=120) as client:
            ask_all(client, min(1.0, seconds))
            pairs = [
                (
                    rate_of(engine.process.pid, lambda: engine.answer(seconds)),
                    rate_of(server.process.pid, lambda: ask_all(client, seconds)),
                )
                for _ in range(rounds)
            ]
            batches = client._send("GET", "/metrics").decode()
            took = latencies(client, median(theirs.per_s for _, theirs in pairs) / 2, 2 * seconds)
    finally:
        engine.stop()
        server.stop()
    cuts = quantiles(took, n=100)
    count, total = (
        float(re.findall(rf"genius_search_batch_size_{part} (\S+)", batches)[0]) for part in ("count", "sum")
    )
    return {
        "clients": CLIENTS,
        "throughput_by_engine": _ratio([theirs.per_s / own.per_s for own, theirs in pairs]),
        "per_cpu_second_by_engine": _ratio([theirs.per_cpu_s / own.per_cpu_s for own, theirs in pairs]),
        "engine_per_s": round(median(own.per_s for own, _ in pairs), 1),
        "server_per_s": round(median(theirs.per_s for _, theirs in pairs), 1),
        "mean_batch": round(total / count, 1),
        "half_load_p99_by_p50": round(cuts[98] / cuts[49], 2),
        "half_load_searches": len(took),
        "half_load_p50_ms": round(cuts[49] * 1000, 1),
        "start_by_engine_start": round(server.start_s / engine.start_s, 2),
        "start_s": round(server.start_s, 2),
    }


def _ratio(rounds: list[float]) -> dict[str, float]:
    return {"median": round(median(rounds), 3), "least": round(min(rounds), 3), "most": round(max(rounds), 3)}


# --- soak -------------------------------------------------------------------------------------------------


def soak(folder: Path, minutes: float) -> dict[str, Any]:
    """Searches, changes and bursts at once; every answer is held against the state that it says it is of."""
    server = Server(folder)
    client = Client(server.url, timeout=120)
    stop = threading.Event()
    seen: list[tuple[int, frozenset[str]]] = []
    counts = {"answers": 0, "wrong": 0, "refused": 0, "changes": 0}
    states: dict[int, frozenset[str]] = {}
    memory: list[float] = []

    def search() -> None:
        body = {"text": phrase(random.Random(3)), "want": "text", "limit": 200, "beam": 500}
        while not stop.is_set():
            _told(counts, lambda: seen.append(_state(client._json("POST", "/v1/search", body))))

    def burst() -> None:
        while not stop.wait(15):
            with ThreadPoolExecutor(200) as many:
                for one in [many.submit(client.search, phrase(random.Random(n))) for n in range(200)]:
                    _told(counts, one.result)

    threads = [threading.Thread(target=work) for work in (*[search] * 4, burst)]
    ids = {hit.id for hit in client.search("a", k=200, want="text")}
    states[client.stats()["changes"]] = frozenset(ids)
    for thread in threads:
        thread.start()
    chance, end, began = random.Random(4), time.monotonic() + 60 * minutes, time.monotonic()
    try:
        while time.monotonic() < end:
            id = f"soak-{chance.randrange(60)}"
            if id in ids:
                client.remove([id])
                ids.discard(id)
            else:
                client.add([Item(id, text=phrase(chance))])
                ids.add(id)
            states[client.stats()["changes"]] = frozenset(ids)
            counts["changes"] += 1
            if time.monotonic() - began > 5 * len(memory):
                memory.append(server.memory_mb())
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        client.close()
        server.stop()
    counts["answers"] = len(seen)
    counts["wrong"] = sum(states.get(change) != found for change, found in seen)
    third = max(1, len(memory) // 3)
    growth = median(memory[-third:]) / median(memory[third : 2 * third] or memory)
    return {"minutes": minutes, **counts, "states": len(states), "memory_growth": round(growth, 3)}


def _state(answer: Any) -> tuple[int, frozenset[str]]:
    return answer["changes"], frozenset(hit["id"] for hit in answer["hits"])


def _told(counts: dict[str, int], work: Callable[[], Any]) -> None:
    """Do something that the server may refuse for now; anything else it says is an error."""
    try:
        work()
    except ServerError as error:
        if error.status not in (429, 503):
            raise
        counts["refused"] += 1
        time.sleep(0.2)


def fill(folder: Path, model: str, items: int) -> None:
    """Make the index, in a process of its own, so that this one stays small and quick."""
    lines = "".join(
        json.dumps({"id": f"n-{n}", "text": phrase(random.Random(n))}) + "\n" for n in range(items)
    )
    source = folder.parent / "items.jsonl"
    source.write_text(lines)
    program = [sys.executable, "-c", "from genius.cli import main; main()"]
    command = [*program, "index", str(source), "--to", str(folder), "--model", model]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="mini")
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--minutes", type=float, default=0.0, help="run the soak test, for so long")
    parser.add_argument("--out", default=str(RESULTS))
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        bare(given.bare)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        fill(index, given.model, 40 if given.minutes else given.items)
        found = soak(index, given.minutes) if given.minutes else compare(index, given.seconds, given.rounds)
    result = {
        "command": "python benchmarks/server.py",
        "model": given.model,
        "cores": os.cpu_count(),
        **found,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if given.out != "-":
        Path(given.out).write_text(text + "\n")
    if found.get("wrong"):
        raise SystemExit("some answers match no committed state")


if __name__ == "__main__":
    main()
