"""Comparisons and the written report: verdicts follow the paired intervals, losses are reported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from genius.data.base import Row
from genius.errors import BadInput
from genius.evaluate.ablations import SYSTEMS
from genius.evaluate.intervals import bootstrap
from genius.evaluate.protocol import match_qrels, row_metrics
from genius.evaluate.report.pages import MAIN, ReportInputs, pages
from genius.evaluate.report.studies import (
    crossover_lines,
    frontier_table,
    hit_table,
    relative,
    share_table,
    with_full_hit_rates,
)
from genius.evaluate.report.tables import published_table, shares_table, text_to_image_table
from genius.evaluate.results import Entry, Results, compare
from genius.plots.frontier import figures

REPOSITORY = Path(__file__).resolve().parents[2]


def entry(system, row, hits, size):
    """A system that finds the answer of the queries whose number is in `hits`, of 100."""
    queries = [str(n) for n in range(100)]
    matched = match_qrels(row, queries, {q: {"a": 1} for q in queries}, {"a": 0, "b": 1})
    ranked = np.array([[0 if n in hits else 1] for n in range(100)])
    return Entry(row_metrics(row, "universal", system, matched, [ranked], 2), "f", "p", "q", size, 1.0)


@pytest.fixture
def results():
    birds, emoji = Row("birds", 6), Row("emoji", 0)
    entries = [
        entry("exact", birds, range(90), 2048),
        entry("exact", emoji, range(80), 2048),
        entry("fitted+codes", birds, range(60), 9),
        entry("fitted+codes", emoji, range(20), 9),
        entry("faiss-rq", birds, range(40), 16),
        entry("faiss-rq", emoji, range(45), 16),
    ]
    return Results("universal", "test", "bench", "mini", "abc", entries, versions={"numpy": "2"})


def test_verdicts_by_row(results):
    found = compare(results, "fitted+codes", "faiss-rq")
    by_row = {str(d.row): d for d in found.rows}
    assert by_row["birds 6"].verdict == "better"
    assert by_row["birds 6"].value == pytest.approx(0.20)
    assert by_row["emoji 0"].verdict == "worse"
    assert found.mean.value == pytest.approx((0.20 - 0.25) / 2)
    assert found.mean.interval[0] < found.mean.value < found.mean.interval[1]
    (told,) = results.as_json()["comparisons"]
    assert told == found.as_json()
    assert (told["one"], told["other"], told["bytes_per_item"]) == ("fitted+codes", "faiss-rq", [9, 16])


def test_a_verdict_on_a_row_is_corrected_for_the_number_of_rows(results):
    """The interval of one of two rows is wider than the same row's alone, on which 0 may lie outside."""
    found = compare(results, "fitted+codes", "faiss-rq")
    ours, theirs = (results.metrics_of(name) for name in ("fitted+codes", "faiss-rq"))
    for difference in found.rows:
        gap = ours[difference.row].headline_values - theirs[difference.row].headline_values
        low, high = bootstrap([gap])
        assert difference.interval[0] <= low
        assert difference.interval[1] >= high
        assert difference.interval != (low, high)


def test_equal_systems_are_even(results):
    assert {d.verdict for d in compare(results, "exact", "exact").rows} == {"even"}


def test_a_system_that_was_not_run(results):
    with pytest.raises(BadInput, match="hnsw was not run: the results have exact, fitted\\+codes, faiss-rq"):
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
    "crossovers": [{"system": "lookup+codes", "than": "exact", "items": 2000.0, "text": "(an old sentence)"}],
    "machine": {"device": "cpu", "kind": "cpu", "threads": 2},
    "model": {"name": "mini", "fingerprint": "abc"},
    "data": "bench",
    "split": "test",
    "queries": 40,
    "encoding_milliseconds": 3.0,
}


def written(results, **more):
    return pages(ReportInputs([results.as_json()], **{"frontiers": [], **more}))


