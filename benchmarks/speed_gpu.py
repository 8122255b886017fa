"""The phases of `speed.py` on a GPU: ours as recorded graphs, transformers, exact search; queries a second.

Figures are medians of several rounds that end with the answers on the host. `--device cpu --phases ...` of
this module's phases is not offered: the programs' equality with the plain searches is tested on the CPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pools import Pool
from speed_cpu import K, codebooks, multiplied, quantized, recall
from torch.nn import functional as F

from genius.decode.init import initialise
from genius.decode.model import Decoder
from genius.decode.shape import DecoderShape
from genius.search.codebooks import Codebooks
from genius.search.gpu.fixed_decoder import FixedDecoder
from genius.search.gpu.fixed_lookup import FixedLookup
from genius.search.gpu.fixed_trie import FixedTrie
from genius.search.gpu.replay import GraphReplay
from genius.search.gpu.steps import FixedShape, choose_shape
from genius.search.options import SearchOptions
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

Floats = NDArray[np.float32]
DIM = 768
LARGE = (3, *[4096] * 8)
BATCHES = (1, 16, 64, 256)


def ceilings(args: argparse.Namespace) -> dict[str, Any]:
    """What the machine can do: bytes copied, bf16 products, and the time of a launch inside a graph."""
    size = 1 << (20 if args.tiny else 31)
    one = torch.randint(0, 255, (size,), dtype=torch.uint8, device=args.device)
    two = torch.empty_like(one)
    copied = 2 * size / _seconds(lambda: two.copy_(one), args.device)
    n = 256 if args.tiny else 8192
    a, b = (torch.randn(n, n, device=args.device, dtype=torch.bfloat16) for _ in range(2))
    products = 2 * n**3 / _seconds(lambda: torch.mm(a, b), args.device)
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
        figures["launch_in_a_graph_us"] = 1e6 * _seconds(graph.replay, args.device) / 500
    return figures


def generate(args: argparse.Namespace) -> dict[str, Any]:
    """The decoder, T5-small's shape: full depth and early stop, by pool, batch and beam."""
    tiny = args.tiny
    sizes = (3, *[64] * 4) if tiny else LARGE
    decoder, tables, z = _model("mini" if tiny else "t5-small", sizes, args.device)
    pools = [5000] if tiny else [1_000_000, 100_000, 5_600_000]
    figures: dict[str, Any] = {}
    for items in pools:
        trie = Trie.build(_skewed(items, sizes), sizes)
        fixed = FixedTrie(trie, tables, args.device)
        rows: dict[str, Any] = {"shelf_bytes": sum(s.exists.nbytes for s in fixed.dense_levels.values())}
        for beam in (50,) if items != 1_000_000 else (50, 1, 10, 100):
            for name, suffixes, share in (("early stop", False, 8), ("full depth", True, 1.28)):
                widths = choose_shape(fixed, beam, min(K, beam), max(share, 10 / beam), stop=3)
                program = FixedDecoder(fixed, tables, decoder, widths, suffixes)
                batches = BATCHES if items == 1_000_000 and beam == 50 else (1, 256)
                rows[f"{name}, beam {beam}"] = _replayed(program, z, args, batches[: 2 if tiny else None])
        if items == pools[0]:
            figures["same of the 10 best as the plain search in float32"] = _same(
                decoder, tables, trie, fixed, z, args
            )
        figures[str(items)] = rows
        args.save(figures)
    return figures


def compiled_lookup(args: argparse.Namespace) -> dict[str, Any]:
    """Lookup with its small operations fused by torch.compile, as long as there is time."""
    figures: dict[str, Any] = {}
    source = Pool(256)
    books = codebooks(source, args.tiny)
    tables, items = Codebooks(books), 10_000 if args.tiny else 1_000_000
    trie = Trie.build(quantized(source, books, items, args.cache), tables.sizes)
    fixed = FixedTrie(trie, tables, args.device)
    program = FixedLookup(fixed, tables, choose_shape(fixed, 200, K, 8), cosine=True)
    for batch in (256, 1024):
        if time.perf_counter() < args.deadline:
            one = _replayed(program, source.queries(1024), args, (batch,), compiled=True)
            figures.setdefault("lookup, codes, 8 leaves a beam", {}).update(one)
            args.save(figures)
    return figures


