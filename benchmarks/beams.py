"""What a wider beam costs and finds in a large pool: why the default one grows (`genius.query.defaults`).

    OMP_NUM_THREADS=1 python benchmarks/beams.py --data BENCH --cache CACHE

Lookups with the shipped codes, re-ranked by embeddings, in pools of val that are filled up as those of
scale_accuracy.py. `nearest` is how many of the 10 nearest items are found; times are of the processor, the
median of the rounds, in which the beams take turns, as multiples of the first beam's.
Writes benchmarks/results/beams.json.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from _harness import run
from scale_accuracy import K, Pools, code_search

from genius.data.base import open_dataset
from genius.model import Model


def main(
    data: Path,
    cache: Path = Path("runs/evaluation"),
    model: str = "mini",
    sizes: list[int] = [50_000, 200_000],  # noqa: B006 (never changed)
    beams: list[int] = [200, 400, 800, 1600],  # noqa: B006 (never changed)
    queries: int = 40,
    spread: float = 1.0,
    rounds: int = 5,
) -> Iterator[Mapping[str, Any]]:
    """Processor time and nearest items at each beam and size; `spread` is scale_accuracy.py's."""
    loaded = Model.load(model, "cpu")
    pools = Pools(open_dataset("auto", data), loaded, cache, "val", queries)
    pools.fill(spread, max(sizes))
    result: dict[str, Any] = {
        "model": {"name": loaded.name, "fingerprint": loaded.fingerprint},
        "queries": len(pools.queries),
        "spread": spread,
        "sizes": {},
    }
    for size in sizes:
        system = code_search("lookup", (loaded.quantizer, pools.at(size)), "vectors")
        by_beam = {beam: system.with_beam(beam) for beam in beams}
        found = {beam: pools.measures(each.search(pools.queries, K), size) for beam, each in by_beam.items()}
        times: dict[int, list[float]] = {beam: [] for beam in beams}
        for _ in range(rounds):
            for beam, each in by_beam.items():
                start = time.process_time()
                each.search(pools.queries, K)
                times[beam].append(time.process_time() - start)
        first = statistics.median(times[beams[0]])
        result["sizes"][str(size)] = {
            str(beam): {
                "nearest": round(found[beam]["nearest"], 4),
                "share": round(found[beam]["share"], 4),
                "time": round(statistics.median(times[beam]) / first, 3),
                "processor_ms": round(1000 * statistics.median(times[beam]) / len(pools.queries), 3),
            }
            for beam in beams
        }
        yield result


if __name__ == "__main__":
    run(main)
