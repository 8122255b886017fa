"""docs/speed.md says what the figures in benchmarks/results say: nobody types a number there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_tables_are_those_of_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import speed_draw

    figures = speed_draw.read_figures(ROOT / "benchmarks" / "results")
    page = (ROOT / "docs" / "speed.md").read_text()
    parts = speed_draw.tables(figures)
    assert all(f"<!-- {name} -->" in page for name in parts)
    assert speed_draw.filled(page, parts) == page, "run `python benchmarks/speed.py --draw`"
    assert (
        speed_draw.filled("<!-- a -->\nold\n<!-- end --> b", {"a": "new"})
        == "<!-- a -->\nnew\n<!-- end --> b"
    )


def test_faiss_and_torch_are_timed_in_separate_processes(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("faiss", reason="FAISS is in the extra `bench`")
    out = tmp_path / "speed.json"
    script = [sys.executable, str(ROOT / "benchmarks" / "speed.py"), "--tiny", "--out", str(out)]
    subprocess.run([*script, "--phases", "lookup", "faiss"], check=True, capture_output=True)
    found = json.loads(out.read_text())
    assert "error" not in found["lookup"] and "error" not in found["faiss"]
    assert "faiss" in found["faiss"]["versions"] and "faiss" not in found["lookup"]["versions"]
    assert {"command", "versions"} <= found["lookup"].keys()

    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import speed_draw

    rows = speed_draw.beside_faiss(found)["10000"]  # the same pool and queries, so the same truth
    assert rows["exact (faiss flat)"]["recall"] == 1.0
    assert rows["lookup, vectors, 2000 beams"]["recall"] > 0.99 and "faiss hnsw, ef 64" in rows
    table = speed_draw.tables({"cpu": found, "gpu": {}})["lookup"]
    assert "--phases lookup`, `python benchmarks/speed.py --phases faiss" in table.replace(" --tiny", "")
    assert "in one process" not in table
    found["lookup"]["10000"] |= found.pop("faiss")["10000"]  # as older files have it
    assert "in one process" in speed_draw.tables({"cpu": found, "gpu": {}})["lookup"]