def compiled_generate(args: argparse.Namespace) -> dict[str, Any]:
    """The decoder likewise: a minute of compiling for each batch size."""
    figures: dict[str, Any] = {}
    sizes = (3, *[64] * 4) if args.tiny else LARGE
    decoder, tables, z = _model("mini" if args.tiny else "t5-small", sizes, args.device)
    fixed = FixedTrie(
        Trie.build(_skewed(5000 if args.tiny else 1_000_000, sizes), sizes), tables, args.device
    )
    for name, suffixes, share, batch in (
        ("early stop", False, 8, 1),
        ("early stop", False, 8, 256),
        ("full depth", True, 1.28, 256),
        ("full depth", True, 1.28, 1),
    ):
        if time.perf_counter() < args.deadline:
            widths = choose_shape(fixed, 50, K, share, stop=3)
            program = FixedDecoder(fixed, tables, decoder, widths, suffixes)
            one = _replayed(program, z, args, (batch,), compiled=True)
            figures.setdefault(f"{name}, beam 50", {}).update(one)
            args.save(figures)
    return figures


def transformers(args: argparse.Namespace) -> dict[str, Any]:
    """transformers' generate with a prefix function over a dict of dicts, the same weights and pool."""
    from decode import SIZES, Transformers, synthetic_codes

    if args.tiny:
        return {"left out": "a dict of dicts of this shape takes minutes"}
    decoder, _, z = _model("t5-small", SIZES, args.device)
    theirs = Transformers(decoder.float().cpu(), synthetic_codes(100_000))
    theirs.model.to(args.device, torch.bfloat16)
    theirs.weight, theirs.bias = theirs.weight.to(args.device), theirs.bias.to(args.device)
    figures: dict[str, Any] = {"items": 100_000}
    for batch in (1, 16):
        queries = torch.from_numpy(z[:batch])
        ask = partial(_generate, theirs, queries.to(args.device))
        ask()
        begin = time.perf_counter()
        for _ in range(3):
            ask()
        figures[f"batch {batch}"] = {"queries_per_s": 3 * batch / (time.perf_counter() - begin)}
    return figures


def _generate(theirs: Any, z: torch.Tensor) -> Any:
    """`Transformers.generate` of benchmarks/decode.py, on a device."""
    from transformers.modeling_outputs import BaseModelOutput

    shape = theirs.shape
    with torch.no_grad():
        prefix = (z @ theirs.weight.T + theirs.bias).to(theirs.model.dtype)
        encoded = theirs.model.encoder(inputs_embeds=prefix.view(len(z), shape.prefix, shape.width))
        output = theirs.model.generate(
            encoder_outputs=BaseModelOutput(encoded.last_hidden_state),
            max_new_tokens=shape.levels, num_beams=50, num_return_sequences=50, do_sample=False,
            length_penalty=0.0, prefix_allowed_tokens_fn=theirs.allowed,
        )  # fmt: skip
    return output.cpu()


def lookup(args: argparse.Namespace) -> dict[str, Any]:
    """Lookup, beam 200, as one graph, beside exact search in bf16 on the same vectors."""
    items = 10_000 if args.tiny else 1_000_000
    source = Pool(256)
    books = codebooks(source, args.tiny)
    codes = quantized(source, books, items, args.cache)
    tables, z = Codebooks(books), source.queries(1024)
    trie = Trie.build(codes, tables.sizes)
    fixed = FixedTrie(trie, tables, args.device)
    truth, figures = _exact(source, items, z, args)
    batches = (1, 4) if args.tiny else (1, 16, 256, 1024)
    for cosine in (False, True):
        for share in (8, 16):
            program = FixedLookup(fixed, tables, choose_shape(fixed, 200, K, share), cosine)
            name = f"lookup{', codes' * cosine}, {share} leaves a beam"
            figures[name] = _replayed(program, z, args, batches, truth=(trie, truth))
            args.save(figures)
    return {"items": items, **figures}


def _exact(source: Pool, items: int, z: Floats, args: argparse.Namespace) -> tuple[list[Any], dict[str, Any]]:
    x = torch.cat([torch.from_numpy(part).to(args.device) for part, _ in source.chunks(items)])
    queries = torch.from_numpy(z).to(args.device)
    truth = torch.cat([(queries[a : a + 64] @ x.T).topk(K).indices for a in range(0, len(z), 64)])
    half, row = x.bfloat16(), {}
    for batch in (1, 256):
        part = queries[:batch].bfloat16()
        ask = partial(_nearest, half, part)
        row[f"batch {batch}"] = {"queries_per_s": batch / _seconds(ask, args.device)}
    found = (queries[:256].bfloat16() @ half.T).topk(K).indices.cpu().numpy()
    row["recall"] = {"10 best": recall(list(found), list(truth[: len(found)].cpu().numpy()))}
    return list(truth.cpu().numpy()), {"exact, bf16": row}


