"""Decoder beam search against transformers' generate with a prefix function over a dict of dicts.

Same weights (t5-small shape, random), same pool (level 0 and 8 levels of 4096 codes), beam 50, one run:

    python benchmarks/decode.py                          # the full figures, benchmarks/results/decode.json
    python benchmarks/decode.py --items 20000 --pools 10000 100000 --repeats 1 --out -     # a quick look

    level by level   the decoder takes all 9 steps with 50 beams, as the paper does
    full depth       the same answer: once no more items than beams are left, one pass scores their codes
    early stop       ends after 3 levels and ranks the items under the beams by what their codes stand for

transformers normalises over all 32,774 rows, ours over the codes of a level; before anything is timed, both
are checked to find the same codes under the same normalisation. `gigamacs` counts the multiplications of the
matrix products a query needs: with `gflops_reached` it says how far from the floor a figure is, and
`matrix_gflops` is what plain products of these shapes reach on one thread. `profile` says where the time
goes: the share of each operation, and how fast the products are beside the same ones alone. `times_faster` is
by processor time on one thread, which a machine that is busy with other work distorts least; the tables of
all cores are by the clock, as a user waits. `bfloat16 over transformers in float32` sets our quicker numbers
beside their usual ones.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from _harness import Call, Timer, run, side_by_side
from numpy.typing import NDArray
from pools import random_decoder, recall_at, skewed_codes

from genius.convert.decoder import to_released
from genius.decode.model import Decoder
from genius.decode.packed import PackedLinear
from genius.search.options import SearchOptions
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

Floats = NDArray[np.float32]
DIM = 768
SIZES = (3, *[4096] * 8)
BEAM = 50
BATCHES = (1, 16)
PRODUCT = "mkldnn::_linear_pointwise"  # with packed weights, as the profiler names it
OPERATIONS = 10  # that a profile names
SEARCHES = {
    "level by level": SearchOptions("generate", "none", beam=BEAM, k=BEAM, stop=len(SIZES)),
    "full depth": SearchOptions("generate", "none", beam=BEAM, k=BEAM),
    "early stop": SearchOptions("generate", "codes", beam=BEAM, k=BEAM, stop=3),
}


def main(
    items: int = 100_000,
    pools: list[int] = [10_000, 100_000, 1_000_000, 5_600_000],  # noqa: B006
    repeats: int = 3,
) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(1)
    decoder = random_decoder("t5-small", DIM, SIZES)
    rng = np.random.default_rng(0)
    books = [rng.normal(size=(size, DIM)).astype(np.float32) for size in SIZES]
    searcher = Searcher(books, decoder)
    z = rng.normal(size=(16, DIM)).astype(np.float32)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    codes = skewed_codes(items, SIZES)
    pool, theirs = [TrieSegment(Trie.build(codes, SIZES))], Transformers(decoder, codes)
    check_equal(searcher, theirs, pool, z[:2])
    calls = {batch: calls_of(searcher, theirs, pool, z, batch) for batch in BATCHES}
    result: dict[str, Any] = {
        "shape": {"decoder": "t5-small", "levels": len(SIZES), "codes": 4096, "beam": BEAM},
        "items": items,
        "matrix_gflops": {str(kind): matrix_gflops(kind) for kind in (torch.float32, torch.bfloat16)},
        "float32": compare(calls, repeats),
        "float32, all cores": by_the_clock(calls, repeats),
    }
    yield result
    result["profile, full depth, 16 queries"] = profile(calls[16]["full depth"])
    yield result
    result["pool_size_processor_ms"] = flatness(searcher, z, pools, repeats)
    yield result
    reference = searcher.search(pool, z, SEARCHES["full depth"])
    light = Searcher(books, decoder, precision="bfloat16")
    theirs.model.bfloat16()
    calls = {batch: calls_of(light, theirs, pool, z, batch) for batch in BATCHES}
    result["bfloat16"] = compare(calls, repeats)
    result["bfloat16, all cores"] = by_the_clock(calls, repeats)
    result["bfloat16 over transformers in float32"] = across(result)
    again = light.search(pool, z, SEARCHES["full depth"])
    rows = ([answer.rows for answer in answers] for answers in (again, reference))
    result["same of the 10 best in bfloat16"] = recall_at(10, *rows)
    yield result


def calls_of(
    searcher: Searcher, theirs: Transformers | None, pool: list[TrieSegment], z: Floats, batch: int
) -> dict[str, Call]:
    """The searches that are timed, each on another batch of queries at each repetition."""

    def part(number: int) -> Floats:
        start = number * batch % len(z)
        return z[start : start + batch]

    def ours(options: SearchOptions, number: int) -> Any:
        return searcher.search(pool, part(number), options)

    calls: dict[str, Call] = {name: partial(ours, options) for name, options in SEARCHES.items()}
    return (
        calls if theirs is None else {"transformers": lambda number: theirs.generate(part(number)), **calls}
    )


def compare(calls: dict[int, dict[str, Call]], repeats: int) -> dict[str, Any]:
    """Milliseconds per query of ours and of transformers on one thread, and how many times ours is faster."""
    macs = {name: count_macs(call) for name, call in calls[1].items()}
    return {
        f"batch {batch}": {
            name: {
                "ms": round(1000 * seconds / batch, 2),
                "processor_ms": round(1000 * processor / batch, 2),
                "times_faster": round(times["transformers"][1] / processor, 2),
                "gigamacs": round(macs[name] / 1e9, 2),
                "gflops_reached": round(2 * macs[name] / (processor / batch) / 1e9),
            }
            for name, (seconds, processor) in times.items()
        }
        for batch, times in times_of(calls, repeats)
    }


def by_the_clock(calls: dict[int, dict[str, Call]], repeats: int) -> dict[str, Any]:
    """The same with all cores, by the clock."""
    figures: dict[str, Any] = {"threads": os.cpu_count()}
    torch.set_num_threads(os.cpu_count() or 1)
    for batch, times in times_of(calls, repeats):
        whole = times["transformers"][0]
        figures[f"batch {batch}"] = {
            name: {"ms": round(1000 * seconds / batch, 2), "times_faster": round(whole / seconds, 2)}
            for name, (seconds, _) in times.items()
        }
    torch.set_num_threads(1)
    return figures


def times_of(
    calls: dict[int, dict[str, Call]], repeats: int
) -> Iterator[tuple[int, dict[str, tuple[float, float]]]]:
    """Batch size and times of its calls; single queries are repeated more often."""
    return ((batch, side_by_side(own, repeats if batch > 1 else 3 * repeats)) for batch, own in calls.items())


def across(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """How many times ours in bfloat16 is faster than transformers in float32, one thread, processor time."""
    figures: dict[str, dict[str, float]] = {}
    for batch in (f"batch {batch}" for batch in BATCHES):
        theirs = result["float32"][batch]["transformers"]["processor_ms"]
        ours = result["bfloat16"][batch]
        figures[batch] = {name: round(theirs / ours[name]["processor_ms"], 2) for name in SEARCHES}
    return figures


def matrix_gflops(kind: torch.dtype, rows: int = 800, repeats: int = 20) -> float:
    """What one thread reaches in the products of a feed-forward layer for 16 queries with 50 beams."""
    x, weight = torch.randn(rows, 512).to(kind), torch.randn(2048, 512).to(kind)
    torch.nn.functional.linear(x, weight)
    with Timer() as timer:
        for _ in range(repeats):
            torch.nn.functional.linear(x, weight)
    return round(2 * rows * 512 * 2048 * repeats / timer.processor / 1e9, 1)


def count_macs(call: Call) -> float:
    """Multiplications of all matrix products in one call."""
    from torch.utils.flop_counter import FlopCounterMode

    packed_products = {torch.ops.mkldnn._linear_pointwise: packed_flops}
    with FlopCounterMode(display=False, custom_mapping=packed_products) as counter:
        call(0)
    return float(counter.get_total_flops()) / 2


def packed_flops(x: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    """Operations of a product with packed weights, from the shapes of its arguments."""
    return 2 * math.prod(x) * weight[0]


def profile(call: Call) -> dict[str, Any]:
    """Where one call spends its time: the share of each kind of operation, and the rates of the products.

    `alone` is what a product of the same shape reaches when nothing else runs between two of them: no program
    made of these products can be faster than they are.
    """
    call(0)
    with torch.profiler.profile(record_shapes=True) as recorded:
        call(0)
    whole = sum(event.self_cpu_time_total for event in recorded.key_averages())
    largest = sorted(recorded.key_averages(), key=lambda event: -event.self_cpu_time_total)[:OPERATIONS]
    shares = {event.key: round(event.self_cpu_time_total / whole, 4) for event in largest}
    products = []
    for event in recorded.key_averages(group_by_input_shape=True):
        if event.key == PRODUCT:
            x, (out, inner), *_ = event.input_shapes
            rows = math.prod(x[:-1])
            products.append((event.self_cpu_time_total, event.count, rows, inner, out))
    spent = sum(one[0] for one in products)
    flops = [2 * count * rows * inner * out for _, count, rows, inner, out in products]
    alone = {one[2:]: packed_gflops(*one[2:]) for one in products}
    ideal = sum(own / alone[one[2:]] / 1000 for own, one in zip(flops, products, strict=True))  # microseconds
    return {
        "share of the time": {**shares, "all others": round(1 - sum(shares.values()), 4)},
        "products": {
            f"{rows} x {inner} x {out}": {
                "calls": count,
                "share": round(time / whole, 4),
                "gflops": round(2 * count * rows * inner * out / time / 1000, 1),
                "alone": alone[rows, inner, out],
            }
            for time, count, rows, inner, out in sorted(products, reverse=True)[:OPERATIONS]
        },
        "gflops of all products": round(sum(flops) / spent / 1000, 1),
        "gflops of the same products alone": round(sum(flops) / ideal / 1000, 1),
        "share of the time if products were all": round(ideal / whole, 3),
    }


def packed_gflops(rows: int, inner: int, out: int, repeats: int = 30) -> float:
    """What one thread reaches at best in products of this shape with packed weights."""
    x, layer = torch.randn(rows, inner), PackedLinear(torch.randn(out, inner))
    times = []
    for _ in range(repeats):
        with Timer() as timer:
            layer(x)
        times.append(timer.seconds)
    return round(2 * rows * inner * out / min(times) / 1e9, 1)


def flatness(searcher: Searcher, z: Floats, sizes: list[int], repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of the processor per query, one at a time, for pools of different size."""
    codes = skewed_codes(max(sizes), SIZES)
    pools = {str(items): [TrieSegment(Trie.build(codes[:items], SIZES))] for items in sizes}
    calls = {items: calls_of(searcher, None, pool, z, 1) for items, pool in pools.items()}
    figures: dict[str, dict[str, float]] = {}
    for name in SEARCHES:
        times = side_by_side({items: own[name] for items, own in calls.items()}, 4 * repeats)
        figures[name] = {items: round(1000 * processor, 2) for items, (_, processor) in times.items()}
        largest, smallest = times[str(sizes[-1])][1], times[str(sizes[0])][1]
        figures[name]["largest over smallest"] = round(largest / smallest, 3)
    return figures


