"""The phases of `speed.py` on a CPU; milliseconds are those of the processor, on one thread."""

from __future__ import annotations

import cProfile
import pstats
import resource
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from _harness import Timer, batches, seconds
from numpy.typing import NDArray
from pools import LEVELS, QuantizedPool, SyntheticPool, multiply_codes, random_decoder, recall_at

from genius.search.options import SearchOptions
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

if TYPE_CHECKING:
    from speed import SpeedOptions

Floats = NDArray[np.float32]
Figures = dict[str, Any]
DIM, K = 256, 10
DECODER = partial(SearchOptions, "generate", beam=50, k=K)
LOOKUP = partial(SearchOptions, "lookup", beam=200, k=K)
LOOKUPS = {
    "lookup": LOOKUP("none"),
    "lookup, codes": LOOKUP("codes"),
    "lookup, vectors": LOOKUP("vectors"),
    "lookup, vectors, 2000 beams": LOOKUP("vectors", beam=2000, reranked=2000),
}
GENERATE = {
    "level by level": DECODER("none", stop=LEVELS),
    "full depth": DECODER("none"),
    "early stop": DECODER("codes", stop=3),
}
ADAPTIVE = DECODER("codes")  # stops after 3 codes in a million items, as by default
FIXED = {"early stop, fixed shape": DECODER("codes", stop=3, fixed=True)}
TEXT = "Find a picture that matches the description: a brown dog runs through the snow with a red ball."


def timed(search: Callable[[Any], Any], queries: Any, batch: int = 1) -> tuple[float, list[Any]]:
    """Processor milliseconds per query (the best of three rounds), and the answers."""
    parts = list(batches(queries, batch))
    for part in parts[:3]:
        search(part)
    times, found = [], []
    for _ in range(3):
        with Timer() as timer:
            found = [search(part) for part in parts]
        times.append(1000 * timer.processor / len(queries))
    return round(min(times), 4), [answer for part in found for answer in part]


def by_the_clock(search: Callable[[Any], Any], queries: Any, batch: int) -> float:
    """Milliseconds per query by the clock, the median of the batches."""
    parts = list(batches(queries, batch))
    search(parts[0])
    times = [1000 * seconds(partial(search, part)) / len(part) for part in parts * (2 if batch > 1 else 1)]
    return round(float(np.median(times)), 3)


class PoolSearch:
    """Searches of one pool."""

    def __init__(self, searcher: Searcher, trie: Trie, vectors: NDArray[np.float16] | None = None) -> None:
        self.searcher, self.segments, self.vectors = searcher, [TrieSegment(trie)], vectors

    def call(self, options: SearchOptions) -> Callable[[Floats], Any]:
        return lambda z: self.searcher.search(self.segments, z, options, phi=z, fetch=self.vectors)

    def timed(self, options: SearchOptions, z: Floats, batch: int = 1) -> tuple[float, list[Any], int]:
        """Milliseconds per query, the rows found, and how many leaves were ranked on average."""
        spent, found = timed(self.call(options), z, batch)
        leaves = round(float(np.mean([answer.leaves for answer in found])))
        return spent, [answer.rows for answer in found], leaves


def lookup(args: SpeedOptions) -> Iterator[Figures]:
    """Lookup in growing pools; its recall is the share of exact search's answers."""
    torch.set_num_threads(1)
    pools, z = _lookup_pools(args)
    pool = QuantizedPool(DIM, args.tiny, args.cache)
    codes = pool.codes(pools[-1])
    figures: Figures = {}
    for items in pools:
        x = pool.source.items(items)[0]
        truth = _nearest(x, z)
        trie = Trie.build(codes[:items], pool.sizes)
        search = PoolSearch(Searcher(pool.codebooks), trie, x.astype(np.float16))
        rows: Figures = {}
        for name, options in LOOKUPS.items():
            for batch in (1, 64):
                spent, found, leaves = search.timed(options, z, batch)
                stored = trie.nbytes / trie.items + (2 * DIM if options.rerank == "vectors" else 0)
                rows[name if batch == 1 else f"{name}, batch {batch}"] = {
                    "ms": spent,
                    "recall": recall_at(K, found, truth),
                    "bytes_per_item": round(stored, 2),
                    "leaves": leaves,
                }
        figures[str(items)] = rows
        yield figures


