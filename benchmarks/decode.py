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
`matrix_gflops` is what plain products of these shapes reach on one thread. `times_faster` is by processor
time on one thread, which a machine that is busy with other work distorts least; the tables of all cores are
by the clock, as a user waits. `bfloat16 over transformers in float32` sets our quicker numbers beside their
usual ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pools import versions

from genius.convert.decoder import to_released
from genius.decode.init import initialise
from genius.decode.model import Decoder
from genius.decode.shape import DecoderShape
from genius.search.options import SearchOptions
from genius.search.rank import RankedItems
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

Floats = NDArray[np.float32]
DIM = 768
SIZES = (3, *[4096] * 8)
BEAM = 50
BATCHES = (1, 16)
WAYS = {
    "level by level": SearchOptions("generate", "none", beam=BEAM, k=BEAM, stop=len(SIZES)),
    "full depth": SearchOptions("generate", "none", beam=BEAM, k=BEAM),
    "early stop": SearchOptions("generate", "codes", beam=BEAM, k=BEAM, stop=3),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000, help="pool of the comparison with transformers")
    parser.add_argument("--pools", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 5_600_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", default="benchmarks/results/decode.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    decoder = Decoder(DecoderShape.preset("t5-small", DIM, SIZES)).eval()
    initialise(decoder, torch.Generator().manual_seed(0))
    rng = np.random.default_rng(0)
    searcher = Searcher([rng.normal(size=(size, DIM)).astype(np.float32) for size in SIZES], decoder)
    z = rng.normal(size=(16, DIM)).astype(np.float32)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    codes = synthetic_codes(args.items)
    pool, theirs = [TrieSegment(Trie.build(codes, SIZES))], Transformers(decoder, codes)
    check_equal(searcher, theirs, pool, z[:2])
    result: dict[str, Any] = {
        "command": " ".join(["python benchmarks/decode.py", *sys.argv[1:]]),
        "versions": versions(),
        "shape": {"decoder": "t5-small", "levels": len(SIZES), "codes": 4096, "beam": BEAM},
        "items": args.items,
        "matrix_gflops": {str(kind): matrix_gflops(kind) for kind in (torch.float32, torch.bfloat16)},
    }
    result["float32"] = compare(searcher, theirs, pool, z, args.repeats)
    result["float32, all cores"] = by_the_clock(searcher, theirs, pool, z, args.repeats)
    write(result, args.out)  # what is there is kept, should the rest be cut off
    result["pool_size_processor_ms"] = flatness(searcher, z, args.pools, args.repeats)
    write(result, args.out)
    reference = searcher.search(pool, z, WAYS["full depth"])
    decoder.bfloat16()
    theirs.model.bfloat16()
    result["bfloat16"] = compare(searcher, theirs, pool, z, args.repeats)
    result["bfloat16, all cores"] = by_the_clock(searcher, theirs, pool, z, args.repeats)
    result["bfloat16 over transformers in float32"] = across(result)
    result["same of the 10 best in bfloat16"] = agreement(
        reference, searcher.search(pool, z, WAYS["full depth"])
    )
    write(result, args.out)
    print(json.dumps(result, indent=2))


def write(result: dict[str, Any], out: str) -> None:
    if out != "-":
        Path(out).write_text(json.dumps(result, indent=2) + "\n")


def synthetic_codes(items: int) -> NDArray[np.uint16]:
    """Skewed codes; a pool is the beginning of every larger one."""
    chunks = []
    for start in range(0, items, 100_000):
        rng = np.random.default_rng((7, start))
        chunks.append((rng.random((100_000, len(SIZES))) ** 1.5 * SIZES).astype(np.uint16)[: items - start])
    return np.concatenate(chunks)


def ways_of(
    searcher: Searcher, theirs: Transformers, pool: list[TrieSegment], z: Floats, batch: int
) -> dict[str, Callable[[int], Any]]:
    ways: dict[str, Callable[[int], Any]] = {"transformers": partial(run_theirs, theirs, z, batch)}
    for name, options in WAYS.items():
        ways[name] = partial(run_ours, searcher, pool, options, z, batch)
    return ways


def compare(
    searcher: Searcher, theirs: Transformers, pool: list[TrieSegment], z: Floats, repeats: int
) -> dict[str, Any]:
    """Milliseconds a query of ours and of transformers on one thread, and how many times ours is faster."""
    figures: dict[str, Any] = {}
    one = ways_of(searcher, theirs, pool, z, 1)
    macs = {name: count_macs(partial(run, 0)) for name, run in one.items()}
    for batch in BATCHES:
        ways = ways_of(searcher, theirs, pool, z, batch)
        figures[f"batch {batch}"] = table = {}
        taken = side_by_side(ways, repeats if batch > 1 else 3 * repeats)
        for name, (seconds, busy) in taken.items():
            work = macs[name]
            table[name] = {
                "ms": round(1000 * seconds / batch, 2),
                "processor_ms": round(1000 * busy / batch, 2),
                "times_faster": round(taken["transformers"][1] / busy, 2),
                "gigamacs": round(work / 1e9, 2),
                "gflops_reached": round(2 * work / (busy / batch) / 1e9),
            }
    return figures


def by_the_clock(
    searcher: Searcher, theirs: Transformers, pool: list[TrieSegment], z: Floats, repeats: int
) -> dict[str, Any]:
    """The same with all cores, by the clock."""
    figures: dict[str, Any] = {"threads": os.cpu_count()}
    torch.set_num_threads(os.cpu_count() or 1)
    for batch in BATCHES:
        taken = side_by_side(ways_of(searcher, theirs, pool, z, batch), repeats if batch > 1 else 3 * repeats)
        whole = taken["transformers"][0]
        figures[f"batch {batch}"] = {
            name: {"ms": round(1000 * seconds / batch, 2), "times_faster": round(whole / seconds, 2)}
            for name, (seconds, _) in taken.items()
        }
    torch.set_num_threads(1)
    return figures


def across(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """How many times ours in bfloat16 is faster than transformers in float32, one thread, processor time."""
    return {
        f"batch {batch}": {
            name: round(
                result["float32"][f"batch {batch}"]["transformers"]["processor_ms"]
                / result["bfloat16"][f"batch {batch}"][name]["processor_ms"],
                2,
            )
            for name in WAYS
        }
        for batch in BATCHES
    }


def matrix_gflops(kind: torch.dtype, rows: int = 800, repeats: int = 20) -> float:
    """What one thread reaches in the products of a feed-forward layer for 16 queries with 50 beams."""
    x, weight = torch.randn(rows, 512).to(kind), torch.randn(2048, 512).to(kind)
    torch.nn.functional.linear(x, weight)
    busy = time.process_time()
    for _ in range(repeats):
        torch.nn.functional.linear(x, weight)
    return round(2 * rows * 512 * 2048 * repeats / (time.process_time() - busy) / 1e9, 1)


def run_ours(
    searcher: Searcher, pool: list[TrieSegment], options: SearchOptions, z: Floats, batch: int, number: int
) -> Any:
    return searcher.search(pool, part(z, number, batch), options)


def run_theirs(theirs: Transformers, z: Floats, batch: int, number: int) -> Any:
    return theirs.generate(part(z, number, batch))


def count_macs(run: Callable[[], Any]) -> float:
    """Multiplications of all matrix products in `run`."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()
    return float(counter.get_total_flops()) / 2


def agreement(ours: list[RankedItems], others: list[RankedItems]) -> float:
    """The share of the 10 best items that are the same."""
    shares = [len(set(a.rows[:10]) & set(b.rows[:10])) / 10 for a, b in zip(ours, others, strict=True)]
    return round(statistics.mean(shares), 3)


def flatness(searcher: Searcher, z: Floats, sizes: list[int], repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of the processor a query, one at a time, for pools of different size."""
    codes = synthetic_codes(max(sizes))
    pools = {items: [TrieSegment(Trie.build(codes[:items], SIZES))] for items in sizes}
    figures: dict[str, dict[str, float]] = {}
    for name, options in WAYS.items():
        ways: dict[str, Callable[[int], Any]] = {
            str(items): partial(run_ours, searcher, pool, options, z, 1) for items, pool in pools.items()
        }
        taken = {items: busy for items, (_, busy) in side_by_side(ways, 4 * repeats).items()}
        figures[name] = {items: round(1000 * seconds, 2) for items, seconds in taken.items()}
        figures[name]["largest over smallest"] = round(taken[str(sizes[-1])] / taken[str(sizes[0])], 3)
    return figures


def side_by_side(ways: dict[str, Callable[[int], Any]], repeats: int) -> dict[str, tuple[float, float]]:
    """Median seconds of each way, by the clock and of the processor.

    The ways take turns, so a busy machine is busy for all of them.
    """
    for run in ways.values():
        run(0)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(repeats):
        for name, run in ways.items():
            clock, busy = time.perf_counter(), time.process_time()
            run(number)
            taken[name].append((time.perf_counter() - clock, time.process_time() - busy))
    return {
        name: (statistics.median(c for c, _ in pairs), statistics.median(b for _, b in pairs))
        for name, pairs in taken.items()
    }


def part(z: Floats, number: int, batch: int) -> Floats:
    start = number * batch % len(z)
    return z[start : start + batch]


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
        """The rows that may follow, for one beam."""
        inner = self.tree
        for row in rows[1:].tolist():
            inner = inner.get(row, {})
        return list(inner) or [0]

    @torch.no_grad()
    def generate(self, z: Floats) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes (batch, beam, levels) and scores (batch, beam), normalised over all rows as T5 does."""
        from transformers.modeling_outputs import BaseModelOutput

        prefix = (torch.from_numpy(z) @ self.weight.T + self.bias).to(self.model.dtype)
        encoded = self.model.encoder(inputs_embeds=prefix.view(len(z), self.shape.prefix, self.shape.width))
        output = self.model.generate(
            encoder_outputs=BaseModelOutput(encoded.last_hidden_state),
            max_new_tokens=self.shape.levels,
            num_beams=BEAM,
            num_return_sequences=BEAM,
            do_sample=False,
            length_penalty=0.0,
            prefix_allowed_tokens_fn=self.allowed,
            return_dict_in_generate=True,
            output_scores=True,
        )
        codes = output.sequences[:, 1:].view(len(z), BEAM, -1) - torch.tensor(self.shape.offsets)
        return codes, output.sequences_scores.view(len(z), BEAM)


def check_equal(searcher: Searcher, theirs: Transformers, pool: list[TrieSegment], z: Floats) -> None:
    """Both must find the same codes; transformers' softmax is narrowed to the level for this."""
    level = 0

    def note(_module: Any, _args: Any, kwargs: Any) -> None:
        nonlocal level
        level = int(kwargs["past_key_values"].get_seq_length())

    def narrow(_module: Any, _args: Any, logits: torch.Tensor) -> torch.Tensor:
        rows = slice(theirs.shape.offsets[level], theirs.shape.offsets[level] + theirs.shape.sizes[level])
        out = torch.full_like(logits, -torch.inf)
        out[..., rows] = logits[..., rows]
        return out

    hooks = [
        theirs.model.decoder.register_forward_pre_hook(note, with_kwargs=True),
        theirs.model.lm_head.register_forward_hook(narrow),
    ]
    codes, _ = theirs.generate(z)
    for hook in hooks:
        hook.remove()
    for ours, other in zip(searcher.search(pool, z, WAYS["full depth"]), codes.tolist(), strict=True):
        if set(map(tuple, ours.codes.tolist())) != set(map(tuple, other)):
            sys.exit("the two searches found different codes: the comparison would mean nothing")


if __name__ == "__main__":
    main()
