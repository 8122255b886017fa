"""Filtered search: recall against exact search over what passes, and time beside the search without a filter.

    python benchmarks/filters.py                                       # benchmarks/results/filters.json
    python benchmarks/filters.py --items 20000 --queries 20 --out -    # a quick look

A million items with synthetic vectors (benchmarks/pools.py) and two numbers as metadata: `random` has nothing
to do with the vector, `side` follows its first coordinate, so that what passes lies on one side of the space.
Filters keep 50, 5, 0.5 and 0.005 %. With 2,000 beams, the search without a filter finds nearly all of the
nearest items. All searches take turns, query by query, in one process on one thread; what counts is the ratio
of processor time to the search without a filter. `first_s` is the first use of a filter (the first of a field
makes its SQLite index), `after_add_ms` the first search after an item was added. LanceDB, if it is installed,
searches the same vectors with IVF-PQ and a scalar index, and filters before the search, too. With --cache,
index and table are kept for the next run.
"""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from _harness import Timer, run, seconds, side_by_side
from numpy.typing import NDArray
from pools import CHUNK, QuantizedPool

from genius.query.embedding import EmbeddedSubquery
from genius.query.filtered import Filters
from genius.query.ranking import rank
from genius.query.subqueries import Subquery
from genius.query.view import PoolView
from genius.search.options import SearchOptions
from genius.search.searcher import Searcher
from genius.store.index import Index
from genius.store.records import MODALITIES, Record

SHARES = {"50 %": 0.5, "5 %": 0.05, "0.5 %": 0.005, "0.005 %": 0.00005}
FIELDS = ("random", "side")
K = 10
REFINE = 10  # LanceDB re-ranks so many times k by the vectors

Floats = NDArray[np.float32]


@contextmanager
def filled(folder: Path, pool: QuantizedPool, items: int, values: dict[str, Floats]) -> Iterator[Index]:
    """The index in `folder`, made if it is not there, without any index of a field."""
    if not folder.exists():
        Index.create(
            folder, model="none", fingerprint="0" * 64, sizes=pool.sizes, dim=pool.source.lift.shape[1]
        )
        with Index.open(folder) as index:
            fill(index, pool, items, values)
    with Index.open(folder) as index:
        query = "SELECT name FROM sqlite_master WHERE type = 'index' AND name LIKE 'field_%'"
        for (name,) in index.truth.connection.execute(query).fetchall():
            index.truth.connection.execute(f"DROP INDEX {name}")
        yield index


def fill(index: Index, pool: QuantizedPool, items: int, values: dict[str, Floats]) -> None:
    codes = pool.codes(items)
    start = 0
    for x, modality in pool.source.chunks(items):
        half = x.astype(np.float16)
        index.add(
            [
                Record(
                    f"item-{start + n}",
                    MODALITIES[modality[n]],
                    codes[start + n].astype(np.uint16),
                    half[n],
                    meta=json.dumps({field: float(own[start + n]) for field, own in values.items()}),
                )
                for n in range(len(x))
            ]
        )
        start += len(x)
    index.compact()


def recall(found: list[list[int]], exact: list[list[int]]) -> float:
    shares = [len({*a} & {*b}) / len(b) for a, b in zip(found, exact, strict=True) if b]
    return round(statistics.mean(shares), 4)


def exact_answers(vectors: NDArray[np.float16], z: Floats, keep: NDArray[np.int64]) -> list[list[int]]:
    """The nearest items among those that pass."""
    scores = np.empty((len(z), len(keep)), np.float32)
    for start in range(0, len(keep), CHUNK):
        part = slice(start, start + CHUNK)
        scores[:, part] = z @ vectors[keep[part]].astype(np.float32).T
    k = min(K, len(keep))
    return [keep[np.argpartition(-own, k - 1)[:k]].tolist() for own in scores]


class Ours:
    """A view of the index, searched as the engine does it, embedding and reading of records left out."""

    def __init__(self, index: Index, pool: QuantizedPool, beam: int) -> None:
        self.options = SearchOptions(method="lookup", rerank="vectors", beam=beam, k=K)
        self.index, self.filters = index, Filters(index)
        self.searcher = Searcher(pool.codebooks)
        self.model: Any = SimpleNamespace(modality_codes={m: n for n, m in enumerate(MODALITIES)})

    def search(self, z: Floats, where: str | None = None) -> list[int]:
        view = self.view()
        pool = None if where is None else self.filters.pool(where, view)
        query = EmbeddedSubquery(Subquery(None, None, "", None), z, z)
        (found,) = rank(view, self.searcher, self.model, [[query]], self.options, pool)
        return [item.row - 1 for item in found.items]

    def view(self) -> PoolView:
        snapshot = self.index.snapshot()
        if getattr(self, "_view", None) is None or self._view.snapshot is not snapshot:
            self._view: PoolView = PoolView(snapshot, getattr(self, "_view", None))
        return self._view


