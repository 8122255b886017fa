"""What the documents say about the code is true of it."""

import json
import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
NAMED = sorted(set(re.findall(r"`(genius[\w.]+:[\w.]+)`", (REPOSITORY / "docs" / "method.md").read_text())))


@pytest.mark.parametrize("name", NAMED)
def test_every_place_the_method_page_names_exists(name):
    module, path = name.split(":")
    assert callable(reduce(getattr, path.split("."), import_module(module)))


@pytest.mark.parametrize("page", ["README.md", "docs/method.md", "docs/design.md", "docs/scale.md"])
def test_links_lead_somewhere(page):
    text = (REPOSITORY / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not ((REPOSITORY / page).parent / link).exists()] == []


def test_every_recipe_in_the_readme_exists():
    named = re.findall(r"recipes/[\w-]+\.toml", (REPOSITORY / "README.md").read_text())
    assert named
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


def test_the_recipes_that_were_tried_have_the_shares_of_their_file():
    page = (REPOSITORY / "docs/design.md").read_text()
    section = page.split("## The recipe of `mini`")[1].split("\n## ")[0]
    said = re.findall(r"(\d\.\d{3}) \((\d\.\d{3})\)", section)
    tried = json.loads((REPOSITORY / "benchmarks/results/recipe.json").read_text())
    pairs = set()
    for row in [*tried["quantizer"], *tried["decoder, on the first quantizer"]]:
        larger = next(value for name, value in row.items() if name.endswith("val and train items"))
        pairs.add((f"{row['over phi']:.3f}", f"{larger:.3f}"))
        if row.get("set") == [] and "before tuning: over phi" in row:
            pairs.add((f"{row['before tuning: over phi']:.3f}", f"{row['before tuning, larger pool']:.3f}"))
    assert len(said) > 15
    assert not set(said) - pairs
