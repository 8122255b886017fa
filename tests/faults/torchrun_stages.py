"""Stages 1 and 2 on a small world, for tests with one and with several processes.

python torchrun_stages.py FOLDER [RANK STEP SIGNAL]   that process gets a signal at that step, once (0: hangs)
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from genius.config import OptimiserConfig
from genius.decode.init import fresh_decoder
from genius.decode.rivals import Rivals
from genius.decode.shape import DecoderShape
from genius.decode.targets import SoftTargetOptions
from genius.decode.train import DecoderObjective, train_decoder
from genius.quantize.fusion import PRESETS
from genius.quantize.model import Quantizer
from genius.quantize.train import QuantizerObjective, train_quantizer
from genius.training import distributed
from genius.weights import save_weights

PRESETS["small"] = (24, 32)
SIZES = (3, 16, 16)
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "decode"))


def struck(rank: int, step: int, kind: int) -> None:
    """Let this process get a signal or hang at a step of its run, if it has that rank; only once."""
    steps = iter(range(10**6))
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"

    def before_step(*_: object) -> None:
        if next(steps) == step and distributed.rank() == rank and first:
            os.kill(os.getpid(), kind) if kind else time.sleep(3600)

    register_optimizer_step_pre_hook(before_step)


def main(folder: str, *strike: str) -> None:
    from clusters import DIM, make_world

    torch.set_num_threads(1)
    home = Path(folder)
    with distributed.process_group("cpu"):
        if strike:
            struck(*map(int, strike))
        world = make_world()
        torch.manual_seed(distributed.rank())  # weights differ until the stage makes them the same
        quantizer = Quantizer(DIM, SIZES, fusion="small")
        train_quantizer(
            quantizer, world.train, world.val, OptimiserConfig(steps=12, batch=64, rate=1e-3, check_every=4),
            QuantizerObjective(temperature=0.05), folder=home / "quantizer", seed=1, kmeans_sample=400,
            refine_rounds=1, show=False, least_purity=0.0,
        )  # fmt: skip
        shape = DecoderShape(
            DIM, SIZES, layers=1, width=16, heads=2, head_width=8, feed_forward=32, prefix=2, dropout=0.0
        )
        fixed = world.quantizer  # a code that rounding tips in stage 1 must not hide what stage 2 does
        decoder = fresh_decoder(shape, fixed.residual.codebooks(), seed=0)
        train_decoder(
            decoder, fixed, world.train, world.val,
            OptimiserConfig(steps=12, batch=64, rate=3e-3, warmup=3, check_every=4),
            DecoderObjective(
                plain=0.3, soft=SoftTargetOptions(softness=0.3, hard_share=0.2), indexing=0.1,
                rivals=Rivals(0.5, 3, 200),
            ),
            folder=home / "decoder", seed=1, show=False,
        )  # fmt: skip
        if distributed.is_main():
            save_weights(quantizer.state_dict(), home / "quantizer.safetensors")
            save_weights(decoder.state_dict(), home / "decoder.safetensors")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(*sys.argv[1:])
