"""Every baseline on real data: a Google emoji asks for Twitter's drawing of it, by CLIP's image vectors."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from genius.evaluate.baselines.exact import Exact
from genius.evaluate.baselines.faiss import faiss_rq, flat, hnsw, ivf_pq, ivf_pq_best, pq
from genius.evaluate.baselines.generative import KINDS, GenerativeBaseline, TrainingExamples
from genius.evaluate.options import GenerativeConfig

BENCH = Path(__file__).resolve().parents[3].parent / "shared" / "bench"
pytestmark = pytest.mark.skipif(
    not (BENCH / "tables.tar.xz").exists(), reason="the shared benchmark is not beside the repository"
)
QUICK = GenerativeConfig(
    steps=150, batch=128, rate=5e-3, network=(1, 96, 1, 96, 384), precision="float32", beam=20
)


@pytest.fixture(scope="module")
def emoji(pool_of, queries_of):
    """Pool, queries, relevant rows, and train examples of the row `emoji 4`."""
    table = load_file(BENCH / "features" / "clip_vitb16.safetensors")["image_embeds"].astype(np.float32)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    names = (BENCH / "features" / "clip_vitb16.names.txt").read_text().splitlines()
    row_of = {name: row for row, name in enumerate(names)}
    with tarfile.open(BENCH / "tables.tar.xz") as tables:

        def lines(member):
            return [json.loads(line) for line in tables.extractfile(member).read().splitlines()]

        items = lines("cand_pool/local/mbeir_emoji_task4_cand_pool.jsonl")
        queries = lines("query/test/mbeir_emoji_task4_test.jsonl")
        train = lines("query/train/mbeir_emoji_task4_train.jsonl")[:400]
        train_pool = {i["did"]: i for i in lines("cand_pool/global/mbeir_union_train_cand_pool.jsonl")}

    def vectors(things, field):
        return table[[row_of[thing[field]] for thing in things]]

    place = {item["did"]: number for number, item in enumerate(items)}
    relevant = [{place[p] for p in q["pos_cand_list"]} for q in queries]
    wanted = [train_pool[q["pos_cand_list"][0]] for q in train]
    examples = TrainingExamples(
        vectors(train, "query_img_path"),
        vectors(wanted, "img_path"),
        [item["did"] for item in wanted],
        np.repeat(np.arange(len(train))[:, None], 2, axis=1),
        "emoji",
    )
    pool = pool_of(vectors(items, "img_path"))
    return pool, queries_of(vectors(queries, "query_img_path")), relevant, examples


def hit(found, relevant, k=5):
    return np.mean(
        [bool(set(row[:k].tolist()) & want) for row, want in zip(found.rows, relevant, strict=True)]
    )


@pytest.mark.parametrize("make", [Exact, flat, hnsw, ivf_pq, ivf_pq_best, pq, faiss_rq])
def test_systems_that_keep_vectors_or_codes_find_most(emoji, make):
    """Exact search finds 0.855, the smallest codes 0.81."""
    pool, queries, relevant, _ = emoji
    system = make()
    system.index(pool)
    assert hit(system.search(queries, 10), relevant) > 0.75


LEARNED = {"grace-numeric": 0.05, "grace-string": 0.05, "grace-semantic": 0.2, "grace-structured": 0.2,
           "irgen": 0.05, "dsi-nci": 0.25}  # after one step: at most 0.013  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_systems_that_memorize_learn_their_pool(emoji, name):
    pool, queries, relevant, examples = emoji
    if name == "dsi-nci":  # searches texts
        pool = replace(pool, modality=np.ones_like(pool.modality))
    system = GenerativeBaseline(name, lambda: examples, QUICK)
    system.index(pool)
    assert hit(system.search(queries, 10), relevant) > LEARNED[name]
