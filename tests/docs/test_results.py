"""docs/results.md and its appendix are what `genius report` writes from the files in benchmarks/results."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="pictures need the extra `bench`")
REPOSITORY = Path(__file__).parents[2]


def test_pages_are_current(tmp_path):
    shutil.copytree(REPOSITORY / "benchmarks" / "results", tmp_path / "benchmarks" / "results")
    (tmp_path / "benchmarks" / "data").mkdir()
    shutil.copy(REPOSITORY / "benchmarks" / "data" / "README.md", tmp_path / "benchmarks" / "data")
    command = [sys.executable, "-m", "genius", "report", "--numbers", "benchmarks/results", "--to", "docs"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    written = sorted((tmp_path / "docs").rglob("*.md"))
    assert written
    for page in written:
        shown = REPOSITORY / page.relative_to(tmp_path)
        fresh = "run `genius report --numbers benchmarks/results --to docs`"
        assert shown.read_text(encoding="utf-8") == page.read_text(encoding="utf-8"), fresh


def test_results_are_one_page_with_three_tables_and_two_pictures():
    page = (REPOSITORY / "docs" / "results.md").read_text(encoding="utf-8")
    assert page.count("\n| --- |") == 3
    assert page.count("![") == 2
