"""One rule says where a search runs, and it is what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from genius.search.placement import GPU_BATCH, GPU_BATCH_LARGE, LARGE_POOL, runs_on_gpu

MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "speed-gpu.json"
CLEAR = 1.25  # times as long: nearer figures are noise


@pytest.mark.parametrize("rerank", ["none", "codes", "vectors"])
def test_a_lookup_runs_on_the_gpu_in_batches(rerank: Any) -> None:
    for items, batches in ((LARGE_POOL - 1, GPU_BATCH), (LARGE_POOL, GPU_BATCH_LARGE)):
        assert not runs_on_gpu("lookup", rerank, batches[rerank] - 1, items)
        assert runs_on_gpu("lookup", rerank, batches[rerank], items)


def test_the_decoder_runs_on_the_gpu_from_the_first_query_on() -> None:
    assert runs_on_gpu("generate", "none", 1, 10) and runs_on_gpu("both", "codes", 1, 10**9)


@pytest.mark.parametrize(("name", "rerank"), [("lookup, codes", "codes"), ("lookup, not re-ranked", "none")])
@pytest.mark.parametrize("items", [10_000, 1_000_000])
def test_the_rule_is_what_was_measured(name: str, rerank: Any, items: int) -> None:
    rule = json.loads(MEASURED.read_text())["rule"]
    gpu, cpu = (rule[f"{name}, {items:,} items, {where}"] for where in ("gpu", "cpu"))
    for batch in gpu:
        if max(gpu[batch], cpu[batch]) > CLEAR * min(gpu[batch], cpu[batch]):
            number = int(re.findall(r"\d+", batch)[0])
            assert runs_on_gpu("lookup", rerank, number, items) == (gpu[batch] < cpu[batch]), batch
