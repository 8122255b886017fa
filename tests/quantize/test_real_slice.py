"""Stage 1 on real vectors: CLIP's pictures of emoji, one vendor's asking for the other vendor's (emoji 4)."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from genius.config import OptimiserConfig
from genius.data.pairs import Pairs, build_pairs
from genius.quantize.fusion import PRESETS
from genius.quantize.model import Quantizer
from genius.quantize.residual import code_sizes
from genius.quantize.train import QuantizerObjective, train_quantizer
from genius.training.log import read_log

BENCH = Path(__file__).resolve().parents[2] / ".." / "shared" / "bench"
pytestmark = pytest.mark.skipif(
    not BENCH.exists(), reason="the shared benchmark is not beside the repository"
)


def lines(tables: tarfile.TarFile, ending: str, start: str = "") -> list[dict]:
    name = next(name for name in tables.getnames() if name.endswith(ending))
    text = tables.extractfile(name).read().decode()
    return [json.loads(line) for line in text.splitlines() if line.startswith(start)]


@pytest.fixture(scope="module")
def emoji() -> tuple[Pairs, Pairs]:
    names = (BENCH / "features" / "clip_vitb16.names.txt").read_text().splitlines()
    kept = [number for number, name in enumerate(names) if "/emoji/" in name]
    row = {names[number]: place for place, number in enumerate(kept)}
    vectors = load_file(BENCH / "features" / "clip_vitb16.safetensors")["image_embeds"][kept]
    vectors = vectors.astype(np.float32)

    def pairs(pool: list[dict], queries: list[dict]) -> Pairs:
        items = {item["did"]: number for number, item in enumerate(pool)}
        return build_pairs(
            vectors,
            np.zeros((0, vectors.shape[1]), np.float32),
            query_image=[row[query["query_img_path"]] for query in queries],
            query_texts=[[] for _ in queries],
            positives=[[items[did] for did in query["pos_cand_list"]] for query in queries],
            item_image=[row[item["img_path"]] for item in pool],
            item_text=[-1] * len(pool),
        )

    with tarfile.open(BENCH / "tables.tar.xz") as tables:
        pool = lines(tables, "global/mbeir_union_train_cand_pool.jsonl", '{"did":"24:')
        train = pairs(pool, lines(tables, "query/train/mbeir_emoji_task4_train.jsonl"))
        pool = lines(tables, "mbeir_emoji_task4_cand_pool.jsonl")
        return train, pairs(pool, lines(tables, "query/val/mbeir_emoji_task4_val.jsonl"))


def test_training_lowers_the_loss_and_codes_find_more(emoji, tmp_path, monkeypatch):
    monkeypatch.setitem(PRESETS, "small", (128, 128))
    train, val = emoji
    assert train.queries > 1500
    plan = OptimiserConfig(
        steps=60, batch=128, rate=1e-3, final_rate=1e-4, warmup=5, weight_decay=0.2, check_every=30
    )
    figures = {}
    for fusion in ("sum", "small"):
        torch.manual_seed(0)
        quantizer = Quantizer(train.dim, code_sizes(4, 32), fusion=fusion)
        done = train_quantizer(
            quantizer, train, val, plan, QuantizerObjective(temperature=0.05), folder=tmp_path / fusion,
            seed=0, refine_rounds=2, show=False,
        )  # fmt: skip
        figures[fusion] = done.figures
    losses = [line["loss"] for line in read_log(tmp_path / "small" / "log.jsonl") if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
    assert figures["small"]["hit@5"] > figures["sum"]["hit@5"] + 0.04
    assert figures["small"]["hit@5_z"] >= figures["sum"]["hit@5_phi"]
