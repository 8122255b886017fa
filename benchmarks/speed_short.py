"""Phases of `speed.py` on a GPU: the decoder's short attention, checked and measured.

    PYTHONPATH=src python benchmarks/speed.py --device cuda --phases agree short --budget 120
    PYTHONPATH=src python benchmarks/speed.py --phases agree short --tiny --gpu-phases

The second one runs them on a CPU, to see that they work. Weights and codes are random.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from pools import random_decoder, recall_at
from speed_floor import Rates, decoder_floor
from speed_gpu import DIM, SEARCHES, DecoderPrograms, ceilings, median_seconds

from genius.decode.model import Decoder
from genius.search.gpu.code_vectors import split_queries, split_rows
from genius.search.gpu.fixed_decoder import FixedDecoder
from genius.search.gpu.operations import PLAIN, Operations, triton_operations
from genius.search.gpu.passes import DecoderPasses
from genius.search.gpu.replay import GraphReplay

if TYPE_CHECKING:
    from speed import SpeedOptions

Figures = dict[str, Any]
ROUNDS_S = 0.4  # seconds that one figure is repeated for
SHORT_WAY, PLAIN_WAY = "short attention", "short attention in plain torch"


def agree(args: SpeedOptions) -> Iterator[Figures]:
    """Relative errors of the kernels, beside the plain functions, and of the passes made of them."""
    kernels = triton_operations() if args.device != "cpu" else None
    figures: Figures = {"triton": kernels is not None}
    if kernels is not None:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for name, error in _kernel_errors(kernels, dtype, args.device).items():
                figures[f"{name}, {str(dtype)[6:]}"] = error
            yield figures
    z, rows = (torch.randn(n, DIM, device=args.device) for n in (64, 5000))
    halves = split_queries(z).double() @ split_rows(rows).double().T
    figures["products of halves"] = _error(halves, z.double() @ rows.double().T)
    decoder = random_decoder("mini", DIM, (3, *[64] * 4)).to(args.device)
    for name, own in {"plain": PLAIN, "kernels": kernels}.items():
        if own is not None:
            figures[f"passes, {name}, float32"] = _pass_error(decoder, DecoderPasses(decoder, own))
            yield figures
    large = [
        value for name, value in figures.items() if isinstance(value, float) and not value < _limit(name)
    ]
    figures["all agree"] = not large
    yield figures


def _limit(name: str) -> float:
    """The error that rounding explains; NaN is never below it."""
    exact = ("float32", "logsumexp", "halves", "best", "maxima")
    return 1e-4 if any(word in name for word in exact) else 1e-2


def _kernel_errors(kernels: Operations, dtype: torch.dtype, device: str) -> dict[str, float]:
    """‖kernel - plain‖ / ‖plain‖ for fresh random inputs of the shapes of a search."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device).to(dtype)

    errors: dict[str, float] = {}
    heads, width = 8, 64
    inner = heads * width
    shapes = ((6, 3, 1024), (1, 2, 3200), (2, 0, 768), (1, 14, 500), (12, 3, 333))
    lengths = ((384, 30), (50, 30), (6, 30), (50, 8))
    most = None if dtype == torch.bfloat16 else 1  # each shape is compiled
    for times, known, count in shapes[:most]:
        ahead = torch.ones(times, known + times, dtype=torch.bool, device=device).triu(known + 1)
        bias = torch.randn(heads, times, known + times, device=device).masked_fill(ahead, -torch.inf)
        own, past = random(count * times, 3 * inner), random(777, 3 * inner)[:, inner:]
        rows = torch.randint(0, 777, (count, known), device=device)
        arguments = own / 4, past / 4, rows, bias, heads
        name = f"self-attention of {times} to {known + times}"
        errors[name] = _error(kernels.self_attention(*arguments), PLAIN.self_attention(*arguments))
    for count, prefix in lengths[:most]:
        both = random(16, prefix, 6, 2, inner) / 4
        arguments_2 = random(16, count, inner) / 4, both[:, :, 3, 0], both[:, :, 3, 1], heads
        errors[f"attention of {count} to a prefix of {prefix}"] = _error(
            kernels.prefix_attention(*arguments_2), PLAIN.prefix_attention(*arguments_2)
        )
    logits = 5 * torch.randn(300, 4096, device=device)
    errors["logsumexp"] = _error(kernels.logsumexp(logits), PLAIN.logsumexp(logits))
    scores, code_scores = torch.randn(8, 50, device=device), torch.randn(8, 50, 4096, device=device)
    exists, prefixes = (
        torch.rand(99, 4096, device=device) < 0.02,
        torch.randint(0, 99, (8, 50), device=device),
    )
    arguments_3 = scores, code_scores, exists, prefixes, 64
    same = torch.equal(kernels.child_maxima(*arguments_3), PLAIN.child_maxima(*arguments_3))
    errors["child maxima"] = 0.0 if same else 1.0
    for columns, k in ((3200, 50), (12288, 50), (400, 10), (30_000, 50)):
        rounded = (50 * torch.randn(64, columns, device=device)).round()  # many are equal
        pairs = zip(kernels.top_k(rounded, k), PLAIN.top_k(rounded, k), strict=True)
        errors[f"the {k} best of {columns}"] = 0.0 if all(torch.equal(a, b) for a, b in pairs) else 1.0
    return errors


