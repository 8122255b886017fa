"""The protocol on a hand-made row: what counts, what is reported, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from genius.data.base import Row
from genius.errors import BadData, BadInput
from genius.evaluate.metrics import NO_ITEM
from genius.evaluate.protocol import (
    CUTOFFS,
    METRICS,
    Faults,
    headline,
    match_qrels,
    mean_over_rows,
    reported_cutoffs,
    row_metrics,
)

COCO = Row("mscoco", 0)
POOL = {f"9:{n}": n for n in range(6)}


def test_k_by_dataset():
    assert reported_cutoffs("mscoco") == (1, 5, 10)
    assert reported_cutoffs("fashion200k") == reported_cutoffs("fashioniq") == (10, 20, 50)
    assert [headline(name) for name in ("mscoco", "fashion200k", "fashioniq", "fashion")] == [
        "hit@5",
        "hit@10",
        "hit@10",
        "hit@5",
    ]


def test_metrics_by_hand():
    qrels = {"q1": {"9:0": 1, "9:1": 1}, "q2": {"9:5": 1}, "q3": {"9:2": 1}}
    matched = match_qrels(COCO, ["q1", "q2", "q3"], qrels, POOL)
    ranked = np.array([[0, 3, 1, 2], [4, 5, NO_ITEM, NO_ITEM], [NO_ITEM] * 4])
    row = row_metrics(COCO, "local", "exact", matched, [ranked], len(POOL)).as_json()
    assert (row["dataset"], row["task"], row["setting"], row["system"]) == ("mscoco", 0, "local", "exact")
    assert (row["queries"], row["pool_items"], row["headline"]) == (3, 6, "hit@5")
    assert row["hit@1"] == pytest.approx(1 / 3)
    assert row["hit@5"] == pytest.approx(2 / 3)
    assert row["recall@1"] == pytest.approx((1 / 2 + 0 + 0) / 3)
    assert row["mrr"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert row["faults"] == {}
    assert 0 <= row["interval"][0] <= row["hit@5"] <= row["interval"][1] <= 1
    assert all(f"{kind}@{k}" in row for kind in ("hit", "recall") for k in CUTOFFS)


def test_only_relevant_judgements_count_and_a_query_without_any_is_left_out():
    matched = match_qrels(COCO, ["q1", "q2"], {"q1": {"9:0": 1}, "q2": {"9:1": 0}}, POOL)
    row = row_metrics(COCO, "local", "exact", matched, [np.array([[0], [1]])], 6)
    assert row.queries == 1
    assert row.mean("hit@1") == 1.0
    assert row.faults.unjudged == 1
    assert "left out" in row.faults.lines()[0]


def test_positives_outside_the_pool_count_against_the_system():
    qrels = {"q1": {"9:0": 1, "5:77": 1}, "q2": {"5:77": 1, "5:78": 1}}
    matched = match_qrels(Row("oven", 6), ["q1", "q2"], qrels, POOL)
    row = row_metrics(Row("oven", 6), "local", "exact", matched, [np.array([[0], [0]])], 6)
    assert row.queries == 2
    assert row.mean("hit@1") == 0.5
    assert row.mean("recall@50") == pytest.approx((1 / 2 + 0) / 2)
    assert (row.faults.absent_positives, row.faults.unanswerable) == (2, 1)


def test_several_instructions_are_averaged_per_query():
    matched = match_qrels(COCO, ["q1"], {"q1": {"9:0": 1}}, POOL)
    row = row_metrics(COCO, "universal", "x", matched, [np.array([[0]]), np.array([[1]])], 6)
    assert row.mean("hit@1") == 0.5
    assert row.queries == 1


def test_faults_found_elsewhere_are_kept():
    matched = match_qrels(COCO, ["q1"], {"q1": {"9:0": 1}}, POOL)
    row = row_metrics(COCO, "local", "x", matched, [np.array([[0]])], 6, Faults(unreadable_items=3))
    assert row.faults == Faults(unreadable_items=3)
    assert row.as_json()["faults"] == {"unreadable_items": 3}


@pytest.mark.parametrize(
    ("queries", "qrels", "complaint"),
    [
        (["q1", "q1"], {"q1": {"9:0": 1}}, "q1 occurs twice"),
        (["q1"], {"q1": {"9:0": 0}}, "none of the 1 queries has a relevant item"),
        (["q1"], {"zz": {"9:0": 1}}, "none of the 1 queries has a relevant item"),
        (["q1", "q2"], {"q1": {"8:0": 1}}, "holds none of the 1 relevant ones"),
    ],
)
def test_rows_that_cannot_be_judged_are_refused(queries, qrels, complaint):
    with pytest.raises(BadData, match=f"mscoco 0: .*{complaint}"):
        match_qrels(COCO, queries, qrels, POOL)


def test_unknown_setting():
    matched = match_qrels(COCO, ["q1"], {"q1": {"9:0": 1}}, POOL)
    with pytest.raises(BadInput, match="local or universal"):
        row_metrics(COCO, "global", "x", matched, [np.array([[0]])], 6)


def test_the_mean_is_over_rows_with_each_rows_own_headline():
    def row(name, ranked):
        matched = match_qrels(Row(name, 0), ["q1"], {"q1": {"9:0": 1}}, POOL)
        return row_metrics(Row(name, 0), "local", "x", matched, [np.array([ranked])], 6)

    seventh = row("fashion200k", [20, 21, 22, 23, 24, 25, 0])
    assert (seventh.mean("hit@5"), seventh.headline) == (0.0, 1.0)
    mean = mean_over_rows([seventh, row("mscoco", [1, 2, 3])])
    assert mean["headline"] == 0.5
    assert mean["interval"] == [0.5, 0.5]
    assert mean["rows"] == 2
    assert set(METRICS) <= set(mean)
