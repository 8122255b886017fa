"""The cluster path beside one process, in one run: 1 and 2 workers encode, 1 and 2 replicas serve.

    python benchmarks/cluster.py                                        # benchmarks/results/cluster.json
    python benchmarks/cluster.py --pictures 64 --rounds 1 --seconds 2 --out -     # a quick look

Ray runs on this machine; every worker and replica has one thread. Ways take turns, round after round, so that
the load of others falls on all of them, and the figures are ratios. Rates are taken from the first committed
part to the last one, or between two moments under load: starting up is told apart. By processor time, a rate
does not depend on how many processors there are to share: on two of them, the second worker competes with the
driver, and the second replica with the clients and the front.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from PIL import Image

from genius import Client
from genius.cluster.indexing import ClusterRun, index_on_cluster
from genius.cluster.serving import Deployment, deploy
from genius.data.tables import read_items
from genius.engine import Engine
from genius.ingest.result import AddResult
from genius.serve.limits import Limits

RESULTS = Path(__file__).parent / "results" / "cluster.json"
CLIENTS = 16
COLOURS = ("red", "green", "blue", "yellow", "black", "white", "brown", "grey")
SEARCHES: dict[str, dict[str, Any]] = {
    "by lookup": {"want": "image", "search": "lookup"},
    "by the decoder, beam 400": {"want": "image", "search": "both", "beam": 400},
}
TICK = os.sysconf("SC_CLK_TCK")


class Rate(NamedTuple):
    """Things done a second, and a second of processor time of those who do them."""

    per_s: float
    per_cpu_s: float
    start_s: float


def make_pictures(folder: Path, count: int) -> None:
    """Photographs of nothing: smooth noise, as large as a small picture of the web."""
    for number in range(count):
        small = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        picture = Image.fromarray(small).resize((320, 240), Image.Resampling.BICUBIC)
        picture.save(folder / f"{number:05}.jpg", quality=90)
        if number % 2:
            chance = random.Random(number)
            (folder / f"{number:05}.txt").write_text(" and ".join(chance.choices(COLOURS, k=6)))


def cpu_s(title: bytes) -> float:
    """Processor time of all processes of this machine whose title begins so."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cmdline").read_bytes().startswith(title):
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
        except OSError:
            continue
    return total / TICK


