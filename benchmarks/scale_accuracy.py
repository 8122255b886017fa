"""What is found in pools of real items filled up to millions: every system beside exact search.

    python benchmarks/scale_accuracy.py --data BENCH --cache CACHE

Made items lie between real neighbours, so far apart that exact search falls as it does when real pools grow:
that is calibrated on val (`genius.evaluate.scaled_pools`). On val, lookups with wider beams, with more bytes
and a comparison with the codes of all items say whether it is the search or the codes that lose. On test,
every system is searched in every size that it can be built for. Two measures of each: hit@5, the mean over
the rows, and `nearest`, how many of the 10 items nearest to a query are among the 10 that were found.

The largest pool is made once, and smaller ones are its beginnings. Results are written after every system in
every size, so a run that is ended has the systems up to there. Nothing is timed, so it may run beside other
work: half an hour of a core, and 8 GB of memory. Writes benchmarks/results/scale_accuracy.json;
`scale_plan.py` makes the section of docs/scale.md of it.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _harness import run

from genius.data.base import Dataset, open_dataset
from genius.evaluate.baselines.exact import nearest
from genius.evaluate.baselines.faiss import Score
from genius.evaluate.baselines.fitted import fit_codes
from genius.evaluate.embeddings import EncodedPool, EncodedQueries
from genius.evaluate.evaluator import Evaluator
from genius.evaluate.frontier import calibration_json, calibration_on_val, coder, z_of
from genius.evaluate.intervals import bootstrap
from genius.evaluate.metrics import Qrels, grade
from genius.evaluate.options import EvalOptions, Workspace
from genius.evaluate.run import best_score, scores_on_val
from genius.evaluate.scaled_pools import SPREAD, ScaledPools, first_items
from genius.evaluate.systems import (
    CODE_BASELINES,
    LOOKUP_BEAM,
    SYSTEMS,
    CodeSearch,
    SystemContext,
    TopK,
)
from genius.model import Model
from genius.quantize.fit import FitOptions
from genius.quantize.model import Quantizer
from genius.search.options import Rerank, SearchOptions

# system -> the largest pool that is built for it: in larger ones it takes too long to build or to search
LARGEST: Mapping[str, int] = {
    "exact": 10**9,
    "lookup+codes": 10**9,
    "lookup+vectors": 10**9,
    "pq": 10**9,
    "flat-int8": 10**9,
    "fitted+codes": 10**9,
    "fitted+vectors": 10**9,
    "decoder+codes": 10**9,
    "decoder+vectors": 10**9,
    "faiss-rq": 200_000,
    "ivf-pq": 200_000,
    "genius": 200_000,
    "hnsw-int8": 200_000,
}
BEAMS = [50, 200, 800, 3200]
ITEM_BYTES = [15, 23]  # of fitted codes, on val
FITTED = 200_000  # items of val that codes are fitted to
K = 10
AT_ONCE = 1 << 16  # items whose code vectors are compared together
Coded = tuple[Quantizer, EncodedPool]


class Pools:
    """The universal pool of a split at any size, with some queries of each row."""

    def __init__(self, dataset: Dataset, model: Model, cache: Path, split: str, queries: int) -> None:
        self.evaluator = Evaluator(dataset, model, EvalOptions(split=split, limit=queries), cache)
        self.model = model
        self.pool, rows = self.evaluator.universal_rows()
        parts, matched = zip(*rows.values(), strict=True)
        self.queries = EncodedQueries.concat(parts)
        self.qrels = Qrels.concat([each.qrels for each in matched])
        self._ends = np.cumsum([len(part) for part in parts])[:-1]
        groups = self.evaluator.query_groups()
        self._groups = [groups[row] for row in rows]

    def fill(self, spread: float, size: int) -> None:
        """Make the largest pool, around the items that the queries ask for."""
        positives = self.qrels.item[self.qrels.item < len(self.pool)]
        z = z_of(self.model, self.pool)
        scaled = ScaledPools(self.pool, z, positives, coder(self.model), spread=spread)
        self._filled, self.real = scaled.at(size)
        self._judged = scaled.qrels(self.qrels)
        self._exact: dict[int, TopK] = {}
        self._fitted: dict[tuple[int, int], Coded] = {}

    def empty(self) -> None:
        """Leave the pool: two of them do not fit into the memory."""
        del self._filled
        self._fitted.clear()

    def at(self, size: int) -> EncodedPool:
        """The first items of the largest pool."""
        return first_items(self._filled, size)

    def exact(self, size: int) -> TopK:
        """The items nearest to each query."""
        if size not in self._exact:
            self._exact[size] = nearest(self.queries.phi, torch.from_numpy(self.at(size).phi), K)
        return self._exact[size]

    def fitted(self, size: int, item_bytes: int) -> Coded:
        """Codes fitted to the pool of a size; the last ones are kept."""
        if (size, item_bytes) not in self._fitted:
            found = fit_codes(self.at(size), FitOptions(item_bytes=item_bytes))
            self._fitted = {(size, item_bytes): found}
        return self._fitted[size, item_bytes]

    def measures(self, found: TopK, size: int) -> dict[str, Any]:
        """hit@5, its share of exact search's with an interval, and the nearest items that were found."""
        own, exact = (self._hits(each) for each in (found, self.exact(size)))
        mean, best = (float(np.mean([row.mean() for row in rows])) for rows in (own, exact))
        pairs = zip(found.rows, self.exact(size).rows, strict=True)
        shared = [
            len(np.intersect1d(some, near[near >= 0])) / max((near >= 0).sum(), 1) for some, near in pairs
        ]
        measured: dict[str, Any] = {"hit@5": mean, "nearest": float(np.mean(shared))}
        if best:
            share = mean / best
            apart = [one - share * other for one, other in zip(own, exact, strict=True)]
            around = bootstrap(apart, self._groups, samples=1000)
            measured |= {"share": share, "interval": [share + end / best for end in around]}
        return measured

    def _hits(self, found: TopK) -> list[np.ndarray[Any, Any]]:
        return np.split(grade(found.rows, self._judged).hit(5), self._ends)