def faiss(args: SpeedOptions) -> Iterator[Figures]:
    """FAISS on the vectors of `lookup`: exact, HNSW and IVF-PQ. Torch computes nothing in this process."""
    from genius.evaluate.baselines.faiss import flat, load_faiss

    load_faiss().omp_set_num_threads(1)
    pools, z = _lookup_pools(args)
    source = SyntheticPool(DIM)
    figures: Figures = {}
    for items in pools:
        x = source.items(items)[0]
        exact = flat()
        exact.index_vectors(x)
        spent, _ = timed(lambda part: exact.search_vectors(part, K), z[: 200 if items < 1_000_000 else 50])  # noqa: B023
        truth = list(exact.search_vectors(z, K).rows)
        rows: Figures = {"exact (faiss flat)": {"ms": spent, "recall": 1.0, "bytes_per_item": 4 * DIM}}
        figures[str(items)] = rows
        yield figures
        for name in ("hnsw", "ivf-pq") if items <= 100_000 or args.cache else ():  # slow to build
            rows |= _graph(name, x, z, truth, args.cache)
            yield figures


def _lookup_pools(args: SpeedOptions) -> tuple[list[int], Floats]:
    """The pool sizes and the queries of `lookup` and `faiss`."""
    sizes = [3000, 10_000] if args.tiny else [10_000, 100_000, 1_000_000]
    return sizes, SyntheticPool(DIM).queries(20 if args.tiny else 200)


def _nearest(x: Floats, z: Floats) -> list[Any]:
    """The K items of `x` with the largest product, for each query of `z`."""
    return [np.argsort(-(x @ query), kind="stable")[:K] for query in z]


def _graph(name: str, x: Floats, z: Floats, truth: list[Any], cache: Path | None) -> Figures:
    """HNSW or IVF-PQ at several settings of its search parameter; with a cache it is built once."""
    from genius.evaluate.baselines.faiss import hnsw, ivf_pq, load_faiss

    library = load_faiss()
    system, parameter, label = (
        (hnsw(), "efSearch", "ef") if name == "hnsw" else (ivf_pq(16), "nprobe", "nprobe")
    )
    file = None if cache is None else cache / f"{name}-{len(x)}.faiss"
    if file is not None and file.exists():
        system.built = library.read_index(str(file))
    else:
        system.index_vectors(x)
        if file is not None:
            library.write_index(system.built, str(file))
    stored = 4 * DIM + 2 * 32 * 4 if name == "hnsw" else 16 + 8
    rows: Figures = {}
    for value in (8, 16, 32, 64, 128):
        library.ParameterSpace().set_index_parameter(system.built, parameter, value)
        spent, found = timed(lambda part: system.search_vectors(part, K).rows, z)
        measured = {"ms": spent, "recall": recall_at(K, found, truth), "bytes_per_item": stored}
        rows[f"faiss {name}, {label} {value}"] = measured
    return rows


