"""What is found in pools of real items filled up to millions: every system as a share of exact search.

    python benchmarks/scale_accuracy.py --data BENCH --cache CACHE

Made items lie between real neighbours, so far apart that exact search falls as it does when real pools grow:
that is calibrated on val (`genius.evaluate.scaled_pools`). On test, every system is searched in every size
that it can be built for. On val, lookups with wider beams and a comparison with the codes of all items say
whether it is the search or the codes that lose. Hit rates are means over the rows. Nothing is timed, so it
may run beside other work. Writes benchmarks/results/scale_accuracy.json; `scale_plan.py` makes the section
of docs/scale.md of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _harness import run

from genius.data.base import Dataset, open_dataset
from genius.evaluate.baselines.exact import nearest
from genius.evaluate.embeddings import EncodedPool, EncodedQueries
from genius.evaluate.evaluator import Evaluator
from genius.evaluate.frontier import calibration_json, calibration_on_val, coder, z_of
from genius.evaluate.metrics import Qrels, grade
from genius.evaluate.options import EvalOptions, Workspace
from genius.evaluate.run import best_score, scores_on_val
from genius.evaluate.scaled_pools import SPREAD, ScaledPools
from genius.evaluate.systems import SYSTEMS, CodeSearch, System, SystemContext, TopK
from genius.model import Model

# system -> the largest pool that is built for it: in larger ones it takes hours, or more memory than 8 GB
LARGEST: Mapping[str, int] = {
    "exact": 10**9,
    "lookup+codes": 10**9,
    "lookup+vectors": 10**9,
    "fitted+codes": 10**9,
    "pq": 10**9,
    "pq-train": 10**9,
    "flat-int8": 10**9,
    "fitted+vectors": 200_000,
    "decoder+codes": 200_000,
    "decoder+vectors": 200_000,
    "genius": 200_000,
    "ivf-pq": 200_000,
    "hnsw-int8": 200_000,
    "faiss-rq": 50_000,
    "faiss-rq-train": 200_000,
}
BEAMS = [50, 200, 800, 3200]
COMPARED_ALL = 200_000  # items whose codes are all compared, at most
K = 10


class Pools:
    """The universal pool of a split at any size, with some queries of each row."""

    def __init__(self, dataset: Dataset, model: Model, cache: Path, split: str, queries: int) -> None:
        self.evaluator = Evaluator(dataset, model, EvalOptions(split=split, limit=queries), cache)
        self.dataset, self.model = dataset, model
        self.pool, rows = self.evaluator.universal_rows()
        parts, matched = zip(*rows.values(), strict=True)
        self.queries = EncodedQueries.concat(parts)
        self._ends = np.cumsum([len(part) for part in parts])[:-1]
        self.qrels = Qrels.concat([each.qrels for each in matched])

    def scaled(self, spread: float) -> ScaledPools:
        """Pools around the items that the queries ask for."""
        positives = self.qrels.item[self.qrels.item < len(self.pool)]
        return ScaledPools(
            self.pool, z_of(self.model, self.pool), positives, coder(self.model), spread=spread
        )

    def hit(self, found: TopK, qrels: Qrels) -> float:
        """hit@5, the mean over the rows."""
        by_query = grade(found.rows, qrels).hit(5)
        return float(np.mean([part.mean() for part in np.split(by_query, self._ends)]))


def all_codes(model: Model, pool: EncodedPool, queries: EncodedQueries) -> TopK:
    """The items whose code vectors have the highest cosine with the query, of all items."""
    books = [torch.from_numpy(book) for book in model.codebooks()]
    codes = torch.from_numpy(pool.codes.astype(np.int64))
    items = torch.zeros(len(codes), books[0].shape[1])
    for level, book in enumerate(books):
        items += book[codes[:, level]]
    return nearest(queries.z, torch.nn.functional.normalize(items, dim=1), K)


def measured(system: System, pool: EncodedPool, queries: EncodedQueries) -> TopK:
    """What a system finds in a pool."""
    system.index(pool)
    return system.search(queries, K)


def beams_on_val(pools: Pools, spread: float, size: int, beams: Sequence[int]) -> dict[str, Any]:
    """hit@5 on val by exact search, by all codes, and by lookups with these beams."""
    scaled = pools.scaled(spread)
    pool, qrels = scaled.at(size)[0], scaled.qrels(pools.qrels)
    context = SystemContext(pools.model, pools.dataset, pools.evaluator.embedder, Path())
    exact = pools.hit(nearest(pools.queries.phi, torch.from_numpy(pool.phi), K), qrels)
    found: dict[str, Any] = {"items": size, "exact": exact}
    if size <= COMPARED_ALL:
        found["all codes"] = pools.hit(all_codes(pools.model, pool, pools.queries), qrels)
    for rerank in ("codes", "vectors"):
        found[rerank] = {}
        for beam in beams:
            options = context.options(method="lookup", rerank=rerank, beam=beam)
            system = CodeSearch("lookup", pools.model.codebooks(), options)
            found[rerank][str(beam)] = pools.hit(measured(system, pool, pools.queries), qrels)
    return found


def main(
    data: Path,
    cache: Path = Path("runs/evaluation"),
    model: str = "mini",
    sizes: list[int] = [50_000, 200_000, 2_000_000],  # noqa: B006 (never changed)
    queries: int = 60,
    systems: list[str] = [*LARGEST],  # noqa: B006 (never changed)
    beams: list[int] = BEAMS,
) -> Iterator[Mapping[str, Any]]:
    """Hit rates at each size, the smallest first; `queries` of each row."""
    dataset, loaded = open_dataset("auto", data), Model.load(model, "cpu")
    workspace = Workspace(cache)
    test, val = (Pools(dataset, loaded, cache, split, queries) for split in ("test", "val"))
    fill = calibration_on_val(
        dataset, loaded, val.evaluator.options, workspace, (test.pool, test.queries, test.qrels)
    )
    spread = SPREAD if fill is None else fill.spread
    chosen = scores_on_val(dataset, loaded, systems, test.evaluator.options, workspace, print)
    context = SystemContext(
        loaded, dataset, test.evaluator.embedder, cache / "decoders",
        scores={name: best_score(found) for name, found in chosen.items()},
    )  # fmt: skip
    result: dict[str, Any] = {
        "complete": False,
        "model": {"name": loaded.name, "fingerprint": loaded.fingerprint},
        "queries": {"of each row, at most": queries, "test": len(test.queries), "val": len(val.queries)},
        "real_items": {"test": len(test.pool), "val": len(val.pool)},
        "chosen_on_val": chosen,
        "calibration": None if fill is None else calibration_json(fill),
        "test": [],
        "val": [],
    }
    scaled = test.scaled(spread)
    for size in [len(test.pool), *sorted(sizes)]:
        pool, real = scaled.at(size)
        point: dict[str, Any] = {"items": size, "real": real, "hit@5": {}}
        result["test"].append(point)
        for name in systems:
            if size <= LARGEST[name]:
                found = measured(SYSTEMS[name](context), pool, test.queries)
                point["hit@5"][name] = test.hit(found, scaled.qrels(test.qrels))
                yield result
        del pool
        result["val"].append(beams_on_val(val, spread, max(size, len(val.pool)), beams))
        result["complete"] = size == max(sizes)
        yield result


if __name__ == "__main__":
    run(main)
