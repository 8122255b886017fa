"""SIGKILL at random moments of add, remove and compact: is anything lost that was acknowledged? (fault 1)

    python benchmarks/crash.py                       # 200 trials, benchmarks/results/crash.json
    python benchmarks/crash.py --trials 20 --out -   # a quick look

Each trial starts a process that works on the same index, kills it after up to a fifth of a second of work,
and reads the index back: every acknowledged operation must be there, the one in flight whole or not at all,
`check` clean, and the answers equal to those of a freshly built cache. One exception ends the run.
"""

from __future__ import annotations

import importlib
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _harness import Timer, run

from genius.store.check import check
from genius.store.index import Index

WORKER = Path(__file__).parents[1] / "tests" / "faults" / "store_worker.py"


def killed(folder: Path, seed: int, seconds: float) -> list[str]:
    """What a worker said before it was killed."""
    command = [sys.executable, str(WORKER), str(folder), "random", str(seed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    lines = [first, *process.stdout.read().splitlines()]
    process.stdout.close()
    process.wait()
    return lines


def kill_often(folder: Path, trials: int, seed: int) -> dict[str, Any]:
    """All trials on one index; raises at the first loss."""
    sys.path.append(str(WORKER.parent))
    worker = importlib.import_module("store_worker")  # of the fault tests
    worker.create(folder)
    chance = random.Random(seed)
    state: dict[str, int] = {}
    counts = {"acknowledged": 0, "in_flight": 0, "in_flight_kept": 0}
    for trial in range(trials):
        operations = worker.random_operations(trial, 2000)
        lines = killed(folder, trial, chance.uniform(0, 0.2))
        done = [int(line.split()[1]) for line in lines if line.startswith("done ")]
        begun = [int(line.split()[1]) for line in lines if line.startswith("begin ")]
        for number in done:
            state = worker.apply(state, operations[number])
        with Index.open(folder) as index:
            seen = worker.visible(index)
            if len(begun) > len(done):
                after = worker.apply(state, operations[begun[-1]])
                counts["in_flight"] += 1
                if after != state and seen == worker.expected(after):
                    counts["in_flight_kept"] += 1
                    state = after
            assert seen == worker.expected(state), f"trial {trial}: the index is in no allowed state"
            index.rebuild()
            assert worker.visible(index) == seen, f"trial {trial}: a fresh cache answers differently"
        assert check(folder).clean, f"trial {trial}: {check(folder)}"
        counts["acknowledged"] += len(done)
    return {"trials": trials, **counts, "lost": 0, "items": len(state)}


def main(trials: int = 200, seed: int = 0) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, Timer() as timer:
        result = kill_often(Path(folder) / "index", trials, seed)
    return {**result, "seconds": round(timer.seconds, 1), "sqlite": sqlite3.sqlite_version}


if __name__ == "__main__":
    run(main)
