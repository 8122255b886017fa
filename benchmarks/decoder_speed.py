"""How fast stage 2 trains: samples per second at the paper's sizes, and the hours for M-BEIR.

    python benchmarks/decoder_speed.py                         one GPU: T5-small, d 768, 8 levels of 4096
    python benchmarks/decoder_speed.py --device cpu --tiny     the same script in seconds on a laptop

The vectors are random: the arithmetic does not depend on them. One line of JSON per setting on stdout.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from genius.decode.initial import fresh_decoder
from genius.decode.model import DecoderShape
from genius.decode.plain_beam import CodePool, best_items
from genius.decode.targets import Softness
from genius.decode.train import Lesson, train_decoder
from genius.quantize.model import Quantizer
from genius.quantize.pairs import Pairs, build_pairs
from genius.training.journal import read_log
from genius.training.schedule import Plan

MBEIR_PAIRS, EPOCHS = 1_100_000, 30


def random_pairs(count: int, dim: int) -> Pairs:
    """As many queries as items, one positive each."""
    vectors = np.random.default_rng(0).standard_normal((count, dim), dtype=np.float32)
    rows = range(count)
    return build_pairs(
        vectors,
        vectors,
        query_image=[-1] * count,
        query_texts=[[row] for row in rows],
        positives=[[row] for row in rows],
        item_image=rows,
        item_text=[-1] * count,
    )


def random_quantizer(dim: int, sizes: tuple[int, ...]) -> Quantizer:
    """Code vectors whose lengths shrink from level to level."""
    quantizer = Quantizer(dim, sizes, fusion="sum").eval()
    generator = torch.Generator().manual_seed(0)
    for level, book in enumerate(quantizer.residual.codebooks()):
        drawn = torch.randn(book.shape, generator=generator)
        book.copy_(F.normalize(drawn, dim=1) * 0.7**level)
    return quantizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--preset", default="t5-small")
    parser.add_argument("--batch", type=int, nargs="+", default=[256, 2000])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--compile", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--targets", nargs="+", default=["hard", "soft"])
    options = parser.parse_args()
    dim, sizes, count = (64, (3, 32, 32), 512) if options.tiny else (768, (3, *[4096] * 8), 50_000)
    steps, batches = (6, [32]) if options.tiny else (options.steps, options.batch)
    preset = "mini" if options.tiny else options.preset
    device = torch.device(options.device)
    train = random_pairs(count, dim).to(device)
    quantizer = random_quantizer(dim, sizes).to(device)
    shape = DecoderShape.preset(preset, dim, sizes)
    for batch in batches:
        for targets in options.targets:
            for compiled in options.compile:
                decoder = fresh_decoder(shape, quantizer.residual.codebooks(), seed=0).to(device)
                plan = Plan(
                    steps=steps, batch=batch, warmup=10, precision="bfloat16", compile=bool(compiled),
                    check_every=steps,
                )  # fmt: skip
                lesson = Lesson(soft=Softness() if targets == "soft" else None)
                with tempfile.TemporaryDirectory() as folder:
                    begun = time.perf_counter()
                    train_decoder(
                        decoder, quantizer, train, None, plan, lesson, folder=Path(folder), seed=0,
                        show=False,
                    )  # fmt: skip
                    seconds = time.perf_counter() - begun
                    log = read_log(Path(folder) / "log.jsonl")
                speed = max(line["samples_per_s"] for line in log)
                row = {
                    "preset": preset, "batch": batch, "targets": targets, "compiled": bool(compiled),
                    "samples_per_s": round(speed), "run_s": round(seconds, 1), "loss": log[-1]["loss"],
                    "mbeir_hours": round(MBEIR_PAIRS * EPOCHS / speed / 3600, 3),
                }  # fmt: skip
                print(json.dumps(row), flush=True)
    search(decoder.eval(), quantizer, device, options.tiny)


def search(decoder: torch.nn.Module, quantizer: Quantizer, device: torch.device, tiny: bool) -> None:
    """Queries per second of the validation's plain beam search, beam 50."""
    items, queries = (200, 8) if tiny else (100_000, 256)
    z = F.normalize(torch.randn(items, quantizer.dim, device=device), dim=1)
    codes = quantizer.encode(z, torch.arange(items, device=device) % 3)
    pool = CodePool.build(codes, quantizer.sizes)
    with torch.autocast(device.type, torch.bfloat16):
        for _ in range(2):
            begun = time.perf_counter()
            best_items(decoder, pool, z[:queries], 50, 10).cpu()  # type: ignore[arg-type]
            seconds = time.perf_counter() - begun
    print(json.dumps({"validation_queries_per_s": round(queries / seconds), "beam": 50, "items": items}))


if __name__ == "__main__":
    main()
