"""How fast stages 1 and 2 train at the paper's sizes: samples per second, and the hours for M-BEIR.

    python benchmarks/training.py                                  one GPU, about three minutes
    python benchmarks/training.py --device cpu --tiny --out -      the same script in seconds on a laptop

d 768, level 0 and 8 levels of 4096 codes, the released fusion, the T5-small shape. M-BEIR has 1.1 million
pairs; the paper trains 20 epochs of stage 1 and 30 of stage 2 (2.4 hours on four RTX 3090). The vectors are
random and lie on the device: the arithmetic does not depend on them. The JSON is written after every setting.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _harness import run, seconds

from genius.config import OptimiserConfig
from genius.data.pairs import Pairs, build_pairs
from genius.decode.init import fresh_decoder
from genius.decode.shape import DecoderShape
from genius.decode.targets import SoftTargetOptions
from genius.decode.train import DecoderObjective, train_decoder
from genius.quantize.model import Quantizer
from genius.quantize.train import QuantizerObjective, train_quantizer
from genius.training.log import read_log

MBEIR_PAIRS = 1_100_000
EPOCHS = {"quantizer": 20, "decoder": 30}
PAPER_HOURS, PAPER_CARDS = 2.4, "four RTX 3090"


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


def timed(stage: str, plan: OptimiserConfig, train: Callable[[Path], object]) -> dict[str, Any]:
    """Samples per second of a run, from its own log: the best stretch, when all is compiled and warm."""
    with tempfile.TemporaryDirectory() as folder:
        whole = seconds(lambda: train(Path(folder)))
        log = read_log(Path(folder) / "log.jsonl")
    speed = max(line["samples_per_s"] for line in log)
    return {
        "stage": stage,
        "batch": plan.batch,
        "compiled": plan.compile,
        "samples_per_s": round(speed),
        "run_s": round(whole, 1),
        "loss": log[-1]["loss"],
        "mbeir_hours": round(MBEIR_PAIRS * EPOCHS[stage] / speed / 3600, 3),
    }


class Bench:
    """The modules and data of one run, and what it has found."""

    def __init__(self, device: torch.device, tiny: bool, steps: int) -> None:
        self.device, self.tiny = device, tiny
        self.steps = 6 if tiny else steps
        self.dim, codes, count = (64, 16, 512) if tiny else (768, 4096, 50_000)
        self.sizes = (3, *[codes] * (2 if tiny else 8))
        self.count = count
        self.pairs = random_pairs(count, self.dim).to(device)
        self.quantizer = self.fresh_quantizer()
        self.rows: list[dict[str, Any]] = []

    def fresh_quantizer(self) -> Quantizer:
        torch.manual_seed(0)
        return Quantizer(self.dim, self.sizes, fusion="small" if self.tiny else "released").to(self.device)

    def plan(self, batch: int, compiled: bool) -> OptimiserConfig:
        return OptimiserConfig(
            steps=self.steps, batch=batch, final_rate=1e-5, warmup=10, precision="bfloat16",
            check_every=self.steps, compile=compiled,
        )  # fmt: skip

    def stage_one(self, batch: int, compiled: bool) -> dict[str, Any]:
        plan, self.quantizer = self.plan(batch, compiled), self.fresh_quantizer()
        return timed(
            "quantizer",
            plan,
            lambda folder: train_quantizer(
                self.quantizer, self.pairs, None, plan, QuantizerObjective(), folder=folder, seed=0,
                kmeans_sample=self.count, least_purity=0.0, least_usage=0.0, show=False,
            ),
        )  # fmt: skip

    def stage_two(self, batch: int, compiled: bool, targets: str) -> dict[str, Any]:
        plan = self.plan(batch, compiled)
        shape = DecoderShape.preset("mini" if self.tiny else "t5-small", self.dim, self.sizes)
        decoder = fresh_decoder(shape, self.quantizer.residual.codebooks(), seed=0).to(self.device)
        objective = DecoderObjective(soft=SoftTargetOptions() if targets == "soft" else None)
        row = timed(
            "decoder",
            plan,
            lambda folder: train_decoder(
                decoder, self.quantizer, self.pairs, None, plan, objective, folder=folder, seed=0, show=False
            ),
        )
        return {**row, "targets": targets}

    def encode(self, beam: int) -> dict[str, Any]:
        """Vectors per second that get their codes."""
        count = 2_000 if self.tiny else 200_000
        z = torch.nn.functional.normalize(torch.randn(count, self.dim, device=self.device), dim=1)
        modality = torch.arange(count, device=self.device) % 3
        self.quantizer.encode(z[:1000], modality[:1000], beam).cpu()
        spent = seconds(lambda: self.quantizer.encode(z, modality, beam)[-1].cpu())
        return {"stage": "encode", "encode_beam": beam, "vectors_per_s": round(count / spent)}

    def summary(self) -> dict[str, Any]:
        """Hours for M-BEIR at each batch size: the quicker of plain and compiled."""
        hours: dict[str, Any] = {}
        for batch in sorted({row["batch"] for row in self.rows if "batch" in row}):
            for targets in ("hard", "soft"):
                first = [r for r in self.rows if r.get("batch") == batch and r["stage"] == "quantizer"]
                second = [r for r in self.rows if r.get("batch") == batch and r.get("targets") == targets]
                if first and second:
                    parts = [min(row["mbeir_hours"] for row in rows) for rows in (first, second)]
                    hours[f"batch {batch}, {targets} targets"] = round(sum(parts), 2)
        return {"mbeir_hours_both_stages": hours, "paper_hours": PAPER_HOURS, "paper_cards": PAPER_CARDS}


def main(
    device: str = "cuda",
    tiny: bool = False,
    batch: list[int] = [256, 2000],  # noqa: B006
    steps: int = 60,
    compile: list[int] = [0, 1],  # noqa: B006
) -> Iterator[dict[str, Any]]:
    torch.set_float32_matmul_precision("high")  # TF32 where a product is in float32
    bench = Bench(torch.device(device), tiny, steps)
    settings: list[Callable[[], dict[str, Any]]] = []
    for size in [32] if tiny else batch:
        for compiled in map(bool, compile):
            settings.append(partial(bench.stage_one, size, compiled))
            settings += [partial(bench.stage_two, size, compiled, targets) for targets in ("hard", "soft")]
    settings += [partial(bench.encode, beam) for beam in (1, 4, 16)]
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"
    for setting in settings:
        bench.rows.append(setting())
        yield {"device": name, **bench.summary(), "rows": bench.rows}


if __name__ == "__main__":
    run(main)