def code_search(name: str, coded: Coded, rerank: Rerank) -> CodeSearch:
    """A lookup over coded items, indexed."""
    books = [book.numpy() for book in coded[0].residual.codebooks()]
    options = SearchOptions(method="lookup", rerank=rerank, beam=LOOKUP_BEAM)
    system = CodeSearch(name, books, options)
    system.index(coded[1])
    return system


def all_codes(coded: Coded, queries: EncodedQueries) -> TopK:
    """The items whose code vectors have the highest cosine with the query, of all items."""
    quantizer, pool = coded
    parts = []
    for start in range(0, len(pool), AT_ONCE):
        codes = torch.from_numpy(pool.codes[start : start + AT_ONCE].astype(np.int64))
        part = nearest(queries.z, quantizer.directions(codes), K)
        parts.append(TopK(np.where(part.rows < 0, part.rows, part.rows + start), part.scores))
    rows, scores = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    return TopK(np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1))


def beams_on_val(pools: Pools, size: int, beams: Sequence[int], coded: Coded) -> dict[str, Any]:
    """What is found on val by all codes, and by lookups with these beams."""
    found: dict[str, Any] = {"all codes": pools.measures(all_codes(coded, pools.queries), size)}
    rerank: Rerank
    for rerank in ("codes", "vectors"):
        system = code_search("lookup", coded, rerank)
        found[rerank] = {
            str(beam): pools.measures(system.with_options(beam=beam).search(pools.queries, K), size)
            for beam in beams
        }
    return found


def search_in(name: str, pools: Pools, size: int, context: SystemContext) -> TopK:
    """What a system finds in the pool of a size."""
    if name == "exact":
        return pools.exact(size)
    if name in ("fitted+codes", "fitted+vectors"):
        coded = pools.fitted(size, len(pools.model.sizes))
        rerank: Rerank = "codes" if name == "fitted+codes" else "vectors"
        return code_search(name, coded, rerank).search(pools.queries, K)
    system = SYSTEMS[name](context)
    system.index(pools.at(size))
    return system.search(pools.queries, K)


