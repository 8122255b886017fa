"""Tables: our figures beside the published ones, gaps marked, faults and remarks under them."""

from __future__ import annotations

import io
import json

import numpy as np
from rich.console import Console

from genius.data.base import Row
from genius.evaluate.protocol import Faults, match_qrels, row_metrics
from genius.evaluate.report.tables import NOT_RUN, UNPUBLISHED, UNSUPPORTED, cutoffs_table, results_table
from genius.evaluate.results import Entry, Results


def entry(dataset, task, system="exact", hit=True, setting="universal", faults=None):
    labels = match_qrels(Row(dataset, task), ["q"], {"q": {"a": 1}}, {"a": 0, "b": 1})
    ranked = np.array([[0, 1] if hit else [1, -1]])
    return Entry(
        row_metrics(Row(dataset, task), setting, system, labels, [ranked], 2, faults),
        "f",
        "p",
        "q",
        9.25,
        0.1,
    )


def results(entries, setting="universal", **options):
    made = Results(
        setting=setting,
        split="test",
        data="root",
        model="mini",
        fingerprint="f" * 32,
        entries=entries,
        versions={},
        **options,
    )
    return json.loads(json.dumps(made.as_json()))


def cell(table, row, column):
    line = next(line for line in table.lines if line[1].startswith(row))
    return line[table.header.index(column)]


def test_our_column_stands_beside_the_published_ones():
    table = results_table(results([entry("mscoco", 0), entry("cirr", 7, hit=False)]))
    assert cell(table, "mscoco", "exact") == "100.0"
    assert cell(table, "mscoco", "GENIUS (paper)") == "55.1"
    assert cell(table, "cirr", "exact") == "0.0"
    assert cell(table, "2 rows run", "exact") == "50.0"
    assert cell(table, "2 rows run", "CLIP-SF (paper)") == f"{(77.9 + 43.9) / 2:.1f}"
    assert cell(table, "all 16", "CLIP-SF (paper)") == "48.9"
    assert cell(table, "measured", "exact") == "9.2"
    assert len(table.lines) == 16 + 3


def test_what_was_not_run_is_marked():
    left = [{"system": "grace", "dataset": "cirr", "task": 7, "reason": "not made for this task"}]
    table = results_table(
        results([entry("mscoco", 0), entry("cirr", 7), entry("mscoco", 0, "grace")], not_run=left)
    )
    assert cell(table, "cirr", "grace") == UNSUPPORTED
    assert cell(table, "webqa", "exact") == NOT_RUN
    assert cell(table, "2 rows run", "grace") == "100.0 (1 rows)"


def test_local_results_stand_beside_table_1_and_gaps_of_the_paper_show():
    table = results_table(results([entry("cirr", 7, setting="local")], setting="local"))
    assert cell(table, "cirr", "GENIUS (paper)") == "20.7"
    assert cell(table, "cirr", "IRGen (paper)") == UNPUBLISHED
    assert cell(table, "1 rows run", "IRGen (paper)") == UNPUBLISHED


def test_the_misprint_is_starred_and_explained():
    table = results_table(results([entry("fashioniq", 7)]))
    assert cell(table, "fashioniq", "GENIUS (paper)") == "18.9*"
    assert any("misprint" in note for note in table.notes)
    assert "hit@10" in next(line for line in table.lines if line[1].startswith("fashioniq"))[1]


def test_other_data_has_no_published_columns():
    table = results_table(results([entry("birds", 6), entry("emoji", 0)]))
    assert table.header == ["task", "row", "exact"]
    assert [line[1] for line in table.lines[:2]] == ["emoji hit@5", "birds hit@5"]


def test_faults_limits_and_skips_are_said():
    made = [entry("birds", 6, faults=Faults(unreadable_items=3))]
    notes = results_table(results(made, limit=50, reading=["1 skipped"])).notes
    assert "birds 6: 3 items with an unreadable image, not searchable" in notes
    assert any("at most 50 queries" in note for note in notes)
    assert "1 skipped" in notes


def test_how_each_system_searched_is_said():
    used = {"exact": {}, "lookup+codes": {"method": "lookup", "beam": 200, "rerank": "codes"}}
    notes = results_table(results([entry("birds", 6)], systems_used=used)).notes
    assert "lookup+codes: search by lookup, beam 200, re-ranked by codes" in notes


def test_what_favours_faiss_is_said():
    with_pq = results_table(results([entry("birds", 6), entry("birds", 6, "ivf-pq")])).notes
    assert any("learn their centroids from the searched pool" in note for note in with_pq)
    assert not any("centroids" in note for note in results_table(results([entry("birds", 6)])).notes)


def test_intervals_on_request():
    table = results_table(results([entry("birds", 6)]), intervals=True)
    assert cell(table, "birds", "exact") == "100.0 [100.0, 100.0]"


def test_markdown_and_terminal_hold_every_cell():
    table = results_table(results([entry("mscoco", 0)]))
    text = table.markdown()
    assert text.count("\n| ") == len(table.lines) + 2
    assert "| text → image | mscoco hit@5 | 100.0 |" in text
    screen = io.StringIO()
    Console(width=240, file=screen).print(table.rich())
    assert all(word in screen.getvalue() for word in ("55.1", "18.9*", "100.0", NOT_RUN))


def test_all_figures_of_one_system():
    table = cutoffs_table(results([entry("fashion200k", 0), entry("mscoco", 0)]), "exact")
    assert [line[1] for line in table.lines] == ["fashion200k @10/20/50", "mscoco @1/5/10"]
    assert table.lines[1][3:] == ["100.0"] * 8
