"""What a wider beam costs and finds in a large pool: why the default one grows (`genius.query.defaults`).

    OMP_NUM_THREADS=1 python benchmarks/beams.py --data BENCH --cache CACHE

Lookups with the shipped codes, re-ranked by embeddings, in pools of val that are filled up as those of
scale_accuracy.py. A setting is a beam and how many candidates are re-ranked. `nearest` is how many of the 10
nearest items are found; times are of the processor, the median of the rounds, in which the settings take
turns, as multiples of the first one's.
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

SETTINGS = ((200, 800), (400, 800), (400, 1600), (800, 400), (800, 800), (800, 1600), (800, 3200))


def main(
    data: Path,
    cache: Path = Path("runs/evaluation"),
    model: str = "mini",
    sizes: list[int] = [50_000, 200_000, 1_000_000],  # noqa: B006 (never changed)
    queries: int = 40,
    spread: float = 1.0,
    rounds: int = 5,
) -> Iterator[Mapping[str, Any]]:
    """Processor time and nearest items at each setting and size; `spread` is scale_accuracy.py's."""
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
        by_setting = {
            f"{beam}, {reranked}": system.with_options(beam=beam, reranked=reranked)
            for beam, reranked in SETTINGS
        }
        times: dict[str, list[float]] = {name: [] for name in by_setting}
        for _ in range(rounds):
            for name, each in by_setting.items():
                start = time.process_time()
                each.search(pools.queries, K)
                times[name].append(time.process_time() - start)
        first, *_ = (statistics.median(spent) for spent in times.values())
        found = {
            name: pools.measures(each.search(pools.queries, K), size) for name, each in by_setting.items()
        }
        result["sizes"][str(size)] = {
            name: {
                "nearest": round(measures["nearest"], 4),
                "share": round(measures["share"], 4),
                "time": round(statistics.median(times[name]) / first, 3),
                "processor_ms": round(1000 * statistics.median(times[name]) / len(pools.queries), 3),
            }
            for name, measures in found.items()
        }
        yield result


if __name__ == "__main__":
    run(main)