def in_turn(systems: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Systems and sizes, system by system; both kinds of fitted codes come together, and are fitted once."""
    fitted = [name for name in systems if name.startswith("fitted")]
    for name in systems:
        together = fitted if name in fitted else [name]
        if name == together[0]:
            yield from ((each, size) for size in sizes for each in together if size <= LARGEST[each])


def main(
    data: Path,
    cache: Path = Path("runs/evaluation"),
    model: str = "mini",
    sizes: list[int] = [50_000, 200_000, 2_000_000],  # noqa: B006 (never changed)
    queries: int = 40,
    systems: list[str] = [*LARGEST],  # noqa: B006 (never changed)
    beams: list[int] = BEAMS,
) -> Iterator[Mapping[str, Any]]:
    """What is found at each size, on val and on test; `queries` of each row."""
    started = time.perf_counter()

    def log(line: str) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        minutes = (time.perf_counter() - started) / 60
        print(
            f"{minutes:.1f} min, {time.process_time() / 60:.1f} of one core, {peak:.1f} GB: {line}",
            file=sys.stderr,
        )

    dataset, loaded = open_dataset("auto", data), Model.load(model, "cpu")
    workspace = Workspace(cache)
    test, val = (Pools(dataset, loaded, cache, split, queries) for split in ("test", "val"))
    fill = calibration_on_val(
        dataset, loaded, val.evaluator.options, workspace, (test.pool, test.queries, test.qrels)
    )
    spread = SPREAD if fill is None else fill.spread
    log(f"spread {spread}")
    sizes = [len(test.pool), *sorted(sizes)]
    result: dict[str, Any] = {
        "complete": False,
        "model": {"name": loaded.name, "fingerprint": loaded.fingerprint},
        "queries": {"of each row, at most": queries, "test": len(test.queries), "val": len(val.queries)},
        "real_items": {"test": len(test.pool), "val": len(val.pool)},
        "chosen_on_val": {},
        "calibration": None if fill is None else calibration_json(fill),
        "val": [],
        "test": [{"items": size, "real": len(test.pool), "systems": {}} for size in sizes],
    }
    val.fill(spread, max(sizes))
    for size in sizes:
        point: dict[str, Any] = {"items": size, "exact": val.measures(val.exact(size), size)["hit@5"]}
        result["val"].append(point)
        point["own"] = beams_on_val(val, size, beams, (loaded.quantizer, val.at(size)))
        log(f"val, {size:,} items, codes of the model")
        yield result
    val.empty()
    test.fill(spread, max(sizes))
    scores: dict[str, Score] = {}
    folder = cache / "decoders"
    context = SystemContext(loaded, dataset, test.evaluator.embedder, folder, scores=scores)
    for name, size in in_turn(systems, sizes):
        if name in CODE_BASELINES and name not in scores:
            chosen = scores_on_val(dataset, loaded, [name], test.evaluator.options, workspace, log)
            result["chosen_on_val"] |= chosen
            scores |= {each: best_score(found) for each, found in chosen.items()}
        point = result["test"][sizes.index(size)]
        point["systems"][name] = test.measures(search_in(name, test, size, context), size)
        log(f"test, {size:,} items, {name}: {point['systems'][name]}")
        yield result
    test.empty()
    size = max((each for each in sizes if each <= FITTED), default=sizes[0])
    val.fill(spread, size)
    for item_bytes in ITEM_BYTES:
        coded = val.fitted(size, item_bytes)
        result["val"][sizes.index(size)][f"fitted, {item_bytes} bytes"] = beams_on_val(
            val, size, beams, coded
        )
        log(f"val, {size:,} items, fitted codes of {item_bytes} bytes")
        result["complete"] = item_bytes == ITEM_BYTES[-1]
        yield result


if __name__ == "__main__":
    run(main)
