"""TREC files: round trips, ir-measures reads what we write, wrong files are named."""

from __future__ import annotations

import ir_measures
import numpy as np
import pytest

from genius.data.base import Row
from genius.errors import BadData, BadInput
from genius.evaluate.metrics import FOREIGN, NO_ITEM
from genius.evaluate.protocol import match_qrels, row_metrics
from genius.evaluate.trec import match_run, read_run, write_run

RUN = {"9:1": [("9:7", 0.75), ("9:3", 0.1 + 0.2)], "9:2": [("9:3", -1e-9)]}


def test_round_trip(tmp_path):
    write_run(tmp_path / "deep" / "a.trec", RUN, "lookup+codes")
    assert read_run(tmp_path / "deep" / "a.trec") == RUN
    assert [f.name for f in (tmp_path / "deep").iterdir()] == ["a.trec"]


def test_ir_measures_reads_our_files(tmp_path):
    write_run(tmp_path / "a.trec", RUN, "x")
    run = list(ir_measures.read_trec_run(str(tmp_path / "a.trec")))
    assert [(r.query_id, r.doc_id, r.score) for r in run] == [
        (q, item, score) for q, entries in RUN.items() for item, score in entries
    ]


def test_the_score_orders_and_rank_breaks_ties(tmp_path):
    file = tmp_path / "a.trec"
    file.write_text("q Q0 c 3 0.5 t\nq Q0 b 2 0.5 t\n\nq Q0 a 1 0.9 t\n")
    assert read_run(file) == {"q": [("a", 0.9), ("b", 0.5), ("c", 0.5)]}


def test_the_task_that_uniir_adds_is_read_over(tmp_path):
    file = tmp_path / "a.trec"
    file.write_text("9:1 Q0 9:7 1 0.9 clip_sf 3\n9:1 Q0 9:3 2 0.8 clip_sf 3\n")
    assert read_run(file) == {"9:1": [("9:7", 0.9), ("9:3", 0.8)]}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("q Q0 a 1 0.9\n", "line 1: 5 columns"),
        ("q Q0 a 1 0.9 t 3 x\n", "line 1: 8 columns"),
        ("q Q0 a 1 0.9 t\nq Q0 a 2 0.8 t\n", "line 2: item a is listed twice"),
        ("q Q0 a one 0.9 t\n", "is no number"),
        ("q Q0 a 1 nan t\n", "NaN"),
        ("q Q0 a 2 0.9 t\nq Q0 b 1 0.8 t\n", "ranks and scores of query q disagree"),
    ],
)
def test_wrong_runs_are_named(tmp_path, text, complaint):
    file = tmp_path / "a.trec"
    file.write_text(text)
    with pytest.raises(BadData, match=complaint):
        read_run(file)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(BadData, match="no file"):
        read_run(tmp_path / "none.txt")
    (tmp_path / "a.trec").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadData, match="not a text file"):
        read_run(tmp_path / "a.trec")


def test_ids_with_blanks_are_refused_and_nothing_is_left_behind(tmp_path):
    with pytest.raises(BadInput, match="no blanks"):
        write_run(tmp_path / "a.trec", {"q": [("my photo", 1.0)]}, "t")
    with pytest.raises(BadInput, match="one word"):
        write_run(tmp_path / "a.trec", RUN, "two words")
    assert list(tmp_path.iterdir()) == []


def test_matching_keeps_places_and_counts_what_does_not_fit():
    run = {"1": [("a", 3.0), ("strange", 2.0), ("b", 1.0)], "9": [("a", 1.0)]}
    ranked, faults = match_run(run, ["1", "2"], ["b", "a"], depth=4)
    assert ranked.tolist() == [[1, FOREIGN + 1, 0, NO_ITEM], [NO_ITEM] * 4]
    assert (faults.unanswered, faults.foreign_queries, faults.foreign_items) == (1, 1, 1)
    assert np.issubdtype(ranked.dtype, np.integer)


@pytest.mark.parametrize("foreign", ["strange", "absent"])
def test_an_item_that_the_pool_lacks_is_no_hit(foreign):
    """Relevant items that the pool lacks have numbers, too: an unknown item must not get one of them."""
    queries, pool = ["1", "2"], ["a", "b"]
    row_of = {item: row for row, item in enumerate(pool)}
    run = {"1": [(foreign, 3.0), ("b", 2.0)], "2": [("a", 1.0)]}
    ranked, faults = match_run(run, queries, pool, depth=5)
    matched = match_qrels(Row("x", 0), queries, {"1": {"absent": 1}, "2": {"a": 1}}, row_of)
    metrics = row_metrics(Row("x", 0), "local", "theirs", matched, [ranked], len(pool), faults)
    assert metrics.values["hit@5"].tolist() == [0.0, 1.0]
    assert metrics.values["recall@5"].tolist() == [0.0, 1.0]
    assert (metrics.faults.foreign_items, metrics.faults.absent_positives) == (1, 1)


def test_a_run_of_another_dataset_is_refused():
    with pytest.raises(BadInput, match="another dataset"):
        match_run({"20:1": [("20:5", 1.0)]}, ["21:1"], ["20:5"], depth=5)
    with pytest.raises(BadInput, match="another pool"):
        match_run({"20:1": [("20:5", 1.0)]}, ["20:1"], ["21:5"], depth=5)
