"""The phases of `speed.py` on a CPU; milliseconds are those of the processor, on one thread."""

from __future__ import annotations

import argparse
import cProfile
import pstats
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pools import Pool, quantize, train_codebooks

from genius.search.options import SearchOptions
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

Floats = NDArray[np.float32]
Codes = NDArray[Any]
DIM, LEVELS, CODES, K = 256, 9, 256, 10
WAYS = {
    "lookup": SearchOptions("lookup", "none", beam=200, k=K),
    "lookup, codes": SearchOptions("lookup", "codes", beam=200, k=K),
    "lookup, vectors": SearchOptions("lookup", "vectors", beam=200, k=K),
    "lookup, vectors, 2000 beams": SearchOptions("lookup", "vectors", beam=2000, k=K, reranked=2000),
}


def codebooks(source: Pool, tiny: bool = False) -> list[Floats]:
    return train_codebooks(*source.items(3000 if tiny else 50_000), LEVELS, CODES, 0)


def quantized(source: Pool, books: list[Floats], items: int, cache: Path | None) -> Codes:
    """Codes of the first items of a pool; quantizing a million takes half a minute."""
    file = None if cache is None else cache / f"codes-{items}.npy"
    if file is not None and file.exists():
        return np.asarray(np.load(file))
    codes = np.concatenate([quantize(x, m, books) for x, m in source.chunks(items)]).astype(np.uint8)
    if file is not None:
        np.save(file, codes)
    return codes


def multiplied(codes: Codes, items: int, seed: int = 0) -> Codes:
    """So many synthetic codes with the prefixes of `codes`: levels 0-2, 3-5 and 6-8 of three items drawn."""
    out = np.empty((items, codes.shape[1]), dtype=np.uint8)
    for start in range(0, items, 1 << 22):
        part = out[start : start + (1 << 22)]
        rng = np.random.default_rng((seed, start))
        for first in range(0, codes.shape[1], 3):
            drawn = rng.integers(0, len(codes), len(part), dtype=np.int32)
            part[:, first : first + 3] = codes[drawn, first : first + 3]
    return out


def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def timed(ask: Callable[[Floats], Any], z: Floats, batch: int = 1) -> tuple[float, list[Any]]:
    """Processor milliseconds a query (the best of three rounds, for others are at work), and the answers."""
    parts = [z[a : a + batch] for a in range(0, len(z), batch)]
    for part in parts[:3]:
        ask(part)
    rounds, found = [], []
    for _ in range(3):
        busy = time.process_time()
        found = [ask(part) for part in parts]
        rounds.append(1000 * (time.process_time() - busy) / len(z))
    return round(min(rounds), 4), [answer for part in found for answer in part]


def recall(found: list[Any], truth: list[Any]) -> float:
    shares = [len(set(a[:K].tolist()) & set(b[:K].tolist())) / K for a, b in zip(found, truth, strict=True)]
    return round(float(np.mean(shares)), 4)


def lookup(args: argparse.Namespace) -> dict[str, Any]:
    """Lookup beside FAISS: exact, HNSW and IVF-PQ, on the same vectors."""
    import faiss

    one_thread()
    faiss.omp_set_num_threads(1)
    pools = [3000, 10_000] if args.tiny else [10_000, 100_000, 1_000_000]
    source = Pool(DIM)
    books = codebooks(source, args.tiny)
    codes = quantized(source, books, pools[-1], args.cache)
    z = source.queries(20 if args.tiny else 200)
    figures: dict[str, Any] = {}
    for items in pools:
        x = source.items(items)[0]
        exact = faiss.IndexFlatIP(DIM)
        exact.add(x)
        spent, truth = timed(partial(_faiss, exact), z[: 200 if items < 1_000_000 else 50])
        rows = {"exact (faiss flat)": {"ms": spent, "recall": 1.0, "bytes_per_item": 4 * DIM}}
        truth = [
            exact.search(z[a : a + 50], K)[1][b]
            for a in range(0, len(z), 50)
            for b in range(len(z[a : a + 50]))
        ]
        rows |= _ours(books, codes[:items], x, z, truth)
        figures[str(items)] = rows
        args.save(figures)
        for name in ("hnsw", "ivf-pq"):  # of a million they take long to build
            if items <= 100_000 or _kept(args.cache, name, items):
                rows |= _graph(name, x, z, truth, args.cache)
                args.save(figures)
    return figures