class Watch:
    """Items done and moments, told by a run; the rate between the first part and the last."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.marks: list[tuple[float, float, int]] = []

    def note(self, done: int, processor: float) -> None:
        self.marks.append((time.perf_counter(), processor, done))

    def rate(self, workers: int = 1) -> Rate:
        """From the moment when every worker has ended its first part: they end them together."""
        (first, used, done), (last, used_last, done_last) = self.marks[workers - 1], self.marks[-1]
        items, start = done_last - done, self.marks[0][0] - self.began
        return Rate(items / (last - first), items / max(used_last - used, 1e-3), start)


def plain(source: Path, folder: Path, model: str) -> Rate:
    watch = Watch()

    def tell(added: AddResult) -> None:
        watch.note(added.done, time.process_time())

    with Engine.create(folder, model) as engine:
        engine.add(read_items(source), source=str(source), progress=tell)
    return watch.rate()


def on_cluster(source: Path, folder: Path, model: str, workers: int) -> Rate:
    watch = Watch()

    def tell(outcome: ClusterRun) -> None:
        watch.note(outcome.added.done, sum(share.processor for share in outcome.workers.values()))

    with Engine.create(folder, model) as engine:
        sources = [(str(source), str(source), ())]
        index_on_cluster(engine.index, sources, workers=workers, batches=1, progress=tell)
    return watch.rate(workers)


def encoding(home: Path, source: Path, model: str, rounds: int) -> dict[str, Any]:
    ways: dict[str, Callable[[Path], Rate]] = {
        "one process": lambda folder: plain(source, folder, model),
        "1 worker": lambda folder: on_cluster(source, folder, model, 1),
        "2 workers": lambda folder: on_cluster(source, folder, model, 2),
    }
    rates: dict[str, list[Rate]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            rates[name].append(way(home / f"{name}-{number}".replace(" ", "-")))
    return compared(rates, "one process", "1 worker", "2 workers")


def under_load(url: str, seconds: float, ways: dict[str, Any], title: bytes) -> Rate:
    """How quickly 16 clients are answered, each asking again as soon as it has its answer."""
    done = [0] * CLIENTS
    with Client(url, timeout=120) as client:
        client.search("first", **ways)
        began, used = time.perf_counter(), cpu_s(title)

        def ask(number: int) -> None:
            chance = random.Random(number)
            while time.perf_counter() - began < seconds:
                client.search(" ".join(chance.choices(COLOURS, k=4)), **ways)
                done[number] += 1

        with ThreadPoolExecutor(CLIENTS) as many:
            list(many.map(ask, range(CLIENTS)))
        took, spent = time.perf_counter() - began, cpu_s(title) - used
    return Rate(sum(done) / took, sum(done) / max(spent, 1e-3), 0.0)


@contextmanager
def one_process(index: Path) -> Iterator[str]:
    """`genius serve` without a cluster; gives the URL."""
    command = [sys.executable, "-c", "from genius.cli import main; main()", "serve", "--in", str(index)]
    command += ["--port", "0", "--quiet", "--max-seconds", "120"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+", process.stderr.readline())
        while True:
            try:
                with urllib.request.urlopen(f"{url}/readyz"):
                    break
            except OSError:
                time.sleep(0.05)
        try:
            yield url
        finally:
            process.terminate()


def serving(index: Path, seconds: float, rounds: int) -> dict[str, Any]:
    from ray import serve

    rates: dict[str, dict[str, list[Rate]]] = {
        kind: {"one process": [], "1 replica": [], "2 replicas": []} for kind in SEARCHES
    }
    port = 0
    for _ in range(rounds):
        with one_process(index) as url:
            for kind, way in SEARCHES.items():
                rates[kind]["one process"].append(under_load(url, seconds, way, b"nobody"))
        for name, count in (("1 replica", 1), ("2 replicas", 2)):
            url = deploy(Deployment(str(index), replicas=count, limits=Limits(search_s=120.0)), port)
            port = int(url.rpartition(":")[2])
            for kind, way in SEARCHES.items():
                title = b"ray::ServeReplica:genius:replicas"
                rates[kind][name].append(under_load(url, seconds, way, title))
            serve.delete("genius")  # so that nobody competes with the process alone
    serve.shutdown()
    return {kind: compared(own, "one process", "1 replica", "2 replicas") for kind, own in rates.items()}


def compared(rates: dict[str, list[Rate]], alone: str, one: str, two: str) -> dict[str, Any]:
    rounds = range(len(rates[one]))
    faster = [rates[two][r].per_s / rates[one][r].per_s for r in rounds]
    processor = [rates[two][r].per_cpu_s / rates[one][r].per_cpu_s for r in rounds]
    cost = [rates[one][r].per_s / rates[alone][r].per_s for r in rounds]
    return {
        f"{two} by {one}": spread(faster),
        "scaling_efficiency": round(median(faster) / 2, 3),
        "per_cpu_second_of_workers, two by one": spread(processor),
        f"{one} by {alone}": spread(cost),
        "per_s": {name: round(median(rate.per_s for rate in every), 1) for name, every in rates.items()},
        "start_by_one_process": {
            name: round(median(rate.start_s for rate in every) / alone_s, 1)
            for name, every in rates.items()
            if (alone_s := median(rate.start_s for rate in rates[alone]))
        },
    }


def spread(rounds: list[float]) -> dict[str, float]:
    return {"median": round(median(rounds), 3), "least": round(min(rounds), 3), "most": round(max(rounds), 3)}


def committing(home: Path, count: int) -> dict[str, float]:
    """What the only writer takes: committing parts that are encoded already, and bytes on disk."""
    from benchmarks_store import DIM, SIZES, records  # type: ignore[import-not-found]

    from genius.store.index import Index

    found: dict[str, float] = {}
    for vectors in (True, False):
        folder = home / f"store-{vectors}"
        Index.create(folder, model="none", fingerprint="0" * 64, sizes=SIZES, dim=DIM, vectors=vectors)
        with Index.open(folder) as index:
            took = 0.0
            for start in range(0, count, 256):
                batches = [(records(start + batch, 64, vectors), ()) for batch in range(0, 256, 64)]
                began = time.perf_counter()
                index.add_batches(batches)
                took += time.perf_counter() - began
            index.truth.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            size = (folder / "index.sqlite").stat().st_size
        name = "with vectors" if vectors else "codes only"
        found[f"{name}, items_per_s"] = round(count / took)
        found[f"{name}, truth_bytes_per_item"] = round(size / count, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="mini")
    parser.add_argument("--pictures", type=int, default=960)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--commits", type=int, default=40_960)
    parser.add_argument("--out", default=str(RESULTS))
    given = parser.parse_args()

    import importlib.util
    import warnings

    spec = importlib.util.spec_from_file_location("benchmarks_store", Path(__file__).with_name("store.py"))
    assert spec is not None and spec.loader is not None
    sys.modules["benchmarks_store"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["benchmarks_store"])

    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray

        torch.set_num_threads(1)
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=200 * 2**20,
                 logging_level=logging.ERROR, log_to_driver=False)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "pictures").mkdir()
        make_pictures(home / "pictures", given.pictures)
        facts: dict[str, Any] = {
            "command": " ".join(["python benchmarks/cluster.py", *sys.argv[1:]]),
            "cores": os.cpu_count(), "ray": ray.__version__,
            "model": given.model, "pictures": given.pictures, "rounds": given.rounds,
        }  # fmt: skip
        facts["encode"] = encoding(home, home / "pictures", given.model, given.rounds)
        facts["serve"] = serving(home / "2-workers-0", given.seconds, given.rounds)
        facts["commit"] = committing(home, given.commits)
    ray.shutdown()
    text = json.dumps(facts, indent=2)
    print(text)
    if given.out != "-":
        Path(given.out).write_text(text + "\n")


if __name__ == "__main__":
    main()
