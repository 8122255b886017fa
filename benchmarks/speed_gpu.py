"""The phases of `speed.py` on a GPU: ours as recorded graphs, transformers, exact search; queries a second.

Figures are medians of several rounds that end with the answers on the host. That the recorded programs equal
the plain searches is tested on the CPU.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from _harness import Timer, seconds
from numpy.typing import NDArray
from pools import QuantizedPool, SyntheticPool, multiply_codes, random_decoder, recall_at, skewed_codes
from torch.nn import functional as F

from genius.search.codebooks import Codebooks
from genius.search.gpu.fixed_decoder import FixedDecoder
from genius.search.gpu.fixed_lookup import FixedLookup
from genius.search.gpu.fixed_trie import FixedTrie
from genius.search.gpu.replay import GraphReplay
from genius.search.gpu.steps import choose_shape
from genius.search.options import SearchOptions
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

if TYPE_CHECKING:
    from speed import SpeedOptions

Floats = NDArray[np.float32]
Figures = dict[str, Any]
DIM, K = 768, 10
LARGE = (3, *[4096] * 8)
BATCHES = (1, 16, 64, 256)
SEARCHES = {"early stop": (False, 8.0), "full depth": (True, 1.28)}  # decode the suffixes?; leaves a beam


class DecoderPrograms:
    """A decoder of T5-small's shape with random weights, and its recorded searches of a pool."""

    def __init__(self, args: SpeedOptions) -> None:
        self.device = args.device
        self.sizes = (3, *[64] * 4) if args.tiny else LARGE
        decoder = random_decoder("mini" if args.tiny else "t5-small", DIM, self.sizes)
        self.decoder = decoder.to(args.device, torch.float32 if args.device == "cpu" else torch.bfloat16)
        rng = np.random.default_rng(0)
        z = rng.normal(size=(256, DIM)).astype(np.float32)
        self.z = z / np.linalg.norm(z, axis=1, keepdims=True)
        scales = [np.float32(0.5**level) for level in range(len(self.sizes))]
        books = [
            rng.normal(size=(size, DIM)).astype(np.float32) * scale
            for size, scale in zip(self.sizes, scales, strict=True)
        ]
        self.codebooks = Codebooks(books)

    def index(self, items: int) -> Trie:
        """Make a pool of so many items the one that is searched."""
        trie = Trie.build(skewed_codes(items, self.sizes), self.sizes)
        self.fixed = FixedTrie(trie, self.codebooks, self.device)
        return trie

    def program(self, name: str, beam: int = 50) -> FixedDecoder:
        """The recorded search called `name`."""
        suffixes, leaves = SEARCHES[name]
        shape = choose_shape(self.fixed, beam, min(K, beam), max(leaves, 10 / beam), stop=3)
        return FixedDecoder(self.fixed, self.codebooks, self.decoder, shape, suffixes)


def ceilings(args: SpeedOptions) -> Iterator[Figures]:
    """What the machine can do: bytes copied, bf16 products, and the time of a launch inside a graph."""
    size = 1 << (20 if args.tiny else 31)
    one = torch.randint(0, 255, (size,), dtype=torch.uint8, device=args.device)
    two = torch.empty_like(one)
    copied = 2 * size / median_seconds(lambda: two.copy_(one), args.device)
    n = 256 if args.tiny else 8192
    a, b = (torch.randn(n, n, device=args.device, dtype=torch.bfloat16) for _ in range(2))
    products = 2 * n**3 / median_seconds(lambda: torch.mm(a, b), args.device)
    figures = {
        "device": torch.cuda.get_device_name() if args.device != "cpu" else "cpu",
        "copy_bytes_per_s": copied,
        "bf16_flops_per_s": products,
    }
    if args.device != "cpu":
        small = torch.zeros(1, device=args.device)
        graph = torch.cuda.CUDAGraph()
        small.add_(1)
        with torch.cuda.graph(graph):
            for _ in range(500):
                small.add_(1)
        figures["launch_in_a_graph_us"] = 1e6 * median_seconds(graph.replay, args.device) / 500
    yield figures


