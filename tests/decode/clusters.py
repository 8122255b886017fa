"""A small world to learn in: items in clusters, queries near their items. Run it to train a decoder on it.

python clusters.py FOLDER [DROPOUT] [DIE_AT]      (also under torchrun)
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F

from genius.config import OptimiserConfig
from genius.data.pairs import Pairs, build_pairs
from genius.decode.init import fresh_decoder
from genius.decode.model import Decoder
from genius.decode.rivals import Rivals
from genius.decode.shape import DecoderShape
from genius.decode.targets import SoftTargetOptions
from genius.decode.train import DecoderObjective, train_decoder
from genius.quantize.codebooks import init_codebooks
from genius.quantize.model import Quantizer
from genius.training.distributed import process_group

DIM, SIZES = 16, (3, 16, 16)


@dataclass(frozen=True)
class World:
    train: Pairs
    val: Pairs
    quantizer: Quantizer

    def decoder(self, dropout: float = 0.0, query_logits: bool = False) -> Decoder:
        shape = DecoderShape(
            DIM, SIZES, layers=2, width=32, heads=2, head_width=16, feed_forward=64, prefix=4,
            dropout=dropout, query_logits=query_logits,
        )  # fmt: skip
        return fresh_decoder(shape, self.quantizer.residual.codebooks(), seed=0)


def make_pairs(centres: torch.Tensor, signs: torch.Tensor, items: int, generator: torch.Generator) -> Pairs:
    """Items are images or texts near a centre; each has one query text under two instructions."""
    modality = torch.arange(items) % 2
    own = centres[torch.randint(len(centres), (items,), generator=generator)]
    vectors = F.normalize(own + 0.15 * torch.randn(items, DIM, generator=generator) + signs[modality], dim=1)
    near = vectors.repeat_interleave(2, 0)
    asks = F.normalize(near + 0.1 * torch.randn(2 * items, DIM, generator=generator), dim=1)
    rows = range(items)
    return build_pairs(
        vectors.numpy(),
        torch.cat([vectors, asks]).numpy(),
        query_image=[-1] * items,
        query_texts=[[items + 2 * row, items + 2 * row + 1] for row in rows],
        positives=[[row] for row in rows],
        item_image=[row if row % 2 == 0 else -1 for row in rows],
        item_text=[row if row % 2 == 1 else -1 for row in rows],
    )


def make_world() -> World:
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(20, DIM, generator=generator), dim=1)
    signs = F.normalize(torch.randn(2, DIM, generator=generator), dim=1)
    train, val = (make_pairs(centres, signs, items, generator) for items in (600, 120))
    quantizer = Quantizer(DIM, SIZES, fusion="sum").eval()
    z = quantizer(*train.item_parts(torch.arange(train.items)))
    init_codebooks(quantizer.residual, z, train.item_modality, generator)
    return World(train, val, quantizer)


def main(folder: str, dropout: str = "0", die_at: str = "-1") -> None:
    with process_group("cpu"):
        torch.set_num_threads(1)
        world = make_world()
        decoder = world.decoder(float(dropout))

        def die(_module: object, _inputs: object, _output: object) -> None:
            die.left -= 1  # type: ignore[attr-defined]
            if die.left == 0:  # type: ignore[attr-defined]
                os.kill(os.getpid(), signal.SIGKILL)

        die.left = int(die_at)  # type: ignore[attr-defined]
        decoder.register_forward_hook(die)
        train_decoder(
            decoder,
            world.quantizer,
            world.train,
            world.val,
            OptimiserConfig(steps=30, batch=32, rate=3e-3, warmup=3, check_every=10),
            DecoderObjective(
                plain=0.3,
                soft=SoftTargetOptions(softness=0.3, hard_share=0.2),
                indexing=0.1,
                rivals=Rivals(0.5, 3, 200),
            ),
            folder=Path(folder),
            seed=3,
            show=False,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
