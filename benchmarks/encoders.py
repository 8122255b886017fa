"""How fast `mini` embeds images and short texts, beside CLIP ViT-B/16 in the same run.

    python benchmarks/encoders.py

CLIP has random weights of the published shape: its speed does not depend on them. Images come
decoded: both are timed from pixels to embeddings, with their own preprocessing. Writes
benchmarks/results/encoders.json.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _harness import run, seconds
from PIL import Image

from genius.encode.base import Encoder, load_encoder

IMAGES, TEXTS, ROUNDS = 32, 128, 3
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


def per_second(encode: Callable[[Sequence[Any]], Any], inputs: Sequence[Any]) -> float:
    """Inputs per second: the median of a few rounds after one to warm up."""
    encode(inputs[: len(inputs) // 4])
    return len(inputs) / statistics.median(seconds(lambda: encode(inputs)) for _ in range(ROUNDS))


def main() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (180, 240, 3), dtype=np.uint8)) for _ in range(IMAGES)]
    texts = [" ".join(rng.choice(WORDS, 10)) for _ in range(TEXTS)]
    mini = load_encoder("mini")
    assert isinstance(mini, Encoder)
    with tempfile.TemporaryDirectory() as folder:
        figures = {
            name: {
                "images_per_s": round(per_second(encoder.encode_images, images), 1),
                "texts_per_s": round(per_second(encoder.encode_texts, texts), 1),
            }
            for name, encoder in (("mini", mini), ("clip ViT-B/16", clip_base(Path(folder))))
        }
    ours, theirs = figures["mini"], figures["clip ViT-B/16"]
    return {**figures, "mini / clip": {kind: round(ours[kind] / theirs[kind], 2) for kind in ours}}


if __name__ == "__main__":
    run(main)