def generate(args: SpeedOptions) -> Iterator[Figures]:
    """The decoder: full depth and early stop, by pool, batch and beam."""
    programs = DecoderPrograms(args)
    pools = [5000] if args.tiny else [1_000_000, 100_000, 5_600_000]
    figures: Figures = {}
    for items in pools:
        trie = programs.index(items)
        dense = programs.fixed.dense_levels.values()
        rows: Figures = {"shelf_bytes": sum(level.exists.nbytes for level in dense)}
        for beam in (50,) if items != 1_000_000 else (50, 1, 10, 100):
            batches = BATCHES if items == 1_000_000 and beam == 50 else (1, 256)
            for name in SEARCHES:
                program = programs.program(name, beam)
                rows[f"{name}, beam {beam}"] = _replayed(
                    program, programs.z, args, batches[: 2 if args.tiny else None]
                )
        if items == pools[0]:
            figures["same of the 10 best as the plain search in float32"] = _same(programs, trie)
        figures[str(items)] = rows
        yield figures


def compiled_generate(args: SpeedOptions) -> Iterator[Figures]:
    """The decoder with its small operations fused by torch.compile: a minute for each batch size."""
    programs = DecoderPrograms(args)
    programs.index(5000 if args.tiny else 1_000_000)
    figures: Figures = {}
    for name, batch in (("early stop", 1), ("early stop", 256), ("full depth", 256), ("full depth", 1)):
        if time.perf_counter() < args.deadline:
            one = _replayed(programs.program(name), programs.z, args, (batch,), compiled=True)
            figures.setdefault(f"{name}, beam 50", {}).update(one)
            yield figures


def compiled_lookup(args: SpeedOptions) -> Iterator[Figures]:
    """Lookup likewise, as long as there is time."""
    pool = QuantizedPool(256, args.tiny, args.cache)
    codebooks = Codebooks(pool.codebooks)
    trie = Trie.build(pool.codes(10_000 if args.tiny else 1_000_000), codebooks.sizes)
    fixed = FixedTrie(trie, codebooks, args.device)
    program = FixedLookup(fixed, codebooks, choose_shape(fixed, 200, K, 8), cosine=True)
    rows: Figures = {}
    for batch in (256, 1024):
        if time.perf_counter() < args.deadline:
            rows |= _replayed(program, pool.source.queries(1024), args, (batch,), compiled=True)
            yield {"lookup, codes, 8 leaves a beam": rows}


def transformers(args: SpeedOptions) -> Iterator[Figures]:
    """transformers' generate with a prefix function over a dict of dicts, the same weights and pool."""
    from decode import SIZES, Transformers

    if args.tiny:
        yield {"left out": "a dict of dicts of this shape takes minutes"}
        return
    programs = DecoderPrograms(args)
    theirs = Transformers(programs.decoder.float().cpu(), skewed_codes(100_000, SIZES))
    theirs.model.to(args.device, torch.bfloat16)
    figures: Figures = {"items": 100_000}
    for batch in (1, 16):
        theirs.generate(programs.z[:batch])
        spent = sum(seconds(lambda: theirs.generate(programs.z[:batch])) for _ in range(3))  # noqa: B023
        figures[f"batch {batch}"] = {"queries_per_s": 3 * batch / spent}
    yield figures


def lookup(args: SpeedOptions) -> Iterator[Figures]:
    """Lookup, beam 200, as one graph, beside exact search in bf16 on the same vectors."""
    items = 10_000 if args.tiny else 1_000_000
    pool = QuantizedPool(256, args.tiny, args.cache)
    codebooks, z = Codebooks(pool.codebooks), pool.source.queries(1024)
    trie = Trie.build(pool.codes(items), codebooks.sizes)
    fixed = FixedTrie(trie, codebooks, args.device)
    truth, row = _exact(pool.source, items, z, args)
    figures: Figures = {"items": items, "exact, bf16": row}
    batches = (1, 4) if args.tiny else (1, 16, 256, 1024)
    for cosine in (False, True):
        for leaves in (8, 16):
            program = FixedLookup(fixed, codebooks, choose_shape(fixed, 200, K, leaves), cosine)
            name = f"lookup{', codes' * cosine}, {leaves} leaves a beam"
            figures[name] = _replayed(program, z, args, batches, truth=(trie, truth))
            yield figures


