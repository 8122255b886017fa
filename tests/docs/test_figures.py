"""Measured figures in README and docs are those in benchmarks/results (docs/figures.py)."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

from genius.serve.limits import MB, Limits

REPOSITORY = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(REPOSITORY / "docs" / "figures.py"), run_name="figures")
PLAIN = {"3.11", "4.0", "0.59", "5.6"}  # versions, and what the paper reports


def test_figures_are_the_measured_ones():
    found = [str(one) for one in SCRIPT["differences"]()]
    assert found == [], "run `python docs/figures.py --write`, then read the sentences around them"


def test_every_figure_of_the_readme_has_a_source():
    """A decimal number or a number with a comma in README is listed in docs/figures.toml."""
    page = (REPOSITORY / "README.md").read_text()
    covered = [
        span
        for one in SCRIPT["figures"]()
        if one["page"] == "README.md"
        for span in SCRIPT["spans"](one, page)
    ]
    prose = re.sub(
        r"^```.*?^```$|`[^`\n]*`|\]\([^)]*\)", lambda m: " " * len(m[0]), page, flags=re.DOTALL | re.MULTILINE
    )
    assert len(prose) == len(page)
    for match in re.finditer(r"\d[\d,]*(?:\.\d+)+|\d+,\d{3}", prose):
        inside = any(start <= match.start() and match.end() <= end for start, end in covered)
        assert inside or match[0] in PLAIN, f"{match[0]} has no source: list it in docs/figures.toml"


def test_a_wrong_figure_is_noticed_and_mended(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text("Of its files\n12.5 % are read.\n")
    entry = {
        "page": "page.md",
        "text": "Of its files {} % are read",
        "values": [{"at": "a.json > b", "times": 100, "as": ".1f"}],
    }
    functions = SCRIPT["differences"].__globals__
    monkeypatch.setitem(functions, "REPOSITORY", tmp_path)
    monkeypatch.setitem(functions, "figures", lambda: [entry])
    monkeypatch.setitem(functions, "lookup", lambda place: 0.13)
    (found,) = SCRIPT["differences"]()
    assert (found.shown, found.measured) == ("12.5", "13.0")
    SCRIPT["write"]([found])
    assert (tmp_path / "page.md").read_text() == "Of its files\n13.0 % are read.\n"
    assert SCRIPT["differences"]() == []


def test_text_that_is_not_on_the_page_is_an_error():
    entry = {"page": "page.md", "text": "{} things", "values": [{"at": "a.json > b"}]}
    with pytest.raises(ValueError, match="0 times"):
        SCRIPT["spans"](entry, "no things")


def test_recipes_that_were_tried_have_the_shares_of_their_file():
    page = (REPOSITORY / "docs/studies/mini.md").read_text()
    section = page.split("## Codes and decoder of the first `mini`")[1].split("\n## ")[0]
    shown = set(re.findall(r"(\d\.\d{3}) \((\d\.\d{3})\)", section))
    tried = json.loads((REPOSITORY / "benchmarks/results/recipe.json").read_text())
    measured = set()
    for row in [*tried["quantizer"], *tried["decoder, on the first quantizer"]]:
        larger = next(value for name, value in row.items() if name.endswith("val and train items"))
        measured.add((f"{row['over phi']:.3f}", f"{larger:.3f}"))
        if row.get("set") == [] and "before tuning: over phi" in row:
            measured.add(
                (f"{row['before tuning: over phi']:.3f}", f"{row['before tuning, larger pool']:.3f}")
            )
    assert len(shown) > 15
    assert shown <= measured


def test_limits_on_the_deployment_page_are_those_of_the_server():
    page = (REPOSITORY / "docs/deploy.md").read_text()
    limits = Limits()
    assert f"client_max_body_size {limits.body // MB}m;" in page
    assert f"changes may take up to {limits.write_s:.0f} s" in page
    assert f"SIGTERM lets requests under way finish ({limits.stop_s} seconds at most)" in page