class Lance:
    """The same vectors in LanceDB."""

    def __init__(self, folder: Path, vectors: NDArray[np.float16], values: dict[str, Floats]) -> None:
        os.environ.setdefault("LANCE_CPU_THREADS", "1")
        import lancedb  # type: ignore[import-not-found]
        import pyarrow as pa
        from lancedb.index import BTree  # type: ignore[import-not-found]

        self.version = lancedb.__version__
        partitions = max(1, int(len(vectors) ** 0.5))
        self.probes = max(1, partitions // 20)
        if folder.exists():
            self.table = lancedb.connect(folder).open_table("items")
            return
        flat = pa.array(vectors.astype(np.float32).reshape(-1))
        columns = {
            "id": pa.array(np.arange(len(vectors))),
            **{name: pa.array(own) for name, own in values.items()},
        }
        table = pa.table({**columns, "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])})
        self.table = lancedb.connect(folder).create_table("items", table)
        self.table.create_index(
            metric="dot",
            num_partitions=partitions,
            num_sub_vectors=vectors.shape[1] // 8,
            index_type="IVF_PQ",
        )
        for name in values:
            self.table.create_index(name, config=BTree())

    def search(self, z: Floats, where: str | None = None) -> list[int]:
        asked = self.table.search(z).metric("dot").refine_factor(REFINE).limit(K)
        asked = asked.minimum_nprobes(self.probes).maximum_nprobes(0)  # more of them where too few pass
        if where is not None:
            asked = asked.where(where, prefilter=True)
        return [int(number) for number in asked.select(["id", "_distance"]).to_arrow()["id"].to_pylist()]


def measure(
    search: Callable[..., list[int]], wheres: dict[str, str], z: Floats, exact: dict[str, list[list[int]]]
) -> dict[str, Any]:
    """Recall of each filter and of no filter, and times as ratios to the search without one."""
    names: dict[str, str | None] = {"no filter": None, **wheres}
    found = {name: [search(query, where) for query in z] for name, where in names.items()}
    calls = {name: (lambda n, where=where: search(z[n % len(z)], where)) for name, where in names.items()}
    times = side_by_side(calls, max(50, len(z)))
    base = times["no filter"][1]
    return {
        name: {
            "recall": recall(found[name], exact[name]),
            "ms": round(1000 * times[name][0], 3),
            "processor_ms": round(1000 * times[name][1], 3),
            "times_unfiltered": round(times[name][1] / base, 2),
        }
        for name in names
    }


def main(
    items: int = 1_000_000,
    dim: int = 128,
    queries: int = 100,
    beam: int = 2000,
    cache: Path | None = None,
) -> Iterator[dict[str, Any]]:
    pool = QuantizedPool(dim, tiny=items < 50_000, cache=None)
    vectors = np.concatenate([x.astype(np.float16) for x, _ in pool.source.chunks(items)])
    order = np.random.default_rng(3).permutation(items)
    values = {"random": order.astype(np.float32), "side": vectors[:, 0].astype(np.float32)}
    z = pool.source.queries(queries)
    wheres, exact = {}, {"no filter": exact_answers(vectors, z, np.arange(items))}
    for field in FIELDS:
        for name, share in SHARES.items():
            limit = float(np.sort(values[field])[max(1, round(share * items))])
            wheres[f"{field} {name}"] = f"{field} < {limit!r}"
            exact[f"{field} {name}"] = exact_answers(vectors, z, np.flatnonzero(values[field] < limit))
    result: dict[str, Any] = {
        "items": items,
        "dim": dim,
        "queries": queries,
        "beam": beam,
        "k": K,
        "sqlite": sqlite3.sqlite_version,
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = cache or Path(scratch)
        with filled(folder / "index", pool, items, values) as index:
            ours = Ours(index, pool, beam)
            ours.search(z[0])
            costs: dict[str, Any] = {}
            for name, where in wheres.items():
                with Timer() as timer:
                    ours.filters.prepare(where, items)
                    ours.search(z[0], where)
                costs[name] = {"first_s": round(timer.seconds, 3)}
            result["ours"] = measure(ours.search, wheres, z, exact)
            for name, where in wheres.items():
                index.add(
                    [Record(f"late-{name}", MODALITIES[0], np.zeros(len(pool.sizes), np.uint16), vectors[0])]
                )
                costs[name]["after_add_ms"] = round(1000 * seconds(partial(ours.search, z[0], where)), 1)
            if cache is not None:
                index.remove([f"late-{name}" for name in wheres])
                index.compact()
            result["first_use"] = costs
        yield result
        if find_spec("lancedb") is not None:
            lance = Lance(folder / "lance", vectors, values)
            result["lancedb"] = {
                "version": lance.version,
                "probes": lance.probes,
                "refine_factor": REFINE,
                **measure(lance.search, wheres, z, exact),
            }
    yield result


if __name__ == "__main__":
    run(main)
