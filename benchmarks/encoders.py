"""How fast `mini` embeds images and short texts, beside CLIP ViT-B/16 and the first `mini` in the same run.

    git archive 8b4c148^ src/genius/models/mini | tar -x -C OLD
    python benchmarks/encoders.py --before OLD/src/genius/models/mini

The first `mini` is the one that was shipped before both towers were trained. CLIP has random weights of the
published shape: its speed does not depend on them. Images come decoded: all are timed from pixels to
embeddings, with their own preprocessing, and take turns. Counts per second are by the clock, ratios of the
processor's time. Writes benchmarks/results/encoders.json.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _harness import Call, run, side_by_side
from PIL import Image

from genius.encode.base import Encoder, load_encoder

IMAGES, TEXTS = 32, 128
CLIP, BEFORE = "clip ViT-B/16", "the first mini"
WORDS = ["a", "small", "brown", "dog", "runs", "over", "the", "green", "lawn", "with", "red", "ball"]


def clip_base(folder: Path) -> Encoder:
    """CLIP ViT-B/16 as transformers builds it, with random weights and a tokenizer of letters."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

    config = CLIPConfig(vision_config={"patch_size": 16})
    torch.manual_seed(0)
    CLIPModel(config).save_pretrained(folder)
    token_ids = {"<pad>": 0, "<start>": 49406, "<end>": 49407}
    token_ids |= {word: row for row, word in enumerate(WORDS, 1)}
    tokenizer = Tokenizer(WordLevel(token_ids, unk_token="<pad>"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<start>",
        eos_token="<end>",
        unk_token="<pad>",
    )
    fast.save_pretrained(folder)
    loaded = load_encoder("clip", folder)
    assert isinstance(loaded, Encoder)
    return loaded


def per_second(seconds: float, inputs: Sequence[Any]) -> float:
    """Inputs per second."""
    return round(len(inputs) / seconds, 1)


def main(before: Path | None = None, rounds: int = 9) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (180, 240, 3), dtype=np.uint8)) for _ in range(IMAGES)]
    texts = [" ".join(rng.choice(WORDS, 10)) for _ in range(TEXTS)]
    with tempfile.TemporaryDirectory() as folder:
        encoders = {"mini": load_encoder("mini"), CLIP: clip_base(Path(folder))}
        if before is not None:
            encoders[BEFORE] = load_encoder("mini", before)
        calls: dict[str, Call] = {}
        for name, encoder in encoders.items():
            assert isinstance(encoder, Encoder)
            calls[f"{name} images"] = lambda _, encoder=encoder: encoder.encode_images(images)  # type: ignore[misc]
            calls[f"{name} texts"] = lambda _, encoder=encoder: encoder.encode_texts(texts)  # type: ignore[misc]
        times = side_by_side(calls, rounds)
    inputs: dict[str, Sequence[Any]] = {"images": images, "texts": texts}
    figures: dict[str, Any] = {
        name: {f"{kind}_per_s": per_second(times[f"{name} {kind}"][0], own) for kind, own in inputs.items()}
        for name in encoders
    }
    for other in encoders:
        if other != "mini":
            figures[f"time of mini / {other}"] = {
                kind: round(times[f"mini {kind}"][1] / times[f"{other} {kind}"][1], 3) for kind in inputs
            }
    return {"rounds": rounds, **figures}


if __name__ == "__main__":
    run(main)