def _exact(source: SyntheticPool, items: int, z: Floats, args: SpeedOptions) -> tuple[list[Any], Figures]:
    x = torch.cat([torch.from_numpy(part).to(args.device) for part, _ in source.chunks(items)])
    queries = torch.from_numpy(z).to(args.device)
    truth = torch.cat([(queries[a : a + 64] @ x.T).topk(K).indices for a in range(0, len(z), 64)])
    half = x.bfloat16()
    row = _exact_rates(half, queries.bfloat16(), (1, 256), args.device)
    found = (queries[:256].bfloat16() @ half.T).topk(K).indices.cpu().numpy()
    row["recall"] = {"10 best": recall_at(K, list(found), list(truth[: len(found)].cpu().numpy()))}
    return list(truth.cpu().numpy()), row


def _exact_rates(x: torch.Tensor, z: torch.Tensor, batches: tuple[int, ...], device: str) -> Figures:
    def nearest(batch: int) -> Any:
        return (z[:batch] @ x.T).topk(K).indices.cpu()

    times = {batch: median_seconds(partial(nearest, batch), device) for batch in batches}
    return {f"batch {batch}": {"queries_per_s": batch / spent} for batch, spent in times.items()}


def exact(args: SpeedOptions) -> Iterator[Figures]:
    """Exact bf16 search over vectors of width 768, by pool."""
    figures: Figures = {}
    kind: Any = {"device": args.device, "dtype": torch.bfloat16}
    for items in (10_000,) if args.tiny else (10_000, 100_000, 1_000_000, 5_600_000):
        x, z = (F.normalize(torch.randn(count, DIM, **kind), dim=1) for count in (items, 256))
        figures[str(items)] = _exact_rates(x, z, (1, 64, 256), args.device)
        del x
    yield figures


def scale(args: SpeedOptions) -> Iterator[Figures]:
    """Lookup and the decoder (mini's shape, 256 codes) in a pool of very many synthetic items."""
    few, many = (5_000, 20_000) if args.tiny else (1_000_000, args.scale)
    pool = QuantizedPool(256, args.tiny, args.cache)
    base, codebooks, z = pool.codes(few), Codebooks(pool.codebooks), pool.source.queries(256)
    decoder = random_decoder("mini", 256, codebooks.sizes, prefix=8).to(args.device, torch.bfloat16)
    batches = (1, 4) if args.tiny else (1, 256)
    figures: Figures = {}
    for items in (few, many):
        codes = base if items == few else multiply_codes(base, items)
        with Timer() as build:
            trie = Trie.build(codes, codebooks.sizes)
        del codes
        with Timer() as moving:
            fixed = FixedTrie(trie, codebooks, args.device)
        lookups = FixedLookup(fixed, codebooks, choose_shape(fixed, 200, K, 8))
        shape = choose_shape(fixed, 50, K, 8)
        decoding = FixedDecoder(fixed, codebooks, decoder, shape, suffixes=False)
        figures[str(items)] = {
            "build_seconds": round(build.seconds, 1),
            "to_the_device_seconds": round(moving.seconds, 1),
            "bytes_per_item": round(trie.nbytes / items, 2),
            "lookup": _replayed(lookups, z, args, batches),
            "generate, early stop": _replayed(decoding, z, args, batches),
        }
        del trie, fixed, lookups, decoding
        yield figures