def scale(args: SpeedOptions) -> Iterator[Figures]:
    """A trie of very many items, built in bounded passes, and what a query costs beside the first million."""
    torch.set_num_threads(1)
    few, many = (20_000, 100_000) if args.tiny else (1_000_000, args.scale)
    pool = QuantizedPool(DIM, args.tiny, args.cache)
    base, z = pool.codes(few), pool.source.queries(64)
    searcher = Searcher(pool.codebooks, random_decoder("mini", DIM, pool.sizes, prefix=8))
    searches = {name: LOOKUPS[name] for name in ("lookup", "lookup, codes")}
    searches |= {
        f"generate, {name}": options for name, options in (GENERATE | {"early stop": ADAPTIVE}).items()
    }
    figures: Figures = {}
    for items in (few, many):
        with Timer() as making:
            codes = base if items == few else multiply_codes(base, items)
        before = _resident_bytes()
        with Timer() as build:
            trie = Trie.build(codes, pool.sizes)
        row: Figures = {
            "codes_made_seconds": round(making.seconds, 1),
            "build_seconds": round(build.seconds, 1),
            "build_processor_seconds": round(build.processor, 1),
            "bytes_per_item": round(trie.nbytes / items, 2),
            "tree_levels": trie.tree_levels,
            "codes_bytes_per_item": codes.nbytes / items,
            "peak_bytes_per_item_of_the_build": round((_peak_bytes() - before) / items, 1),
        }
        del codes
        search = PoolSearch(searcher, trie)
        for name, options in searches.items():
            queries = z[:16] if options.method == "generate" else z
            row[f"{name}, ms"], _, row[f"{name}, leaves"] = search.timed(options, queries)
        figures[str(items)] = row
        yield figures
    small, large = figures[str(few)], figures[str(many)]
    ratios = {name: round(large[f"{name}, ms"] / small[f"{name}, ms"], 3) for name in searches}
    yield {**figures, "many over few": ratios}


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _resident_bytes() -> int:
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def generate(args: SpeedOptions) -> Iterator[Figures]:
    """The embedded model: what decoding a query costs beside encoding its text."""
    from genius.model import Model

    items = 20_000 if args.tiny else 1_000_000
    model = Model.load("mini")
    assert model.decoder is not None
    codes = QuantizedPool(DIM, args.tiny, args.cache).codes(items)
    more = range(len(model.sizes) - LEVELS)  # levels of the model that the pool lacks
    codes = np.stack([*codes.T, *(np.roll(codes[:, 1 + n % 8], 7919 * (n + 1)) for n in more)], axis=1)
    trie = Trie.build(codes[:, : len(model.sizes)], model.sizes)
    searches = {
        precision: PoolSearch(Searcher(model.codebooks(), model.decoder, precision=precision), trie)
        for precision in ("float32", "bfloat16", "int8")
    }

    def encode(texts: list[str]) -> Any:
        return model.z(model.embed_queries([None] * len(texts), texts, [""] * len(texts)))

    texts = [f"{TEXT[: 40 + 5 * (n % 12)]} {n}" for n in range(8 if args.tiny else 32)]
    z = np.concatenate([encode([text]) for text in texts])
    figures: Figures = {"items": items, "beam": 50}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for batch in (1, 16):
            row: Figures = {"encode": by_the_clock(encode, texts, batch)}
            for precision, search in searches.items():
                for name, options in (GENERATE | FIXED).items():
                    row[f"{name}, {precision}"] = by_the_clock(search.call(options), z, batch)
            fastest = {name: min(ms for key, ms in row.items() if key.startswith(name)) for name in GENERATE}
            row["fastest over encoding"] = {
                name: round(ms / row["encode"], 3) for name, ms in fastest.items()
            }
            figures[f"{threads} threads, batch {batch}"] = row
            yield figures
    torch.set_num_threads(1)
    same: Figures = {}
    for name, options in (GENERATE | FIXED).items():
        found = {p: [a.rows for a in search.call(options)(z)] for p, search in searches.items()}
        for precision in ("bfloat16", "int8"):
            same[f"{name}, {precision}"] = recall_at(K, found[precision], found["float32"])
    yield {**figures, "same of the 10 best as float32": same}