def test_the_report_says_where_we_lose(results):
    found = written(results)
    assert list(found) == [MAIN, "appendix/universal.md"]
    text = found[MAIN]
    assert text.startswith("# Results\n\nThe model `mini` (abc) on `bench`, test split.")
    assert "fitted+codes is even with faiss-rq (9 and 16 bytes per item) by -2.5 [" in text
    assert "better on 1 rows, no clear difference on 0, worse on 1 (emoji 0)" in text
    assert "| fitted+codes | 9.0 | 40.0 [" in text
    assert "| 0.47 |" in text  # (60 + 20) / (90 + 80)
    appendix = found["appendix/universal.md"]
    assert "emoji 0 -25.0 [" in appendix  # row by row, with its interval
    assert "- numpy: 2" in appendix
    assert not any("\n\n\n" in page for page in found.values())


def test_times_are_multiples_of_exact_search(results):
    pictures = {"cpu": {"pictures/hit-by-bytes-cpu.png": "a picture", "pictures/other-cpu.png": "another"}}
    found = written(results, frontiers=[FRONTIER], pictures=pictures, numbers="n")
    text = found["appendix/frontier-cpu.md"]
    assert "| lookup+codes | 4 | 0.25 |" in text  # time, in 1,000 and 4,000 items
    assert "([numbers](../n/frontier-cpu.json))" in text
    assert "![another](../pictures/other-cpu.png)" in text
    assert "- lookup+codes overtakes exact at about 2,000 items" in text
    assert " ms " not in text
    assert "milliseconds" not in text
    assert "GENIUS, 2 + 8 x 12 bits | paper | 12.25" in text
    assert "- time, cpu: lookup+codes overtakes exact at about 2,000 items" in found[MAIN]
    assert "![a picture](pictures/hit-by-bytes-cpu.png)" in found[MAIN]
    assert "other-cpu.png" not in found[MAIN]
    assert hit_table(FRONTIER).header == ["system", "1,000 items"]  # only real pools
    again = relative(FRONTIER)
    assert [p["milliseconds"] for p in again["points"]] == [1.0, 4.0, 4.0, 1.0]
    assert [p["queries_per_second"] for p in again["points"]] == [1.0, 0.25, 0.25, 1.0]
    assert again["beams"][0]["milliseconds"] == 2.0
    assert again["unit"] == "exact search in 1,000 items = 1"


def test_times_of_another_model_are_not_shown(results):
    gpu = {"device": "NVIDIA H200", "kind": "cuda", "threads": 16}
    older = FRONTIER | {"machine": gpu, "model": {"name": "mini", "fingerprint": "def"}}
    found = written(results, frontiers=[FRONTIER, older])
    assert list(found) == [MAIN, "appendix/universal.md", "appendix/frontier-cpu.md"]
    lines = [line for line in found[MAIN].splitlines() if "NVIDIA" in line]
    assert lines == [
        "- no pool sizes on NVIDIA H200: they were measured with another model (def); "
        "`genius bench --device cuda` measures them"
    ]


def test_hit_rates_in_the_whole_pool_are_of_all_queries(results):
    whole = FRONTIER | {"real_items": 1000}
    found = with_full_hit_rates(whole, results.as_json())
    before = [point["hit_at_5"] for point in FRONTIER["points"]]
    now = [point["hit_at_5"] for point in found["points"]]
    changed = [a != b for a, b in zip(now, before, strict=True)]
    exact = [p["system"] == "exact" and p["items"] == 1000 for p in FRONTIER["points"]]
    assert changed == exact  # other systems were not evaluated, other pools are not whole
    assert now[exact.index(True)] == pytest.approx(0.85)
    assert "in all 1,000 items: 200 queries, mean over the rows" in hit_table(found).markdown()


def test_times_of_a_gpu_are_milliseconds(results):
    machine = {"device": "NVIDIA H200", "kind": "cuda", "threads": 16}
    frontier = FRONTIER | {"machine": machine}
    text = written(results, frontiers=[frontier])["appendix/frontier-cuda.md"]
    assert "# Hit rate, time and bytes by pool size on NVIDIA H200" in text
    assert "| 4,000, 2,000 real | exact | 50.0 | 8.00 |" in text
    assert not any("FAISS" in note for note in frontier_table(frontier).notes)
    with_faiss = frontier | {"points": [*FRONTIER["points"], {**FRONTIER["points"][0], "system": "hnsw"}]}
    assert any("FAISS ran on the CPU" in note for note in frontier_table(with_faiss).notes)