def profile(args: SpeedOptions) -> Iterator[Figures]:
    """Kernels of one query, by time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    programs = DecoderPrograms(args)
    programs.index(5000 if args.tiny else 1_000_000)
    figures: Figures = {}
    on = [ProfilerActivity.CPU if args.device == "cpu" else ProfilerActivity.CUDA]
    for name in SEARCHES:
        program = programs.program(name)
        for batch in (1, 256):
            queries = torch.from_numpy(programs.z[:batch]).to(args.device)
            modalities = torch.ones(batch, programs.sizes[0], dtype=torch.bool, device=args.device)
            program(queries, modalities)
            with torch_profile(activities=on) as log:
                program(queries, modalities)
                if args.device != "cpu":
                    torch.cuda.synchronize()
            events = log.key_averages()
            spent = {
                e.key[:90]: float(getattr(e, "self_device_time_total", 0) or e.self_cpu_time_total)
                for e in events
            }
            slowest = sorted(spent, key=lambda key: -spent[key])[:12]
            figures[f"{name}, batch {batch}"] = {
                "kernels": sum(e.count for e in events),
                "microseconds": {key: round(spent[key], 1) for key in slowest},
                "microseconds in all": round(sum(spent.values()), 1),
            }
    yield figures


def _same(programs: DecoderPrograms, trie: Trie) -> Figures:
    """The share of the 10 best of the plain search in float32 that the recorded programs find, too."""
    codebooks, device = programs.codebooks, programs.device
    books = [codebooks.vectors[level] for level in codebooks.levels]
    searcher = Searcher(books, copy.deepcopy(programs.decoder).float(), device)
    some, figures = programs.z[:32], {}
    plain_options = {
        "full depth": SearchOptions("generate", "none", beam=50, k=K),
        "early stop": SearchOptions("generate", "codes", beam=50, k=K, stop=3),
    }
    for name, options in plain_options.items():
        plain = searcher.search([TrieSegment(trie)], some, options)
        shape = choose_shape(programs.fixed, 50, K, SEARCHES[name][1], stop=3)
        found = GraphReplay(programs.program(name), DIM, 3, device)(some)
        rows = [trie.rows(found.of_query(query, 50).positions) for query in range(len(some))]
        figures[name] = recall_at(K, rows, [answer.rows for answer in plain])
        figures[f"{name}, queries with more leaves than fit"] = float(np.mean(found.leaves > shape.leaves))
        figures[f"{name}, queries asked again"] = float(np.mean(~found.exact))
    return figures


def _replayed(
    program: Any,
    z: Floats,
    args: SpeedOptions,
    batches: tuple[int, ...],
    *,
    compiled: bool = False,
    truth: tuple[Trie, list[Any]] | None = None,
) -> Figures:
    """Queries a second of a program by batch, answers on the host included."""
    rows: Figures = {}
    for batch in batches:
        replay = GraphReplay(
            program, z.shape[1], 3, args.device, batch_sizes=(batch,), compiled=compiled
        ).warm()
        part = z[:batch]
        seconds = median_seconds(lambda: replay(part), args.device)  # noqa: B023
        rows[f"batch {batch}"] = {"ms": round(1000 * seconds, 4), "queries_per_s": round(batch / seconds, 1)}
        if truth is not None and batch == max(batches):
            found = replay(part)
            trie, exact = truth
            own = [trie.rows(_ranked(found, query)) for query in range(len(part))]
            rows["recall"] = {"10 best": recall_at(K, own, exact[: len(part)])}
            rows["sure"] = {"share": float(found.exact.mean())}
    return rows


def _ranked(found: Any, query: int) -> NDArray[np.int64]:
    leaves = found.of_query(query, 0)
    return np.asarray(leaves.positions[np.argsort(-leaves.scores, kind="stable")])


def median_seconds(
    call: Callable[[], Any], device: str, budget: float = 0.6, slow: float = float("inf")
) -> float:
    """Median seconds of a call, of as many as fit into `budget` seconds; a `slow` one is not repeated."""

    def finished() -> None:
        call()
        if device != "cpu":
            torch.cuda.synchronize()

    finished()  # records programs and compiles kernels
    for _ in range(2):
        spent = seconds(finished)
        if spent > slow:
            return spent
    times: list[float] = []
    while len(times) < 5 or (sum(times) < budget and len(times) < 2000):
        times.append(seconds(finished))
    return float(np.median(times))


PHASES: dict[str, Callable[[SpeedOptions], Iterator[Figures]]] = {
    phase.__name__: phase
    for phase in (
        ceilings,
        generate,
        lookup,
        exact,
        profile,
        transformers,
        scale,
        compiled_generate,
        compiled_lookup,
    )
}