def profile(args: SpeedOptions) -> Iterator[Figures]:
    """Where the time of one query goes: the functions of a lookup, the operations of a decoder search."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    torch.set_num_threads(1)
    pool = QuantizedPool(DIM, args.tiny, args.cache)
    trie = Trie.build(pool.codes(20_000 if args.tiny else 1_000_000), pool.sizes)
    z = pool.source.queries(50)
    search = PoolSearch(Searcher(pool.codebooks, random_decoder("mini", DIM, pool.sizes, prefix=8)), trie)
    call = search.call(LOOKUPS["lookup, codes"])
    call(z[:1])
    with cProfile.Profile() as profiler:
        for query in batches(z, 1):
            call(query)
    stats = pstats.Stats(profiler)
    entries = sorted(stats.stats.items(), key=lambda entry: -entry[1][2])[:12]  # type: ignore[attr-defined]
    figures: Figures = {
        "lookup, codes: microseconds in": {
            f"{Path(where[0]).name}:{where[2]}": round(1e6 * own / len(z), 1)
            for where, (_, _, own, *_) in entries
        },
        "lookup, codes: calls a query": round(stats.total_calls / len(z)),  # type: ignore[attr-defined]
    }
    for name, options in GENERATE.items():
        call = search.call(options)
        call(z[:1])
        with torch_profile(activities=[ProfilerActivity.CPU]) as log:
            for query in batches(z[:8], 1):
                call(query)
        events = sorted(log.key_averages(), key=lambda event: -event.self_cpu_time_total)[:8]
        total = sum(event.self_cpu_time_total for event in log.key_averages())
        figures[f"generate, {name}: share of the time in"] = {
            event.key: round(event.self_cpu_time_total / total, 3) for event in events
        }
    yield figures


def rows(args: SpeedOptions) -> Iterator[Figures]:
    """What the shortcuts cost on the benchmark's rows (`--data`): hit rates with the embedded model."""
    from genius.data.base import open_dataset
    from genius.evaluate.evaluator import Evaluator
    from genius.evaluate.options import EvalOptions
    from genius.evaluate.systems import CodeSearch
    from genius.model import Model

    assert args.data is not None and args.cache is not None, "give --data and --cache"
    model = Model.load("mini")
    searches = {
        "generate, full search": DECODER("none"),
        "generate, full search, fixed shape": DECODER("none", fixed=True),
        "generate, early stop": DECODER("codes", stop=3),
        "generate, early stop, fixed shape": FIXED["early stop, fixed shape"],
        "lookup, not re-ranked": LOOKUP("none"),
        "both, lookup weighs 10": SearchOptions("both", "none", beam=50, k=K, weight=10.0),
        "lookup, codes, 8 a beam re-ranked": LOOKUP("codes", reranked=1600),
        "lookup, codes": LOOKUP("codes"),
        "lookup, vectors, 8 a beam re-ranked": LOOKUP("vectors", reranked=1600),
        "lookup, vectors": LOOKUP("vectors"),
        "lookup, codes, fixed shape": LOOKUP("codes", fixed=True),
        "lookup, vectors, fixed shape": LOOKUP("vectors", fixed=True),
    }
    options = EvalOptions(split="val", limit=5 if args.tiny else 100)
    evaluator = Evaluator(open_dataset("mbeir", args.data), model, options, args.cache)
    books, fixed = model.codebooks(), FIXED["early stop, fixed shape"]
    systems = [CodeSearch(name, books, how, model.decoder) for name, how in searches.items()]
    name = "generate, early stop, fixed shape, int8"
    systems.append(CodeSearch(name, books, fixed, model.decoder, precision="int8"))
    found = evaluator.run(systems, names={"data": "bench", "model": "mini"}).as_json()
    metrics = ("hit@1", "hit@5", "hit@10", "mrr")
    yield {name: {key: round(mean[key], 4) for key in metrics} for name, mean in found["mean"].items()}


PHASES: dict[str, Callable[[SpeedOptions], Iterator[Figures]]] = {
    phase.__name__: phase for phase in (lookup, faiss, generate, profile, scale, rows)
}
