"""The cluster path beside one process, in one run: 1 and 2 workers encode, 1 and 2 replicas serve.

    python benchmarks/cluster.py                                        # benchmarks/results/cluster.json
    python benchmarks/cluster.py --pictures 64 --rounds 1 --seconds 2 --out -     # a quick look

Ray runs on this machine; every worker and replica has one thread. All take turns, round after round, so that
the load of others falls on all of them, and the figures are ratios. Rates are taken from the first committed
part to the last one, or under load: starting up is reported apart. By processor time, a rate does not depend
on how many cores there are to share: on two of them, the second worker competes with the driver, and the
second replica with the clients and the front.
"""

from __future__ import annotations

import logging
import os
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from _harness import run, seconds, spread
from PIL import Image
from server import Rate, Server, keep_asking, rate_of
from store import DIM, SIZES, records

from genius import Client
from genius.cluster.indexing import ClusterRun, index_on_cluster
from genius.cluster.serving import Deployment, deploy
from genius.data.tables import read_items
from genius.engine import Engine
from genius.ingest.result import AddResult
from genius.serve.limits import Limits
from genius.store.index import Index

CLIENTS = 16
COLOURS = ("red", "green", "blue", "yellow", "black", "white", "brown", "grey")
SEARCHES: dict[str, dict[str, Any]] = {
    "by lookup": {"want": "image", "search": "lookup"},
    "by the decoder, beam 400": {"want": "image", "search": "both", "beam": 400},
}
REPLICA = b"ray::ServeReplica:genius:replicas"  # how the processes of replicas are called


def make_images(folder: Path, count: int) -> None:
    """Smooth noise, as large as a small image of the web; every second one with a text."""
    for number in range(count):
        small = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((320, 240), Image.Resampling.BICUBIC)
        image.save(folder / f"{number:05}.jpg", quality=90)
        if number % 2:
            chance = random.Random(number)
            (folder / f"{number:05}.txt").write_text(" and ".join(chance.choices(COLOURS, k=6)))


class Progress:
    """Items done at moments of a run; the rate between the first part and the last."""

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


def index_rate(source: Path, folder: Path, model: str, workers: int = 0) -> Rate:
    """Items per second of one process, or of workers on the cluster."""
    progress = Progress()

    def added(result: AddResult) -> None:
        progress.note(result.done, time.process_time())

    def committed(outcome: ClusterRun) -> None:
        progress.note(outcome.added.done, sum(share.processor for share in outcome.workers.values()))

    with Engine.create(folder, model) as engine:
        if not workers:
            engine.add(read_items(source), source=str(source), progress=added)
        else:
            sources = [(str(source), str(source), ())]
            index_on_cluster(engine.index, sources, workers=workers, batches=1, progress=committed)
    return progress.rate(max(workers, 1))


def encoding(home: Path, source: Path, model: str, rounds: int) -> dict[str, Any]:
    workers = {"one process": 0, "1 worker": 1, "2 workers": 2}
    rates: dict[str, list[Rate]] = {name: [] for name in workers}
    for number in range(rounds):
        for name, count in workers.items():
            folder = home / f"{name}-{number}".replace(" ", "-")
            rates[name].append(index_rate(source, folder, model, count))
    return compared(rates)


def processes(title: bytes) -> list[int]:
    """All processes of this machine whose title begins so."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cmdline").read_bytes().startswith(title):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def under_load(url: str, duration: float, options: dict[str, Any], pids: Callable[[], list[int]]) -> Rate:
    """The rate at which 16 clients are answered, each asking again as soon as it has its answer."""
    with Client(url, timeout=120) as client:

        def ask(chance: random.Random) -> None:
            client.search(" ".join(chance.choices(COLOURS, k=4)), **options)

        ask(random.Random(0))
        return rate_of(pids(), lambda: keep_asking(ask, CLIENTS, duration))


def serving(index: Path, duration: float, rounds: int) -> dict[str, Any]:
    from ray import serve

    rates: dict[str, dict[str, list[Rate]]] = {
        kind: {"one process": [], "1 replica": [], "2 replicas": []} for kind in SEARCHES
    }
    port = 0
    for _ in range(rounds):
        server = Server(index)
        for kind, options in SEARCHES.items():
            pid = [server.process.pid]
            rates[kind]["one process"].append(under_load(server.url, duration, options, lambda: pid))  # noqa: B023
        server.stop()
        for name, count in (("1 replica", 1), ("2 replicas", 2)):
            url = deploy(Deployment(str(index), replicas=count, limits=Limits(search_s=120.0)), port)
            port = int(url.rpartition(":")[2])
            for kind, options in SEARCHES.items():
                rates[kind][name].append(under_load(url, duration, options, lambda: processes(REPLICA)))
            serve.delete("genius")  # so that nobody competes with the process alone
    serve.shutdown()
    return {kind: compared(own) for kind, own in rates.items()}


def compared(rates: dict[str, list[Rate]]) -> dict[str, Any]:
    """Ratios of the rates of one process, of one worker or replica and of two."""
    alone, one, two = rates

    def ratio(name: str, other: str, field: str = "per_s") -> list[float]:
        pairs = zip(rates[name], rates[other], strict=True)
        return [getattr(a, field) / getattr(b, field) for a, b in pairs]

    faster = ratio(two, one)
    start = {name: median(rate.start_s for rate in every) for name, every in rates.items()}
    return {
        f"{two} by {one}": spread(faster),
        "scaling_efficiency": round(median(faster) / 2, 3),
        "per_cpu_second_of_workers, two by one": spread(ratio(two, one, "per_cpu_s")),
        f"{one} by {alone}": spread(ratio(one, alone)),
        "per_s": {name: round(median(rate.per_s for rate in every), 1) for name, every in rates.items()},
        "start_by_one_process": {
            name: round(seconds / start[alone], 1) for name, seconds in start.items() if start[alone]
        },
    }


def committing(home: Path, count: int) -> dict[str, float]:
    """What the only writer takes: committing parts that are encoded already, and bytes on disk."""
    found: dict[str, float] = {}
    for vectors in (True, False):
        folder = home / f"store-{vectors}"
        Index.create(folder, model="none", fingerprint="0" * 64, sizes=SIZES, dim=DIM, vectors=vectors)
        with Index.open(folder) as index:
            spent = 0.0
            for start in range(0, count, 256):
                parts = [(records(start + batch, 64, vectors), ()) for batch in range(0, 256, 64)]
                spent += seconds(lambda: index.add_batches(parts))  # noqa: B023
            index.truth.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            size = (folder / "index.sqlite").stat().st_size
        name = "with vectors" if vectors else "codes only"
        found[f"{name}, items_per_s"] = round(count / spent)
        found[f"{name}, truth_bytes_per_item"] = round(size / count, 1)
    return found


def main(
    model: str = "mini", pictures: int = 960, rounds: int = 3, seconds: float = 8.0, commits: int = 40_960
) -> dict[str, Any]:
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
        make_images(home / "pictures", pictures)
        return {
            "cores": os.cpu_count(),
            "ray": ray.__version__,
            "model": model,
            "pictures": pictures,
            "rounds": rounds,
            "encode": encoding(home, home / "pictures", model, rounds),
            "serve": serving(home / "2-workers-0", seconds, rounds),
            "writer": committing(home, commits),
        }


if __name__ == "__main__":
    run(main)
