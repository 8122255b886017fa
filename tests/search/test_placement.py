"""One rule says where a search runs."""

from __future__ import annotations

from genius.search.placement import GPU_BATCH, GPU_BATCH_LARGE, LARGE_POOL, runs_on_gpu


def test_a_lookup_runs_on_the_gpu_in_batches() -> None:
    for items, batch in ((LARGE_POOL - 1, GPU_BATCH), (LARGE_POOL, GPU_BATCH_LARGE)):
        assert not runs_on_gpu("lookup", batch - 1, items)
        assert runs_on_gpu("lookup", batch, items)


def test_the_decoder_runs_on_the_gpu_from_the_first_query_on() -> None:
    assert runs_on_gpu("generate", 1, 10) and runs_on_gpu("both", 1, 10**9)


def test_larger_pools_do_not_need_larger_batches() -> None:
    assert GPU_BATCH_LARGE <= GPU_BATCH