def test_shares_by_task_stand_beside_the_papers():
    birds, emoji = Row("birds", 6), Row("emoji", 0)
    hits = {"exact": (90, 80), "genius": (60, 20)}
    entries = [
        entry(s, row, range(n), 9)
        for s, both in hits.items()
        for row, n in zip((birds, emoji), both, strict=True)
    ]
    found = Results("universal", "test", "bench", "mini", "abc", entries, versions={}).as_json()
    shares = {line[0]: line[1:3] for line in shares_table(found).lines}
    assert shares["pair → text"] == ["0.71", "0.67"]  # (34.6 + 10.4) / (39.2 + 24.0); 60 / 90
    assert shares["text → image"][1] == "0.25"
    assert shares["image → image"] == ["0.25", "–"]
    lines = [list(line) for line in text_to_image_table(found).lines]
    assert ["GENIUS", "genius", "84.0", "67.8", "20.0"] in lines
    third = published_table("universal")
    assert third.lines[-1][:2] == ["mean", "16 rows"]
    assert third.lines[1][2] == "77.9"  # CLIP-SF on COCO, supplement Table 9


def test_ablations_are_a_page(results):
    effect = {
        "mean": 0.4,
        "difference": -0.2,
        "interval": [-0.3, -0.1],
        "verdict": "worse",
        "by_seed": [-0.2],
    }
    outcome = {
        "command": "genius ablate recipe.toml --data BENCH",
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
    text = written(results, ablations=outcome, numbers="n")["appendix/ablations.md"]
    assert "| no modality level | Table 4 | 40.0 | -20.0 [-30.0, -10.0] |" in text
    assert "- as in the paper: no modality level (-20.0; paper -12.4)" in text
    assert "`genius ablate recipe.toml --data BENCH` ([numbers](../n/ablations.json))" in text


def test_the_published_pages_are_those_of_the_numbers():
    """`genius report --numbers benchmarks/results --to docs` writes what is there."""
    numbers, docs = REPOSITORY / "benchmarks" / "results", REPOSITORY / "docs"

    def read(name):
        return json.loads((numbers / f"{name}.json").read_text())

    frontiers = [read(file.stem) for file in sorted(numbers.glob("frontier-*.json"))]
    pictures = {
        f["machine"]["device"]: {f"pictures/{name}-{f['machine']['kind']}.png": "" for name in figures(f)}
        for f in frontiers
    }
    results = [read("results-universal"), read("results-local")]
    folder = "../benchmarks"
    inputs = ReportInputs(
        results,
        frontiers,
        read("ablations"),
        pictures=pictures,
        numbers=f"{folder}/results",
        data=f"{folder}/data/README.md",
    )
    for path, text in pages(inputs).items():
        lines = [line for line in text.splitlines() if not line.startswith("![")]
        shown = [line for line in (docs / path).read_text().splitlines() if not line.startswith("![")]
        assert lines == shown, f"docs/{path}: run `genius report --numbers benchmarks/results --to docs`"


def trained_baseline(rate, hits):
    """A generative baseline as benchmarks/generative.py measures it."""
    curve = [[step, hit] for step, hit in zip(range(500, 4001, 500), hits, strict=True)]
    row = {"dataset": "emoji", "task": 0, "hit@5": 0.31}
    test = {"headline": 0.31, "interval": [0.3, 0.33], "seeds": [0.3, 0.32], "seed_deviation": 0.014}
    return {
        "task": 0,
        "rates": [{"rate": rate, "curve": curve}, {"rate": 1.0, "curve": [[4000, 0.0]]}],
        "rate": rate,
        "more": {"times": 4, "curve": [[16000, hits[-1] + 0.004]]},
        "test": {setting: test | {"rows": [row]} for setting in ("universal", "local")},
    }


def test_generative_baselines_are_shown_with_their_curve_and_never_out_of_older_files(results):
    entries = [
        *results.entries,
        entry("irgen", Row("emoji", 0), range(13), 7),
        entry("genius", Row("emoji", 0), range(25), 9),
        entry("genius+codes", Row("emoji", 0), range(24), 9),
    ]
    old = Results("universal", "test", "bench", "mini", "abc", entries, versions={})
    for page in written(old, frontiers=[FRONTIER]).values():
        assert "13.0" not in page and "genius+codes" not in page
    outcome = {
        "command": "python benchmarks/generative.py --data BENCH",
        "samples": 2048000,
        "seeds": 2,
        "training": {"network": [4, 256, 4, 64, 1024]},
        "baselines": {"irgen": trained_baseline(1e-3, [0.05, 0.1, 0.2, 0.25, 0.28, 0.3, 0.31, 0.32])},
    }
    found = written(old, generative=outcome, numbers="n")
    page = found["appendix/generative.md"]
    assert "| irgen | 0.001 | 31.0 ± 1.4 | 25.0 | 80.0 |" in page  # beside genius and exact on that row
    assert "| irgen | 10.0 | 25.0 | 30.0 | 32.0 | +2.0 | +0.4 |" in page
    assert "| 4,000 steps | last quarter | 4 times the samples |" in page
    assert "the best of 0.001, 1 on val" in page
    assert "[GRACE, IRGen and DSI](appendix/generative.md)" in found[MAIN]
    assert "| IRGen | irgen | 68.9 | 50.7 | 31.0 |" in found["appendix/universal.md"]


def test_what_holds_over_the_seeds_of_training_is_said_on_the_main_page(results):
    compared = {"one": "fitted+codes", "other": "faiss-rq", "difference": 0.1, "interval": [0.05, 0.2]}
    compared |= {"by_seed": [0.1, 0.1], "verdict": "even"}
    system = {"mean": 0.5, "interval": [0.4, 0.6], "bytes_per_item": 9.0, "seeds_of": ""}
    outcome = {
        "command": "genius ablate recipes/bench.toml --seeds 2",
        "seeds": 2,
        "over_seeds": {
            "setting": "universal",
            "split": "test",
            "systems": {"exact": system},
            "comparisons": [compared],
        },
    }
    found = written(results, seeds=[outcome], numbers="n")
    assert "worse on 1 (emoji 0); 2 seeds of training: is even with it under all" in found[MAIN]
    assert "| exact |  | 50.0 [40.0, 60.0] |  |  | 1.00 | 9.0 |" in found["appendix/seeds.md"]
    assert "([numbers](../n/seeds-universal.json))" in found["appendix/seeds.md"]


def test_shares_of_exact_search_at_sizes_with_made_items_need_a_calibration():
    assert share_table(FRONTIER).header == ["system", "1,000 items"]
    points = [{**p, "hit_at_5": 0.4} if p["system"] == "lookup+codes" else p for p in FRONTIER["points"]]
    filled = [{"spread": 1.0, "hit_at_5": [0.5]}]
    calibration = {"spread": 1.0, "base": 500, "sizes": [2000], "real": [0.5], "filled": filled}
    table = share_table(FRONTIER | {"points": points, "calibration": calibration})
    assert table.header == ["system", "1,000 items", "4,000 items"]
    assert ["lookup+codes", "0.80", "0.80"] in [list(line) for line in table.lines]
    assert table.notes[0] == "exact search itself: 50.0 % in 1,000, 50.0 % in 4,000"


def test_a_crossover_is_extrapolated_to_twice_the_largest_pool_at_most():
    """Also where an older file has one further away: the largest pool has 4,000 items."""
    expected = {"a": 8000.0, "b": 8001.0}
    far = [{"system": s, "than": "exact", "items": None, "expected": n} for s, n in expected.items()]
    near, beyond = crossover_lines(FRONTIER | {"crossovers": far})
    assert near.endswith("every pool size; extrapolated, it is faster from about 8,000 items")
    assert beyond == "b was slower than exact at every pool size"
