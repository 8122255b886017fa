"""How fast stage 1 trains and encodes: samples per second at the paper's sizes, and the hours for M-BEIR.

    python benchmarks/quantizer_speed.py                       one GPU: d 768, 8 levels of 4096, full fusion
    python benchmarks/quantizer_speed.py --device cpu --tiny   the same script in seconds on a laptop

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

from genius.quantize.model import Quantizer
from genius.quantize.pairs import Pairs, build_pairs
from genius.quantize.residual import code_sizes
from genius.quantize.train import Objective, train_quantizer
from genius.training.journal import read_log
from genius.training.schedule import Plan

MBEIR_PAIRS, EPOCHS = 1_100_000, 20


def random_pairs(count: int, dim: int) -> Pairs:
    """As many queries as items, one positive each."""
    random = np.random.default_rng(0)
    images = random.standard_normal((count, dim), dtype=np.float32)
    return build_pairs(
        images,
        images + random.standard_normal((count, dim), dtype=np.float32),
        query_image=[-1] * count,
        query_texts=[[row] for row in range(count)],
        positives=[[row] for row in range(count)],
        item_image=range(count),
        item_text=[-1] * count,
    )


def wait(device: torch.device) -> float:
    """The time when all work given to the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--batch", type=int, nargs="+", default=[256, 2000])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--compile", type=int, nargs="+", default=[0, 1])
    parser.add_argument(
        "--matmul", nargs="+", default=["highest", "high"], help="float32 products: high is TF32"
    )
    options = parser.parse_args()
    dim, codes, count = (32, 16, 512) if options.tiny else (768, 4096, 50_000)
    steps, batches = (6, [32]) if options.tiny else (options.steps, options.batch)
    device = torch.device(options.device)
    pairs = random_pairs(count, dim).to(device)
    for batch in batches:
        for compiled in options.compile:
            for matmul in options.matmul:
                torch.set_float32_matmul_precision(matmul)
                quantizer = Quantizer(
                    dim, code_sizes(9, codes), fusion="small" if options.tiny else "released"
                ).to(device)
                plan = Plan(
                    steps, batch, final_rate=1e-5, weight_decay=0.2, precision="bfloat16", check_every=steps,
                    compile=bool(compiled),
                )  # fmt: skip
                with tempfile.TemporaryDirectory() as folder:
                    begun = wait(device)
                    train_quantizer(
                        quantizer, pairs, None, plan, Objective(), folder=Path(folder), seed=0,
                        kmeans_sample=count, show=False,
                    )  # fmt: skip
                    seconds = wait(device) - begun
                    log = read_log(Path(folder) / "log.jsonl")
                speed = max(line["samples_per_s"] for line in log)
                row = {
                    "batch": batch, "compiled": bool(compiled), "matmul": matmul,
                    "samples_per_s": round(speed), "run_s": round(seconds, 1), "loss": log[-1]["loss"],
                    "mbeir_hours": round(MBEIR_PAIRS * EPOCHS / speed / 3600, 3),
                }  # fmt: skip
                print(json.dumps(row), flush=True)
    encode(quantizer, device, 2_000 if options.tiny else 200_000)


def encode(quantizer: Quantizer, device: torch.device, count: int) -> None:
    """Vectors per second that get their codes, by beam."""
    z = torch.nn.functional.normalize(torch.randn(count, quantizer.dim, device=device), dim=1)
    modality = torch.arange(count, device=device) % 3
    for beam in (1, 4, 16):
        quantizer.encode(z[:1000], modality[:1000], beam)
        begun = wait(device)
        quantizer.encode(z, modality, beam)
        print(
            json.dumps({"encode_beam": beam, "vectors_per_s": round(count / (wait(device) - begun))}),
            flush=True,
        )


if __name__ == "__main__":
    main()
