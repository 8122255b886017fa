"""Comparisons and the written report: verdicts follow the paired intervals, losses are said."""

from __future__ import annotations

import numpy as np
import pytest

from genius.data.base import Row
from genius.errors import BadInput
from genius.evaluate.compare import compare
from genius.evaluate.protocol import figures, label
from genius.evaluate.results import Entry, Results
from genius.evaluate.writeup import writeup


def entry(system, row, hits, size):
    """A system that finds the answer of the queries whose number is in `hits`, of 100."""
    queries = [str(n) for n in range(100)]
    labels = label(row, queries, {q: {"a": 1} for q in queries}, {"a": 0, "b": 1})
    ranked = np.array([[0 if n in hits else 1] for n in range(100)])
    return Entry(figures(row, "universal", system, labels, [ranked], 2), "f", "p", "q", size, 1.0)


@pytest.fixture
def results():
    birds, emoji = Row("birds", 6), Row("emoji", 0)
    entries = [
        entry("exact", birds, range(90), 2048),
        entry("exact", emoji, range(80), 2048),
        entry("genius", birds, range(60), 9),
        entry("genius", emoji, range(20), 9),
        entry("ivf-pq", birds, range(40), 16),
        entry("ivf-pq", emoji, range(45), 16),
    ]
    return Results("universal", "test", "bench", "mini", "abc", entries, versions={"numpy": "2"})


def test_verdicts_by_row(results):
    found = compare(results, "genius", "ivf-pq")
    by_row = {str(d.row): d for d in found.rows}
    assert by_row["birds 6"].verdict == "better"
    assert by_row["birds 6"].value == pytest.approx(0.20)
    assert by_row["emoji 0"].verdict == "worse"
    assert found.mean.value == pytest.approx((0.20 - 0.25) / 2)
    assert found.mean.interval[0] < found.mean.value < found.mean.interval[1]
    assert "better on 1 rows, no clear difference on 0, worse on 1: emoji 0 -25.0" in found.line()
    assert "genius (9.0 bytes per item) against ivf-pq (16.0)" in found.line()


def test_equal_systems_are_even(results):
    assert {d.verdict for d in compare(results, "exact", "exact").rows} == {"even"}


def test_a_system_that_was_not_run(results):
    with pytest.raises(BadInput, match="hnsw was not run: the results have exact, genius, ivf-pq"):
        compare(results, "hnsw", "exact")


def test_the_report_says_where_we_lose(results):
    text = writeup([results], [], "genius bench --write results.md", ["pictures/a.png"])
    assert text.startswith("# Results\n\nMade by `genius bench --write results.md`")
    assert "worse on 1: emoji 0 -25.0" in text
    assert "genius 0.47" in text  # (60 + 20) / (90 + 80)
    assert "| image,text" not in text
    assert "![pictures/a.png](pictures/a.png)" in text
    assert "- numpy: 2" in text
    assert "\n\n\n" not in text
    assert "- not run" in text  # no lookup systems here