def _ours(books: list[Floats], codes: Codes, x: Floats, z: Floats, truth: list[Any]) -> dict[str, Any]:
    searcher, trie, halves = Searcher(books), Trie.build(codes, [len(b) for b in books]), x.astype(np.float16)
    pool, rows = [TrieSegment(trie)], {}
    for name, options in WAYS.items():
        for batch in (1, 64):
            ask = partial(_ask, searcher, pool, options, halves)
            spent, found = timed(ask, z, batch)
            stored = trie.nbytes / trie.items + (2 * DIM if options.rerank == "vectors" else 0)
            rows[name if batch == 1 else f"{name}, batch {batch}"] = {
                "ms": spent,
                "recall": recall([answer.rows for answer in found], truth),
                "bytes_per_item": round(stored, 2),
                "leaves": round(float(np.mean([answer.leaves for answer in found]))),
            }
    return rows


def _ask(searcher: Searcher, pool: list[TrieSegment], options: SearchOptions, vectors: Any, z: Floats) -> Any:
    return searcher.search(pool, z, options, phi=z, fetch=vectors)


def _kept(cache: Path | None, name: str, items: int) -> bool:
    """Whether an index that takes long to build is there."""
    return cache is not None and (cache / f"{name}-{items}.faiss").exists()


def _graph(name: str, x: Floats, z: Floats, truth: list[Any], cache: Path | None) -> dict[str, Any]:
    import faiss

    file = None if cache is None else cache / f"{name}-{len(x)}.faiss"
    if file is not None and file.exists():
        index: Any = faiss.read_index(str(file))
    elif name == "hnsw":
        index = faiss.IndexHNSWFlat(DIM, 32, faiss.METRIC_INNER_PRODUCT)
        index.add(x)
    else:
        lists = int(2 * len(x) ** 0.5)
        coarse = faiss.IndexFlatIP(DIM)
        index = faiss.IndexIVFPQ(coarse, DIM, lists, 16, 8, faiss.METRIC_INNER_PRODUCT)
        index.cp.niter = 10
        index.train(x[: max(10_000, 30 * lists)])
        index.add(x)
    if file is not None and not file.exists():
        faiss.write_index(index, str(file))
    rows: dict[str, Any] = {}
    for dial in (8, 16, 32, 64, 128):
        if name == "hnsw":
            index.hnsw.efSearch = dial
        else:
            index.nprobe = dial
        spent, found = timed(partial(_faiss, index), z)
        stored = 4 * DIM + 2 * 32 * 4 if name == "hnsw" else 16 + 8
        key = f"faiss {name}, {'ef' if name == 'hnsw' else 'nprobe'} {dial}"
        rows[key] = {"ms": spent, "recall": recall(found, truth), "bytes_per_item": stored}
    return rows


def _faiss(index: Any, z: Floats) -> list[Any]:
    return list(index.search(z, K)[1])


def scale(args: argparse.Namespace) -> dict[str, Any]:
    """A trie of very many items, built in bounded passes, and what a query costs beside the first million."""
    import torch

    from genius.decode.init import initialise
    from genius.decode.model import Decoder
    from genius.decode.shape import DecoderShape

    one_thread()
    few, many = (20_000, 100_000) if args.tiny else (1_000_000, args.scale)
    source = Pool(DIM)
    books = codebooks(source, args.tiny)
    base = quantized(source, books, few, args.cache)
    z, sizes = source.queries(64), [len(book) for book in books]
    decoder = Decoder(DecoderShape.preset("mini", DIM, sizes, prefix=8)).eval()
    initialise(decoder, torch.Generator().manual_seed(0))
    searcher, figures = Searcher(books, decoder), {}
    for items in (few, many):
        begin = time.perf_counter()
        codes = base if items == few else multiplied(base, items)
        made, before = time.perf_counter() - begin, _now()
        clock, busy = time.perf_counter(), time.process_time()
        trie = Trie.build(codes, sizes)
        clock, busy = time.perf_counter() - clock, time.process_time() - busy
        row: dict[str, Any] = {
            "codes_made_seconds": round(made, 1),
            "build_seconds": round(clock, 1),
            "build_processor_seconds": round(busy, 1),
            "bytes_per_item": round(trie.nbytes / items, 2),
            "tree_levels": trie.tree_levels,
            "codes_bytes_per_item": codes.nbytes / items,
            "peak_bytes_per_item_of_the_build": round((_peak() - before) / items, 1),
        }
        del codes
        pool = [TrieSegment(trie)]
        for name in ("lookup", "lookup, codes"):
            row[name + ", ms"], found = timed(partial(_ask, searcher, pool, WAYS[name], None), z)
            row[name + ", leaves"] = round(float(np.mean([answer.leaves for answer in found])))
        for name, options in (GENERATE | {"early stop": ADAPTIVE}).items():
            row[f"generate, {name}, ms"], found = timed(partial(_ask, searcher, pool, options, None), z[:16])
            row[f"generate, {name}, leaves"] = round(float(np.mean([answer.leaves for answer in found])))
        figures[str(items)] = row
    keys = [key for key in figures[str(few)] if key.endswith(", ms")]
    figures["many over few"] = {
        key[:-4]: round(figures[str(many)][key] / figures[str(few)][key], 3) for key in keys
    }
    return figures


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _now() -> int:
    """Bytes in memory."""
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


