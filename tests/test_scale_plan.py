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
    figures = {figure.symbol: figure.value for figure in (*SCRIPT["measured"](), *SCRIPT["assumed"]())}
    lines = SCRIPT["lines"](figures)
    codes, vectors, *_ = lines["Bytes"]
    assert codes.value(1e9) == pytest.approx(14.013e9, rel=1e-6)
    assert vectors.value(1e7) == pytest.approx(768 * 2 * 1e7, rel=1e-3)
    hours = lines["Encode"][0]
    assert hours.value(1e8) == pytest.approx(1e8 * (0.7 / 2000 + 1 / 20000) / 3600)
    assert lines["Encode"][1].value(1e8) == 1
    assert SCRIPT["size"](14.013e9) == "14 GB" and SCRIPT["number"](1234.5) == "1,234"


def test_what_is_not_measured_is_marked() -> None:
    for figure in SCRIPT["assumed"]():
        assert "assumed" in figure.source
    for figure in SCRIPT["measured"]():
        assert "assumed" in figure.source or "](../benchmarks/results/" in figure.source
