"""Comparisons and the written report: verdicts follow the paired intervals, losses are said."""

from __future__ import annotations

import numpy as np
import pytest

from genius.data.base import Row
from genius.errors import BadInput
from genius.evaluate.ablations import SYSTEMS
from genius.evaluate.compare import compare
from genius.evaluate.frontier_tables import hit_table, judged_by_all, relative
from genius.evaluate.protocol import figures, label
from genius.evaluate.reference import tables
from genius.evaluate.results import Entry, Results
from genius.evaluate.writeup import Document, writeup


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


FRONTIER = {
    "points": [
        {
            "system": system,
            "items": items,
            "real": min(items, 2000),
            "hit_at_5": 0.5,
            "milliseconds": milliseconds,
            "slow_milliseconds": 2 * milliseconds,
            "queries_per_second": 1000 / milliseconds,
            "bytes_per_item": 9.2,
            "build_seconds": 0.1,
        }
        for items, times in ((1000, (2.0, 8.0)), (4000, (8.0, 2.0)))
        for system, milliseconds in zip(("exact", "lookup+codes"), times, strict=True)
    ],
    "beams": [{"system": "genius", "beam": 5, "hit_at_5": 0.4, "milliseconds": 4.0}],
    "same": {"genius+codes": "lookup+codes"},
    "crossovers": [{"text": "lookup+codes overtakes exact at about 2,000 items"}],
    "machine": {"device": "cpu", "kind": "cpu", "threads": 2},
    "model": {"name": "mini", "fingerprint": "0" * 16},
    "data": "bench",
    "split": "test",
    "queries": 40,
    "encoding_milliseconds": 3.0,
}


def test_the_report_says_where_we_lose(results):
    text = writeup(Document([results], [], "genius bench --write results.md"))
    assert text.startswith("# Results\n\nMade by\n\n```\ngenius bench --write results.md\n```")
    assert "genius is even with ivf-pq" in text or "genius loses to ivf-pq (9 and 16 bytes per item)" in text
    assert "better on 1 rows, no clear difference on 0, worse on 1 (emoji 0)" in text
    assert "emoji 0 -25.0 [" in text  # in the table, with its interval
    assert "| genius | 9.0 | 40.0 [" in text
    assert "| 0.47 |" in text  # (60 + 20) / (90 + 80)
    assert "- numpy: 2" in text
    assert "\n\n\n" not in text
    assert "Frontier" not in text
    assert "Ablations" not in text


def test_times_are_multiples_of_exact_search(results):
    pictures = {"cpu": {"pictures/a-cpu.png": "a picture"}}
    text = writeup(Document([results], [FRONTIER], "x", pictures, numbers={"frontier cpu": "n/f.json"}))
    assert "| lookup+codes | genius+codes | 4 | 0.25 |" in text  # time, in 1,000 and 4,000 items
    assert "([numbers](n/f.json))" in text
    assert "![a picture](pictures/a-cpu.png)" in text
    assert "- time, cpu: lookup+codes overtakes exact at about 2,000 items" in text
    assert " ms " not in text
    assert "milliseconds" not in text
    assert "GENIUS, 2 + 8 x 12 bits | paper | 12.25" in text
    assert hit_table(FRONTIER).header == ["system", "the same search", "1,000 items"]  # only real pools
    again = relative(FRONTIER)
    assert [p["milliseconds"] for p in again["points"]] == [1.0, 4.0, 4.0, 1.0]
    assert [p["queries_per_second"] for p in again["points"]] == [1.0, 0.25, 0.25, 1.0]
    assert again["beams"][0]["milliseconds"] == 2.0
    assert again["unit"] == "exact search in 1,000 items = 1"


def test_the_whole_pool_is_judged_by_all_queries(results):
    whole = FRONTIER | {"real_items": 1000}
    found = judged_by_all(whole, results.as_json())
    before = [point["hit_at_5"] for point in FRONTIER["points"]]
    now = [point["hit_at_5"] for point in found["points"]]
    changed = [a != b for a, b in zip(now, before, strict=True)]
    exact = [p["system"] == "exact" and p["items"] == 1000 for p in FRONTIER["points"]]
    assert changed == exact  # other systems were not evaluated, other pools are not whole
    assert now[exact.index(True)] == pytest.approx(0.85)
    assert "in all 1,000 items: 200 queries, mean over the rows" in hit_table(found).markdown()


def test_times_of_a_gpu_stand_as_they_are(results):
    machine = {"device": "NVIDIA H200", "kind": "cuda", "threads": 16}
    text = writeup(Document([results], [FRONTIER | {"machine": machine}], "x"))
    assert "## Frontier: accuracy, time and bytes on NVIDIA H200" in text
    assert "| 4,000, 2,000 real | exact | 50.0 | 8.00 |" in text


def test_shares_by_task_stand_beside_the_papers(results):
    first, second, third = tables(results)
    shares = {line[0]: line[1:3] for line in first.lines}
    assert shares["pair → text"] == ["0.71", "0.67"]  # (34.6 + 10.4) / (39.2 + 24.0); 60 / 90
    assert shares["text → image"][1] == "0.25"
    assert shares["image → image"] == ["0.25", "–"]
    assert ["GENIUS", "genius", "84.0", "67.8", "20.0"] in [list(line) for line in second.lines]
    assert third.lines[-1][:2] == ["mean", "16 rows"]
    assert third.lines[1][2] == "77.9"  # CLIP-SF on COCO, supplement Table 9


def test_ablations_are_a_section(results):
    effect = {
        "mean": 0.4,
        "difference": -0.2,
        "interval": [-0.3, -0.1],
        "verdict": "worse",
        "by_seed": [-0.2],
    }
    outcome = {
        "command": "genius eval --ablations recipe.toml",
        "recipe": {"name": "mini"},
        "seeds": 1,
        "limit": 0,
        "setting": "universal",
        "split": "test",
        "base": {s: {"mean": 0.6, "interval": [0.5, 0.7]} for s in SYSTEMS},
        "variants": [
            {
                "name": "no modality level",
                "table": "Table 4",
                "paper": -12.4,
                "effects": dict.fromkeys(SYSTEMS, effect),
            }
        ],
    }
    text = writeup(Document([results], [], "x", ablations=outcome, numbers={"ablations": "a.json"}))
    assert "| no modality level | Table 4 | 40.0 | -20.0 [-30.0, -10.0] |" in text
    assert "- as in the paper: no modality level (-20.0; paper -12.4)" in text
    assert "`genius eval --ablations recipe.toml` ([numbers](a.json))" in text