GENERATE = {
    "level by level": SearchOptions("generate", "none", beam=50, k=K, stop=LEVELS),
    "full depth": SearchOptions("generate", "none", beam=50, k=K),
    "early stop": SearchOptions("generate", "codes", beam=50, k=K, stop=3),
}
ADAPTIVE = SearchOptions("generate", "codes", beam=50, k=K)  # after 3 codes in a million items, as by default
FIXED = {
    "early stop, fixed shape": SearchOptions("generate", "codes", beam=50, k=K, stop=3, fixed=True),
}
TEXT = "Find a picture that matches the description: a brown dog runs through the snow with a red ball."


def generate(args: argparse.Namespace) -> dict[str, Any]:
    """The embedded model: what decoding a query costs beside encoding its text."""
    import torch

    from genius.model import Model

    items = 20_000 if args.tiny else 1_000_000
    model = Model.load("mini")
    assert model.decoder is not None
    books = [np.asarray(book) for book in model.quantizer.residual.codebooks()]
    codes = quantized(Pool(DIM), codebooks(Pool(DIM), args.tiny), items, args.cache)
    more = range(len(model.sizes) - LEVELS)  # levels of the model that the pool has not
    codes = np.stack([*codes.T, *(np.roll(codes[:, 1 + n % 8], 7919 * (n + 1)) for n in more)], axis=1)
    trie = [TrieSegment(Trie.build(codes[:, : len(model.sizes)], model.sizes))]
    texts = [f"{TEXT[: 40 + 5 * (n % 12)]} {n}" for n in range(8 if args.tiny else 32)]
    z = np.concatenate([model.z(model.embed_queries([None], [text], [""])) for text in texts])
    figures: dict[str, Any] = {"items": items, "beam": 50}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for batch in (1, 16):
            row: dict[str, Any] = {"encode": _clock(partial(_encode, model), texts, batch)}
            for precision in ("float32", "bfloat16", "int8"):
                searcher = Searcher(books, model.decoder, precision=precision)
                for name, options in (GENERATE | FIXED).items():
                    ask = partial(_ask, searcher, trie, options, None)
                    row[f"{name}, {precision}"] = _clock(ask, z, batch)
            fastest = {name: min(ms for key, ms in row.items() if key.startswith(name)) for name in GENERATE}
            row["fastest over encoding"] = {
                name: round(ms / row["encode"], 3) for name, ms in fastest.items()
            }
            figures[f"{threads} threads, batch {batch}"] = row
            args.save(figures)
    torch.set_num_threads(1)
    figures["same of the 10 best as float32"] = _agreement(books, model.decoder, trie, z)
    return figures


def _encode(model: Any, texts: list[str]) -> Any:
    return model.z(model.embed_queries([None] * len(texts), texts, [""] * len(texts)))


def _agreement(books: list[Floats], decoder: Any, pool: list[TrieSegment], z: Floats) -> dict[str, float]:
    shares: dict[str, float] = {}
    for name, options in (GENERATE | FIXED).items():
        plain = Searcher(books, decoder).search(pool, z, options)
        for precision in ("bfloat16", "int8"):
            found = Searcher(books, decoder, precision=precision).search(pool, z, options)
            shares[f"{name}, {precision}"] = recall([a.rows for a in found], [a.rows for a in plain])
    return shares


def _clock(ask: Callable[[Any], Any], queries: Any, batch: int) -> float:
    """Milliseconds a query by the clock, the median of the batches."""
    parts = [queries[a : a + batch] for a in range(0, len(queries), batch)]
    ask(parts[0])
    taken = []
    for part in parts * (2 if batch > 1 else 1):
        begin = time.perf_counter()
        ask(part)
        taken.append(1000 * (time.perf_counter() - begin) / len(part))
    return round(float(np.median(taken)), 3)


