"""docs/speed.md says what the figures in benchmarks/results say: nobody types a number there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_tables_are_those_of_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import speed_draw

    figures = {}
    for kind in ("cpu", "gpu"):
        file = ROOT / "benchmarks" / "results" / f"speed-{kind}.json"
        figures[kind] = json.loads(file.read_text()) if file.exists() else {}
    page = (ROOT / "docs" / "speed.md").read_text()
    parts = speed_draw.tables(figures)
    assert all(f"<!-- {name} -->" in page for name in parts)
    assert speed_draw.filled(page, parts) == page, "run `python benchmarks/speed.py --draw`"
    assert (
        speed_draw.filled("<!-- a -->\nold\n<!-- end --> b", {"a": "new"})
        == "<!-- a -->\nnew\n<!-- end --> b"
    )
