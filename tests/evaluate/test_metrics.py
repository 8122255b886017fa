"""Metrics against ir-measures on random runs, and by hand on small ones."""

from __future__ import annotations

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_measures import RR, R, Success, nDCG

from genius.errors import BadInput
from genius.evaluate.metrics import NO_ITEM, Qrels, grade

POOL = 12


@st.composite
def cases(draw):
    """Ranked lists of uneven length and graded judgements, some of items outside the pool."""
    queries = draw(st.integers(1, 6))
    depth = draw(st.integers(1, POOL))
    ranked = np.full((queries, depth), NO_ITEM)
    for row in range(queries):
        order = draw(st.permutations(range(POOL)))
        length = draw(st.integers(1, depth))
        ranked[row, :length] = order[:length]
    gains = [
        draw(st.dictionaries(st.integers(0, POOL + 3), st.integers(0, 3), min_size=1)) for _ in range(queries)
    ]
    return ranked, gains


def oracle(measure, ranked, gains):
    """What ir-measures says of each query, (queries,)."""
    qrels = {str(q): {str(item): g for item, g in row.items()} for q, row in enumerate(gains)}
    run = {
        str(q): {str(item): float(len(row) - place) for place, item in enumerate(row) if item != NO_ITEM}
        for q, row in enumerate(ranked)
    }
    values = {m.query_id: m.value for m in ir_measures.iter_calc([measure], qrels, run)}
    return np.array([values[str(q)] for q in range(len(ranked))])


@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(1, 15))
def test_equals_ir_measures(case, k):
    ranked, gains = case
    graded = grade(ranked, Qrels.of(gains))
    np.testing.assert_allclose(graded.hit(k), oracle(Success @ k, ranked, gains))
    np.testing.assert_allclose(graded.recall(k), oracle(R @ k, ranked, gains))
    np.testing.assert_allclose(graded.reciprocal_rank(), oracle(RR, ranked, gains))
    np.testing.assert_allclose(graded.ndcg(k), oracle(nDCG @ k, ranked, gains))


def test_by_hand():
    ranked = np.array([[4, 2, 9], [1, NO_ITEM, NO_ITEM], [7, 8, 0]])
    graded = grade(ranked, Qrels.of([{2: 1, 9: 1, 99: 1}, {5: 1}, {7: 1}]))
    assert graded.hit(1).tolist() == [0, 0, 1]
    assert graded.hit(3).tolist() == [1, 0, 1]
    np.testing.assert_allclose(graded.recall(3), [2 / 3, 0, 1])  # item 99 is in no list and still counts
    np.testing.assert_allclose(graded.reciprocal_rank(), [1 / 2, 0, 1])
    best = 1 + 1 / np.log2(3) + 1 / 2
    np.testing.assert_allclose(graded.ndcg(10), [(1 / np.log2(3) + 1 / 2) / best, 0, 1])


def test_a_query_without_relevant_items_is_zero_and_visible():
    graded = grade(np.array([[0, 1]]), Qrels.of([{0: 0}]))
    assert graded.relevant.tolist() == [0]
    assert [graded.hit(2)[0], graded.recall(2)[0], graded.reciprocal_rank()[0], graded.ndcg(2)[0]] == [0] * 4


def test_empty_lists_and_no_queries():
    nothing = grade(np.empty((2, 0), dtype=np.int64), Qrels.of([{0: 1}, {1: 1}]))
    assert nothing.hit(5).tolist() == nothing.reciprocal_rank().tolist() == nothing.ndcg(5).tolist() == [0, 0]
    assert grade(np.empty((0, 3), dtype=np.int64), Qrels.of([])).hit(1).shape == (0,)


@pytest.mark.parametrize(
    ("ranked", "complaint"),
    [
        ([[3, 3]], "item twice"),
        ([[NO_ITEM, 3]], "behind padding"),
        ([[-2, 3]], "below -1"),
        ([[1, 2], [3, 4]], "1 judged queries"),
    ],
)
def test_wrong_lists_are_refused(ranked, complaint):
    with pytest.raises(BadInput, match=complaint):
        grade(np.array(ranked), Qrels.of([{3: 1}]))


def test_k_below_one_is_refused():
    graded = grade(np.array([[0]]), Qrels.of([{0: 1}]))
    for metric in (graded.hit, graded.recall, graded.ndcg):
        with pytest.raises(BadInput, match="k is 0"):
            metric(0)