def _pass_error(decoder: Decoder, passes: DecoderPasses) -> float:
    """The same for the hidden vectors of all passes of a search."""
    z = torch.randn(16, DIM, device=decoder.embedding.weight.device)
    modalities = torch.arange(3, device=z.device)
    parents = torch.randint(0, 3, (16, 20), device=z.device)
    codes = torch.randint(0, 64, (16, 20, 3), device=z.device)
    found = []
    for own in (passes, decoder):
        chosen: Any = own
        level_0, state = chosen.start_from(z, modalities)
        longer = chosen.advance(state, parents, codes[:, :, 0])
        rest = chosen.read_codes(longer, parents, codes[:, :, 1:])
        found.append(torch.cat([x.flatten() for x in (level_0, state.hidden, longer.hidden, rest)]))
    return _error(*found)


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def short(args: SpeedOptions) -> Iterator[Figures]:
    """Full depth and early stop, by attention; queries a second as share of what the hardware allows."""
    measured = next(ceilings(args))
    launch = measured.get("launch_in_a_graph_us", 1.0) / 1e6
    rates = Rates(measured["copy_bytes_per_s"], measured["bf16_flops_per_s"], launch)
    programs = DecoderPrograms(args)
    programs.index(5000 if args.tiny else 1_000_000)
    figures: Figures = {"ceilings": measured}
    ways: dict[str, Any] = {
        SHORT_WAY: DecoderPasses(programs.decoder),
        "torch's attention": programs.decoder,
        PLAIN_WAY: DecoderPasses(programs.decoder, PLAIN),
    }
    for way, passes in ways.items():
        for name in SEARCHES:
            for batch in (4, 1) if args.tiny else (256, 1):
                if time.perf_counter() > args.deadline or (way == PLAIN_WAY and batch == 1):
                    continue
                least = decoder_floor(rates, programs.decoder.shape, 50, 3, batch, name == "full depth")
                figures[f"{name}, batch {batch}, {way}"] = attempt(
                    lambda: _measured(_with_passes(programs, name, passes), batch, programs.z, args, least)  # noqa: B023
                )
                yield figures
    for name in SEARCHES:
        figures[f"same of the 10 best by both, {name}"] = attempt(
            lambda: {"share": _same_items(programs, name, args)}  # noqa: B023
        )
        yield figures
        for batch in (4,) if args.tiny else (256, 1):
            figures[f"profile of {name}, batch {batch}"] = attempt(
                lambda: _profile(_with_passes(programs, name, ways[SHORT_WAY]), programs.z[:batch], args)  # noqa: B023
            )
            yield figures


def attempt(measure: Callable[[], Figures]) -> Figures:
    """The figures, or the error: what follows shall be measured, too."""
    try:
        return measure()
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def _with_passes(programs: DecoderPrograms, name: str, passes: Any) -> FixedDecoder:
    program = programs.program(name)
    program.passes = passes
    return program


def _measured(program: FixedDecoder, batch: int, z: Any, args: SpeedOptions, least: Figures) -> Figures:
    z = z[:batch]
    replay = GraphReplay(program, DIM, 3, args.device, batch_sizes=(len(z),)).warm()
    spent = median_seconds(lambda: replay(z), args.device, ROUNDS_S)
    rate = len(z) / spent
    most = float(least["queries a second at most"])
    return {
        "ms": round(1e3 * spent, 4),
        "queries_per_s": round(rate, 1),
        "share_of_floor": round(rate / most, 3),
    }


def _same_items(programs: DecoderPrograms, name: str, args: SpeedOptions) -> float:
    """The share of the 10 best that searches with both kinds of attention have in common."""
    z, found = programs.z[:32], []
    for passes in (DecoderPasses(programs.decoder), programs.decoder):
        program = _with_passes(programs, name, passes)
        answers = GraphReplay(program, DIM, 3, args.device, batch_sizes=(len(z),))(z)
        found.append([answers.of_query(query, 50).positions for query in range(len(z))])
    return recall_at(10, *found)


def _profile(program: FixedDecoder, z: Any, args: SpeedOptions) -> Figures:
    """Microseconds on the device by kernel, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    queries = torch.from_numpy(z).to(args.device)
    wanted = torch.ones(len(z), 3, dtype=torch.bool, device=args.device)
    on_cpu = args.device == "cpu"
    program(queries, wanted)
    with profile(activities=[ProfilerActivity.CPU if on_cpu else ProfilerActivity.CUDA]) as log:
        program(queries, wanted)
        if not on_cpu:
            torch.cuda.synchronize()
    key = "self_cpu_time_total" if on_cpu else "self_device_time_total"
    spent = {
        event.key[:100]: (round(float(getattr(event, key, 0.0)), 1), event.count)
        for event in log.key_averages()
    }
    spent = {name: value for name, value in spent.items() if value[0] > 0}
    longest = sorted(spent, key=lambda name: -spent[name][0])[:24]
    total = round(sum(value for value, _ in spent.values()), 1)
    kernels = sum(count for _, count in spent.values())
    return {"us": total, "kernels": kernels, "us, calls": {name: spent[name] for name in longest}}


PHASES: dict[str, Callable[[SpeedOptions], Iterator[Figures]]] = {"agree": agree, "short": short}
