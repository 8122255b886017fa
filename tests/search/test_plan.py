"""What options come to, as a table: searches, leaves, re-ranking and programs of fixed shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from genius.search.options import SearchOptions
from genius.search.plan import DecoderPlan, FixedPlan, LookupPlan, RerankPlan, SearchPlan, plan_search
from genius.search.segment import TrieSegment
from genius.search.trie import Trie


def options(method: str, rerank: str, **more: Any) -> SearchOptions:
    return SearchOptions(method, rerank, **{"beam": 10, "k": 5, **more})  # type: ignore[arg-type]


LOOKUP, STOPPED = LookupPlan(320, None), LookupPlan(320, 3)
WITH_DECODER = LookupPlan(320, None)  # of `both`: goes through
SUFFIXES, PREFIXES = DecoderPlan(10, None, suffixes=True), DecoderPlan(320, None, suffixes=False)

# method, re-ranking, other options -> lookup, decoder, re-ranking
PLANS: list[tuple[str, str, dict[str, Any], LookupPlan | None, DecoderPlan | None, RerankPlan | None]] = [
    ("lookup", "none", {}, LOOKUP, None, None),
    ("lookup", "none", {"stop": 3}, STOPPED, None, None),
    ("lookup", "none", {"leaves": 7}, LookupPlan(7, None), None, None),
    ("lookup", "none", {"k": 20}, LookupPlan(640, None), None, None),
    ("lookup", "codes", {}, LOOKUP, None, RerankPlan("codes", 20, 0.0, True)),
    ("lookup", "codes", {"fusion": 0.5}, LOOKUP, None, RerankPlan("codes", 20, 0.5, True)),
    ("lookup", "vectors", {}, LOOKUP, None, RerankPlan("vectors", 40, 0.0, True)),
    ("lookup", "vectors", {"reranked": 3}, LOOKUP, None, RerankPlan("vectors", 5, 0.0, True)),
    ("lookup", "vectors", {"reranked": 9}, LOOKUP, None, RerankPlan("vectors", 9, 0.0, True)),
    ("generate", "none", {}, None, SUFFIXES, None),
    ("generate", "none", {"leaves": 7, "stop": 2}, None, DecoderPlan(7, 2, suffixes=True), None),
    ("generate", "codes", {}, None, PREFIXES, RerankPlan("codes", None, 0.0, False)),
    ("generate", "codes", {"reranked": 9}, None, PREFIXES, RerankPlan("codes", 9, 0.0, False)),
    ("generate", "codes", {"fusion": 0.5}, None, SUFFIXES, RerankPlan("codes", 20, 0.5, False)),
    ("generate", "vectors", {}, None, PREFIXES, RerankPlan("vectors", None, 0.0, False)),
    ("generate", "vectors", {"fusion": 0.5}, None, SUFFIXES, RerankPlan("vectors", 40, 0.5, False)),
    ("both", "none", {"stop": 2}, WITH_DECODER, DecoderPlan(10, 2, suffixes=True), None),
    ("both", "codes", {}, WITH_DECODER, SUFFIXES, RerankPlan("codes", 20, 0.0, False)),
    ("both", "vectors", {}, WITH_DECODER, SUFFIXES, RerankPlan("vectors", 40, 0.0, False)),
]


@pytest.mark.parametrize(("method", "rerank", "more", "lookup", "decoder", "reranking"), PLANS)
def test_what_runs(
    method: str, rerank: str, more: dict[str, Any], lookup: Any, decoder: Any, reranking: Any
) -> None:
    given = options(method, rerank, **more)
    plan = plan_search(given, gpu=False)
    beam = max(given.beam, given.k)
    assert plan == SearchPlan(given.k, beam, lookup, decoder, given.weight, reranking, fixed=None)
    for gpu in (False, True):
        assert replace(plan_search(given, gpu), fixed=None) == plan  # the device changes nothing else


# method, re-ranking, other options -> score, candidates, leaves per beam, largest batch; None: no program
FIXED: list[tuple[str, str, dict[str, Any], tuple[str, int, float, int] | None]] = [
    ("lookup", "none", {}, ("similarity", 10, 32, 256)),
    ("lookup", "codes", {}, ("cosine", 20, 32, 256)),
    ("lookup", "codes", {"fusion": 0.5}, ("similarity", 20, 32, 256)),
    ("lookup", "vectors", {}, ("similarity", 40, 32, 256)),
    ("lookup", "vectors", {"leaves": 25}, ("similarity", 40, 2.5, 256)),
    ("generate", "none", {}, ("decoder", 10, 8, 64)),
    ("generate", "codes", {}, ("cosine", 20, 8, 256)),
    ("generate", "codes", {"fusion": 0.5}, ("decoder", 20, 8, 64)),
    ("generate", "vectors", {}, ("cosine", 40, 8, 256)),
    ("generate", "vectors", {"fusion": 0.5, "reranked": 7}, ("decoder", 7, 8, 64)),
    ("lookup", "none", {"stop": 1}, None),
    ("lookup", "none", {"stop": 0}, None),
    ("both", "none", {}, None),
    ("both", "vectors", {}, None),
]


@pytest.mark.parametrize(("method", "rerank", "more", "expected"), FIXED)
def test_programs_of_fixed_shape(method: str, rerank: str, more: dict[str, Any], expected: Any) -> None:
    given = options(method, rerank, **more)
    plan = plan_search(given, gpu=True)
    if expected is None:
        assert plan.fixed is None
        return
    score, k, leaves, batch = expected
    ranked = rerank == "none" or (score == "cosine" and rerank == "codes")
    assert plan.fixed == FixedPlan(given.method, score, 10, k, given.stop, leaves, batch, ranked)
    assert plan_search(replace(given, fixed=False), gpu=True).fixed is None
    assert plan_search(replace(given, fixed=True), gpu=False) == plan
    assert plan_search(given, gpu=False).fixed is None


def test_segments_that_are_small_flat_or_hardly_kept_have_no_program() -> None:
    codes = np.random.default_rng(0).integers(0, (3, 5, 9), (1000, 3))
    plan = plan_search(options("lookup", "none"), gpu=True)
    large = Trie.build(codes, (3, 5, 9))
    assert plan.fixed_for(TrieSegment(large)) is plan.fixed
    for kept, expected in (
        (999, replace(plan.fixed, filtered=True)),
        (250, replace(plan.fixed, filtered=True)),
        (249, None),
    ):
        assert plan.fixed_for(TrieSegment(large, large.allow(np.arange(1000) < kept))) == expected
    assert plan.fixed_for(TrieSegment(Trie.build(codes[:999], (3, 5, 9)))) is None
    assert plan.fixed_for(TrieSegment(Trie.build(codes[:, :1], (3,)))) is None


def test_a_plan_can_be_printed() -> None:
    shown = repr(plan_search(options("lookup", "codes"), gpu=False))
    assert "lookup=LookupPlan(leaves=320" in shown and "decoder=None" in shown
    assert "rerank=RerankPlan(by='codes', limit=20" in shown