class Transformers:
    """transformers' T5 with the same weights, and a trie of nested dicts behind its prefix function."""

    def __init__(self, decoder: Decoder, codes: NDArray[np.uint16]) -> None:
        from transformers import T5Config, T5ForConditionalGeneration

        shape = decoder.shape
        config = T5Config(
            vocab_size=shape.rows,
            d_model=shape.width,
            d_kv=shape.head_width,
            d_ff=shape.feed_forward,
            num_layers=0,
            num_decoder_layers=shape.layers,
            num_heads=shape.heads,
            decoder_start_token_id=0,
            eos_token_id=None,
        )
        self.shape = shape
        self.model = T5ForConditionalGeneration(config).eval()
        tensors = to_released(decoder)
        prefix = "id_generator."
        own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        self.model.load_state_dict(own, strict=False)
        self.weight = tensors["embed_projector.0.weight"].float()
        self.bias = tensors["embed_projector.0.bias"].float()
        self.tree: dict[int, Any] = {}
        for item in (codes + np.array(shape.offsets)).tolist():
            inner = self.tree
            for row in item:
                inner = inner.setdefault(row, {})

    def allowed(self, _query: int, rows: torch.Tensor) -> list[int]:
        """The tokens that may follow, for one beam."""
        inner = self.tree
        for row in rows[1:].tolist():
            inner = inner.get(row, {})
        return list(inner) or [0]

    @torch.no_grad()
    def generate(self, z: Floats) -> torch.Tensor:
        """Codes (batch, beam, levels) on the host, by scores that are normalised over all rows as in T5."""
        from transformers.modeling_outputs import BaseModelOutput

        device = self.model.device
        projected = torch.from_numpy(z).to(device) @ self.weight.to(device).T + self.bias.to(device)
        prefix = projected.to(self.model.dtype)
        encoded = self.model.encoder(inputs_embeds=prefix.view(len(z), self.shape.prefix, self.shape.width))
        output = self.model.generate(
            encoder_outputs=BaseModelOutput(encoded.last_hidden_state),
            max_new_tokens=self.shape.levels,
            num_beams=BEAM,
            num_return_sequences=BEAM,
            do_sample=False,
            length_penalty=0.0,
            prefix_allowed_tokens_fn=self.allowed,
        )
        tokens: torch.Tensor = output[:, 1:].cpu()
        return tokens.view(len(z), BEAM, -1) - torch.tensor(self.shape.offsets)


def check_equal(searcher: Searcher, theirs: Transformers, pool: list[TrieSegment], z: Floats) -> None:
    """Both must find the same codes; transformers' softmax is narrowed to the level for this."""
    level = 0

    def read_level(_module: Any, _args: Any, kwargs: Any) -> None:
        nonlocal level
        level = int(kwargs["past_key_values"].get_seq_length())

    def narrow(_module: Any, _args: Any, logits: torch.Tensor) -> torch.Tensor:
        rows = slice(theirs.shape.offsets[level], theirs.shape.offsets[level] + theirs.shape.sizes[level])
        out = torch.full_like(logits, -torch.inf)
        out[..., rows] = logits[..., rows]
        return out

    hooks = [
        theirs.model.decoder.register_forward_pre_hook(read_level, with_kwargs=True),
        theirs.model.lm_head.register_forward_hook(narrow),
    ]
    codes = theirs.generate(z)
    for hook in hooks:
        hook.remove()
    for ours, other in zip(searcher.search(pool, z, SEARCHES["full depth"]), codes.tolist(), strict=True):
        if set(map(tuple, ours.codes.tolist())) != set(map(tuple, other)):
            sys.exit("the two searches found different codes: the comparison would mean nothing")


if __name__ == "__main__":
    run(main)