def _nearest(x: torch.Tensor, z: torch.Tensor) -> Any:
    return (z @ x.T).topk(K).indices.cpu()


def exact(args: argparse.Namespace) -> dict[str, Any]:
    """Exact bf16 search over vectors of width 768, by pool."""
    figures: dict[str, Any] = {}
    for items in (10_000,) if args.tiny else (10_000, 100_000, 1_000_000, 5_600_000):
        x = F.normalize(torch.randn(items, DIM, device=args.device, dtype=torch.bfloat16), dim=1)
        rows = {}
        for batch in (1, 64, 256):
            z = F.normalize(torch.randn(batch, DIM, device=args.device, dtype=torch.bfloat16), dim=1)
            rows[f"batch {batch}"] = {"queries_per_s": batch / _seconds(partial(_nearest, x, z), args.device)}
        figures[str(items)] = rows
        del x
    return figures


def scale(args: argparse.Namespace) -> dict[str, Any]:
    """Lookup and the decoder (mini's shape, 256 codes) in a pool of very many synthetic items."""
    few, many = (5_000, 20_000) if args.tiny else (1_000_000, args.scale)
    source = Pool(256)
    books = codebooks(source, args.tiny)
    base = quantized(source, books, few, args.cache)
    tables = Codebooks(books)
    decoder = Decoder(DecoderShape.preset("mini", 256, tables.sizes, prefix=8)).eval()
    initialise(decoder, torch.Generator().manual_seed(0))
    decoder.to(args.device, torch.bfloat16)
    z, figures = source.queries(256), {}
    for items in (few, many):
        codes = base if items == few else multiplied(base, items)
        begin = time.perf_counter()
        trie = Trie.build(codes, tables.sizes)
        built = time.perf_counter() - begin
        del codes
        begin = time.perf_counter()
        fixed = FixedTrie(trie, tables, args.device)
        row: dict[str, Any] = {
            "build_seconds": round(built, 1),
            "to_the_device_seconds": round(time.perf_counter() - begin, 1),
            "bytes_per_item": round(trie.nbytes / items, 2),
        }
        batches = (1, 4) if args.tiny else (1, 256)
        row["lookup"] = _replayed(
            FixedLookup(fixed, tables, choose_shape(fixed, 200, K, 8)), z, args, batches
        )
        widths = choose_shape(fixed, 50, K, 8)
        row["generate, early stop"] = _replayed(
            FixedDecoder(fixed, tables, decoder, widths, suffixes=False), z, args, batches
        )
        figures[str(items)] = row
        del trie, fixed
    return figures