def profile(args: argparse.Namespace) -> dict[str, Any]:
    """Where the time of one query goes: the functions of a lookup, the operations of a decoder search."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    from genius.decode.init import initialise
    from genius.decode.model import Decoder
    from genius.decode.shape import DecoderShape

    one_thread()
    items = 20_000 if args.tiny else 1_000_000
    source = Pool(DIM)
    books = codebooks(source, args.tiny)
    codes, z = quantized(source, books, items, args.cache), source.queries(50)
    decoder = Decoder(DecoderShape.preset("mini", DIM, [len(b) for b in books], prefix=8)).eval()
    initialise(decoder, torch.Generator().manual_seed(0))
    searcher, pool = Searcher(books, decoder), [TrieSegment(Trie.build(codes, [len(b) for b in books]))]
    figures: dict[str, Any] = {}
    ask = partial(_ask, searcher, pool, WAYS["lookup, codes"], None)
    ask(z[:1])
    watch = cProfile.Profile()
    watch.enable()
    for row in range(len(z)):
        ask(z[row : row + 1])
    watch.disable()
    stats = pstats.Stats(watch)
    entries = sorted(stats.stats.items(), key=lambda entry: -entry[1][2])[:12]  # type: ignore[attr-defined]
    figures["lookup, codes: microseconds in"] = {
        f"{Path(where[0]).name}:{where[2]}": round(1e6 * own / len(z), 1)
        for where, (_, _, own, *_) in entries
    }
    figures["lookup, codes: calls a query"] = round(stats.total_calls / len(z))  # type: ignore[attr-defined]
    for name, options in GENERATE.items():
        ask = partial(_ask, searcher, pool, options, None)
        ask(z[:1])
        with torch_profile(activities=[ProfilerActivity.CPU]) as log:
            for row in range(8):
                ask(z[row : row + 1])
        events = sorted(log.key_averages(), key=lambda event: -event.self_cpu_time_total)[:8]
        total = sum(event.self_cpu_time_total for event in log.key_averages())
        figures[f"generate, {name}: share of the time in"] = {
            event.key: round(event.self_cpu_time_total / total, 3) for event in events
        }
    return figures


def rows(args: argparse.Namespace) -> dict[str, Any]:
    """What the shortcuts cost on the benchmark's rows (`--data`): hit rates with the embedded model."""
    from genius.data.base import open_dataset
    from genius.evaluate.code_search import CodeSearch
    from genius.evaluate.evaluator import Evaluator
    from genius.model import Model

    model = Model.load("mini")
    books = [np.asarray(book) for book in model.quantizer.residual.codebooks()]
    ways = {
        "generate, full search": SearchOptions("generate", "none", beam=50, k=K),
        "generate, full search, fixed shape": SearchOptions("generate", "none", beam=50, k=K, fixed=True),
        "generate, early stop": SearchOptions("generate", "codes", beam=50, k=K, stop=3),
        "generate, early stop, fixed shape": SearchOptions(
            "generate", "codes", beam=50, k=K, stop=3, fixed=True
        ),
        "lookup, not re-ranked": SearchOptions("lookup", "none", beam=200, k=K),
        "both, lookup weighs 10": SearchOptions("both", "none", beam=50, k=K, weight=10.0),
        "lookup, codes, 8 a beam re-ranked": SearchOptions("lookup", "codes", beam=200, k=K, reranked=1600),
        "lookup, codes": SearchOptions("lookup", "codes", beam=200, k=K),
        "lookup, vectors, 8 a beam re-ranked": SearchOptions(
            "lookup", "vectors", beam=200, k=K, reranked=1600
        ),
        "lookup, vectors": SearchOptions("lookup", "vectors", beam=200, k=K),
        "lookup, codes, fixed shape": SearchOptions("lookup", "codes", beam=200, k=K, fixed=True),
        "lookup, vectors, fixed shape": SearchOptions("lookup", "vectors", beam=200, k=K, fixed=True),
    }
    evaluator = Evaluator(
        open_dataset("mbeir", args.data), model, setting="universal", split="val", cache=args.cache,
        limit=5 if args.tiny else 100,
    )  # fmt: skip
    systems = [CodeSearch(name, books, options, model.decoder) for name, options in ways.items()]
    fixed, name = FIXED["early stop, fixed shape"], "generate, early stop, fixed shape, int8"
    systems.append(CodeSearch(name, books, fixed, model.decoder, precision="int8"))
    found = evaluator.run(systems, names={"data": "bench", "model": "mini"}).as_json()
    kept = ("hit@1", "hit@5", "hit@10", "mrr")
    return {name: {key: round(mean[key], 4) for key in kept} for name, mean in found["mean"].items()}


PHASES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "lookup": lookup,
    "generate": generate,
    "profile": profile,
    "scale": scale,
    "rows": rows,
}
