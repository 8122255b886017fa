"""FAISS systems: right on clustered vectors, bytes measured, no clash with torch."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from genius.errors import BadInput, MissingExtra
from genius.evaluate.baselines.exact import Exact
from genius.evaluate.baselines.faiss import (
    code_bits,
    faiss_rq,
    flat,
    hnsw,
    inverted_lists,
    ivf_pq,
    ivf_pq_best,
    largest_divisor,
    load_faiss,
    pq,
)
from genius.evaluate.metrics import NO_ITEM
from genius.evaluate.systems import System

pytest.importorskip("faiss", reason='needs the extra: pip install "genius-search[bench]"')
ALL = [flat, hnsw, ivf_pq, ivf_pq_best, pq, faiss_rq]


@pytest.mark.parametrize(
    ("make", "least", "most_bytes"),
    [
        (flat, 0.99, 32 * 4 + 1),
        (partial(flat, "float16"), 0.99, 32 * 2 + 1),
        (partial(flat, "int8"), 0.97, 32 + 1),
        (partial(hnsw, "int8"), 0.95, 32 + 300),
        (hnsw, 0.97, 32 * 4 + 300),
        (ivf_pq, 0.5, 17),
        (ivf_pq_best, 0.85, 32 * 4 + 41),
        (pq, 0.6, 17),
        (faiss_rq, 0.6, 9),
        (partial(ivf_pq, score="cosine"), 0.5, 17),
        (partial(pq, score="cosine"), 0.6, 17),
        (partial(faiss_rq, score="cosine"), 0.6, 9),
    ],
)
def test_finds_the_neighbours_within_its_bytes(clusters, make, least, most_bytes):
    system = make()
    assert isinstance(system, System)
    system.index(clusters.pool)
    found = system.search(clusters.encoded, 10)
    assert clusters.hit(found) > max(least, 20 * clusters.chance)
    assert 1 < system.bytes_per_item() < most_bytes


def test_flat_agrees_with_exact(clusters):
    ours, theirs = Exact(), flat()
    for system in (ours, theirs):
        system.index(clusters.pool)
    one, other = (system.search(clusters.encoded, 7) for system in (ours, theirs))
    assert one.rows.tolist() == other.rows.tolist()
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("size", [1, 5, 8, 60])
def test_small_pools_just_work(clusters, pool_of, queries_of, make, size):
    system = make()
    system.index(pool_of(clusters.items[:size]))
    found = system.search(queries_of(clusters.queries[:3]), 10)
    assert found.rows.shape == (3, 10)
    assert ((found.rows >= NO_ITEM) & (found.rows < size)).all()
    assert all(
        len(set(row)) == len(row) for row in ([r for r in list(x) if r != NO_ITEM] for x in found.rows)
    )
    assert (found.rows[:, 0] != NO_ITEM).all()


@pytest.mark.parametrize("make", ALL)
def test_the_same_answers_every_time(clusters, make):
    answers = []
    for _ in range(2):
        system = make()
        system.index(clusters.pool)
        answers.append(system.search(clusters.encoded, 10).rows.tolist())
    assert answers[0] == answers[1]


def test_an_empty_pool_is_refused(pool_of):
    with pytest.raises(BadInput, match="empty pool"):
        hnsw().index(pool_of(np.empty((0, 8), np.float32)))


def test_without_the_extra_the_cure_is_named(monkeypatch):
    plain = builtins.__import__

    def refuse(name, *rest):
        if name == "faiss":
            raise ImportError(name)
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r'pip install "genius-search\[bench\]"'):
        load_faiss()


@pytest.mark.parametrize("order", ["torch, faiss", "faiss, torch"])
def test_torch_and_faiss_share_a_process_in_either_order(order):
    """Both bring an OpenMP runtime; two of them in one process can crash or hang."""
    program = f"""
import {order}
import numpy as np
x = np.random.default_rng(0).normal(size=(400, 16)).astype("f4")
index = faiss.IndexFlatIP(16)
index.add(x)
a = torch.from_numpy(x)
for _ in range(3):
    scores, rows = index.search(x, 3)
    assert np.allclose(torch.topk(a @ a.T, 3).values.numpy(), scores, atol=1e-3)
print("fine")
"""
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (run.returncode, run.stdout.strip()) == (0, "fine"), run.stderr


def test_sizes():
    assert [largest_divisor(512, 16), largest_divisor(768, 12), largest_divisor(50, 16)] == [16, 12, 10]
    assert [code_bits(n) for n in (8, 100, 256, 20_000)] == [3, 6, 8, 8]
    assert inverted_lists(10) == 1
    assert inverted_lists(1_000_000) == 4000


def test_cosine_is_of_what_the_codes_stand_for(clusters):
    """The reference: decode everything, scale it to unit length, compare with all of it."""
    product, cosine = faiss_rq(levels=3), faiss_rq(levels=3, score="cosine")
    for system in (product, cosine):
        system.index(clusters.pool)
    decoded = product.built.reconstruct_n(0, len(clusters.pool))
    unit = decoded / np.linalg.norm(decoded, axis=1, keepdims=True)
    wanted = np.sort(clusters.encoded.phi @ unit.T, axis=1)[:, ::-1][:, :10]
    found = cosine.search(clusters.encoded, 10)
    np.testing.assert_allclose(found.scores, wanted, rtol=1e-4)
    assert (found.rows != product.search(clusters.encoded, 10).rows).any()


@pytest.mark.parametrize(
    "make", [partial(faiss_rq, levels=2), partial(pq, code_bytes=2), partial(ivf_pq, code_bytes=2)]
)
def test_centroids_of_other_items(clusters, make):
    """Learned elsewhere, codes are of no use here; the pool's bytes are the same."""
    elsewhere = np.random.default_rng(0).normal(size=(600, clusters.pool.phi.shape[1])).astype(np.float32)
    own, other = make(), make(learn_from=lambda: elsewhere)
    assert other.name == f"{own.name}-train"
    for system in (own, other):
        system.index(clusters.pool)
    assert clusters.hit(own.search(clusters.encoded, 10)) > clusters.hit(other.search(clusters.encoded, 10))
    assert own.bytes_per_item() == pytest.approx(other.bytes_per_item(), abs=0.1)


def test_residual_codes_are_learned_with_the_settings_of_faiss():
    faiss = load_faiss()
    usual = faiss.IndexResidualQuantizer(32, 4, 8).rq
    made = faiss_rq(levels=4)._make(faiss, 32, 1000).rq
    assert (made.max_beam_size, made.cp.niter) == (usual.max_beam_size, usual.cp.niter)
    assert made.train_type == usual.train_type
