"""`genius plot`: files in, pictures and one page out; the page needs nothing else."""

from __future__ import annotations

import builtins
import json
import re

import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("matplotlib", reason='needs the extra: pip install "genius-search[bench]"')

from genius.cli.plot import plot
from genius.errors import BadInput, MissingExtra
from genius.evaluate.report.tables import Table
from genius.plots.report import Picture, Section, report
from genius.plots.style import canvas

FRONTIER = {
    "points": [
        {
            "system": system,
            "items": 100,
            "real": 100,
            "hit_at_5": 0.5,
            "milliseconds": 1.0,
            "slow_milliseconds": 1.0,
            "queries_per_second": 10.0,
            "bytes_per_item": 8.0,
            "build_seconds": 0.1,
        }
        for system in ("exact", "hnsw")
    ],
    "beams": [],
    "crossovers": [{"system": "hnsw", "than": "exact", "items": 9.0}],
    "machine": {"device": "cpu", "threads": 1},
    "model": {"name": "mini", "fingerprint": "0" * 16},
    "data": "bench",
    "queries": 4,
    "encoding_milliseconds": 3.0,
}


def run(*options):
    app = typer.Typer()
    app.command()(plot)
    return CliRunner().invoke(app, list(options), catch_exceptions=False)


def test_pictures_and_a_page(tmp_path):
    file = tmp_path / "frontier.json"
    file.write_text(json.dumps(FRONTIER))
    out = run("--to", str(tmp_path / "out"), "--frontier", str(file)).stdout.split()
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "hit-by-bytes.png",
        "hit-by-time.png",
        "latency-by-size.png",
        "speed-by-size.png",
        "report.html",
    }
    assert len(out) == 5
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert "hnsw overtakes exact at about 9 items" in page
    assert not re.search(r"(src|href)=[\"'](?!data:)", page)  # self-contained
    assert "http" not in page


def test_the_page_escapes_what_it_shows():
    table = Table("<b>title</b>", ["a", "b"], [["<script>", "&"]], ["<i>note</i>"])
    page = report("<x>", [Section("<h>", [table], [Picture("p", '"><img onerror=1>', b"png")])])
    assert "<script>" not in page
    assert "<img onerror" not in page
    assert "&lt;script&gt;" in page
    assert page.count("<table>") == 1


def test_wrong_files_are_named(tmp_path):
    file = tmp_path / "x.json"
    file.write_text("[]")
    with pytest.raises(BadInput, match="no output of"):
        run("--to", str(tmp_path), "--frontier", str(file))
    file.write_text("{}")
    with pytest.raises(BadInput, match="genius bench --format json"):
        run("--to", str(tmp_path), "--frontier", str(file))
    with pytest.raises(BadInput, match="genius eval --format json"):
        run("--to", str(tmp_path), "--results", str(file))
    with pytest.raises(BadInput, match="cannot be read as JSON"):
        run("--to", str(tmp_path), "--results", str(tmp_path / "none.json"))
    with pytest.raises(BadInput, match="nothing to draw"):
        run("--to", str(tmp_path))


def test_without_the_extra_the_cure_is_named(monkeypatch):
    plain = builtins.__import__

    def refuse(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r'pip install "genius-search\[bench\]"'):
        canvas(1, 1)
