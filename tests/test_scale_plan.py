"""docs/scale.md is what its script writes from the figures that are there now."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(REPOSITORY / "benchmarks" / "scale_plan.py"))
PAGE = (REPOSITORY / "docs" / "scale.md").read_text(encoding="utf-8")


def test_the_page_is_current() -> None:
    assert SCRIPT["page"]() == PAGE, "run `python benchmarks/scale_plan.py`"


def test_every_symbol_of_a_formula_is_explained() -> None:
    explained = set(re.findall(r"^\| `(\$?\w)` \|", PAGE, re.MULTILINE))
    used = {
        word
        for formula in re.findall(r"^\| [^|]+ \| `([^`]+)` \|", PAGE, re.MULTILINE)
        for word in re.findall(r"\$?\b[a-zA-Z]\b", formula)
    }
    assert used - {"N", "M"} <= explained  # N items, M for million
    assert len(explained) > 15


def test_numbers_follow_their_formulas() -> None:
    billion, million = SCRIPT["Values"](10**9), SCRIPT["Values"](10**8)
    codes, vectors, *_ = SCRIPT["PLAN"]["lines"]["Bytes"]
    assert billion.of(codes["value"]) == pytest.approx(14.013e9, rel=1e-6)
    assert billion.of(vectors["value"]) == pytest.approx(768 * 2 * 1e9, rel=1e-3)
    hours, gpus, *_ = SCRIPT["PLAN"]["lines"]["Encode"]
    assert million.of(hours["value"]) == pytest.approx(1e8 * (0.7 / 2000 + 1 / 20000) / 3600)
    assert million.of(gpus["value"]) == 1
    assert SCRIPT["size"](14.013e9) == "14 GB" and SCRIPT["number"](1234.5) == "1,234"


def test_what_is_not_measured_is_marked() -> None:
    for figure in SCRIPT["PLAN"]["inputs"]:
        computed = "[" in figure["value"]  # from a file
        assert computed == ("file" in figure)
        assert ("assumed" in SCRIPT["source"](figure)) == (not computed)
        if computed:
            assert (REPOSITORY / "benchmarks" / "results" / f"{figure['file']}.json").is_file()


def test_inputs_name_the_commit_that_they_were_measured_at(tmp_path: Path, monkeypatch) -> None:
    measured_at = SCRIPT["measured_at"]
    (tmp_path / "results").mkdir()
    monkeypatch.setitem(measured_at.__globals__, "HERE", tmp_path)
    files = {
        "trie": '{"command": "a", "commit": "0123456789"}',
        "store": '{"command": "a"}',
        "speed-gpu": '{"scale": {"command": "a"}, "generate": {"command": "b", "commit": "89abcdef01"}}',
    }
    for name, text in files.items():
        (tmp_path / "results" / f"{name}.json").write_text(text)
    assert measured_at({"file": "trie"}) == "commit 0123456"
    assert measured_at({"file": "store"}) == "commit not recorded"
    assert measured_at({"file": "speed-gpu"}) == "commit not recorded"
    assert measured_at({"file": "speed-gpu", "part": "generate"}) == "commit 89abcde"