def profile(args: argparse.Namespace) -> dict[str, Any]:
    """Kernels of one query, by time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    sizes = (3, *[64] * 4) if args.tiny else LARGE
    decoder, tables, z = _model("mini" if args.tiny else "t5-small", sizes, args.device)
    fixed = FixedTrie(
        Trie.build(_skewed(5000 if args.tiny else 1_000_000, sizes), sizes), tables, args.device
    )
    figures: dict[str, Any] = {}
    on = [ProfilerActivity.CPU if args.device == "cpu" else ProfilerActivity.CUDA]
    for name, suffixes, share in (("early stop", False, 8), ("full depth", True, 1.28)):
        program = FixedDecoder(fixed, tables, decoder, choose_shape(fixed, 50, K, share, stop=3), suffixes)
        for batch in (1, 256):
            queries = torch.from_numpy(z[:batch]).to(args.device)
            wanted = torch.ones(batch, sizes[0], dtype=torch.bool, device=args.device)
            program(queries, wanted)
            with torch_profile(activities=on) as log:
                program(queries, wanted)
                if args.device != "cpu":
                    torch.cuda.synchronize()
            events = log.key_averages()
            spent = {
                e.key[:90]: float(getattr(e, "self_device_time_total", 0) or e.self_cpu_time_total)
                for e in events
            }
            best = sorted(spent, key=lambda key: -spent[key])[:12]
            figures[f"{name}, batch {batch}"] = {
                "kernels": sum(e.count for e in events),
                "microseconds": {key: round(spent[key], 1) for key in best},
                "microseconds in all": round(sum(spent.values()), 1),
            }
    return figures


def _model(preset: str, sizes: tuple[int, ...], device: str) -> tuple[Decoder, Codebooks, Floats]:
    """A decoder with random weights in bfloat16 (float32 on a CPU), code vectors, and queries."""
    rng = np.random.default_rng(0)
    decoder = Decoder(DecoderShape.preset(preset, DIM, sizes)).eval()
    initialise(decoder, torch.Generator().manual_seed(0))
    decoder.to(device, torch.float32 if device == "cpu" else torch.bfloat16)
    z = rng.normal(size=(256, DIM)).astype(np.float32)
    books = [
        rng.normal(size=(size, DIM)).astype(np.float32) * np.float32(0.5**n) for n, size in enumerate(sizes)
    ]
    return decoder, Codebooks(books), z / np.linalg.norm(z, axis=1, keepdims=True)


def _skewed(items: int, sizes: tuple[int, ...]) -> NDArray[np.uint16]:
    """Skewed codes, as in benchmarks/decode.py."""
    rng = np.random.default_rng(7)
    return (rng.random((items, len(sizes)), dtype=np.float32) ** 1.5 * np.array(sizes, np.float32)).astype(
        np.uint16
    )


def _same(
    decoder: Decoder, tables: Codebooks, trie: Trie, fixed: FixedTrie, z: Floats, args: argparse.Namespace
) -> dict[str, Any]:
    """How many of the 10 best the fixed programs (bf16 on a GPU) share with the plain search in float32."""
    import copy

    books = [tables.vectors[level] for level in tables.levels]
    searcher = Searcher(books, copy.deepcopy(decoder).float(), args.device)
    some, figures = z[:32], {}
    for name, suffixes, share, options in (
        ("full depth", True, 1.28, SearchOptions("generate", "none", beam=50, k=K)),
        ("early stop", False, 8, SearchOptions("generate", "codes", beam=50, k=K, stop=3)),
    ):
        plain = searcher.search([TrieSegment(trie)], some, options)
        widths: FixedShape = choose_shape(fixed, 50, K, share, stop=3)
        found = GraphReplay(FixedDecoder(fixed, tables, decoder, widths, suffixes), DIM, 3, args.device)(some)
        rows = [trie.rows(found.of_query(query, 50).positions) for query in range(len(some))]
        figures[name] = recall(rows, [answer.rows for answer in plain])
        figures[f"{name}, queries with more leaves than fit"] = float(np.mean(found.leaves > widths.leaves))
        figures[f"{name}, queries asked again"] = float(np.mean(~found.exact))
    return figures


def _replayed(
    program: Any,
    z: Floats,
    args: argparse.Namespace,
    batches: tuple[int, ...],
    *,
    compiled: bool = False,
    truth: tuple[Trie, list[Any]] | None = None,
) -> dict[str, Any]:
    """Queries a second of a program by batch, answers on the host included."""
    rows: dict[str, Any] = {}
    for batch in batches:
        replay = GraphReplay(
            program, z.shape[1], 3, args.device, batch_sizes=(batch,), compiled=compiled
        ).warm()
        part = z[:batch]
        seconds = _seconds(lambda: replay(part), args.device)  # noqa: B023
        rows[f"batch {batch}"] = {"ms": round(1000 * seconds, 4), "queries_per_s": round(batch / seconds, 1)}
        if truth is not None and batch == max(batches):
            found = replay(part)
            trie, exact = truth
            own = [trie.rows(_ranked(found, query)) for query in range(len(part))]
            rows["recall"] = {"10 best": recall(own, exact[: len(part)])}
            rows["sure"] = {"share": float(found.exact.mean())}
    return rows


def _ranked(found: Any, query: int) -> NDArray[np.int64]:
    leaves = found.of_query(query, 0)
    return np.asarray(leaves.positions[np.argsort(-leaves.scores, kind="stable")])


def _seconds(ask: Callable[[], Any], device: str, budget: float = 0.6) -> float:
    """Median seconds of a call, of as many as fit into `budget` seconds."""
    wait: Callable[[], Any] = torch.cuda.synchronize if device != "cpu" else lambda: None
    for _ in range(3):
        ask()
    wait()
    taken: list[float] = []
    while len(taken) < 5 or (sum(taken) < budget and len(taken) < 2000):
        begin = time.perf_counter()
        ask()
        wait()
        taken.append(time.perf_counter() - begin)
    return float(np.median(taken))


PHASES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "ceilings": ceilings,
    "generate": generate,
    "lookup": lookup,
    "exact": exact,
    "profile": profile,
    "transformers": transformers,
    "scale": scale,
    "compiled_generate": compiled_generate,
    "compiled_lookup": compiled_lookup,
}
