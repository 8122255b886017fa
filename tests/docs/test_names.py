"""Modules, functions, files and recipes that README and docs name exist."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "benchmarks/data/README.md")),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
TEXTS = {str(page.relative_to(REPOSITORY)): page.read_text(encoding="utf-8") for page in PAGES}
MODULES = {name for text in TEXTS.values() for name in re.findall(r"`(genius(?:\.\w+)+(?::[\w.]+)?)`", text)}
MODULES -= {"genius.toml"}  # the user's file of defaults
TESTS = {
    name
    for text in TEXTS.values()
    for name in re.findall(r"`((?:tests|benchmarks|docs|recipes|src)/[\w./-]+)`", text)
}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_name_can_be_imported(name):
    """`genius.x.y` is a module or a public name of `genius`, `genius.x.y:Name.method` a part of a module."""
    module, _, path = name.partition(":")
    if not path and module.count(".") == 1 and module.split(".")[1] in __import__("genius").__all__:
        return
    found = import_module(module)
    if path:
        reduce(getattr, path.split("."), found)


@pytest.mark.parametrize("name", sorted(TESTS))
def test_file_exists(name):
    assert (REPOSITORY / name).exists()


@pytest.mark.parametrize("page", sorted(TEXTS))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", TEXTS[page])
    for link in links:
        target, _, anchor = link.partition("#")
        if "://" in link:
            continue
        file = (REPOSITORY / page).parent / target if target else REPOSITORY / page
        assert file.exists(), link
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file.read_text(encoding="utf-8")), link


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


def test_every_page_can_be_reached_from_the_readme():
    reached, waiting = set(), [REPOSITORY / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = re.findall(r"\]\(([^)\s#]+\.md)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        waiting += [(page.parent / link).resolve() for link in links if "://" not in link]
    assert {page for page in PAGES if page.parent.name == "docs"} <= reached


def test_readme_is_short_and_without_badges():
    lines = TEXTS["README.md"].splitlines()
    assert len(lines) <= 120
    assert not re.search(r"img\.shields\.io|badge", TEXTS["README.md"])


@pytest.mark.parametrize("page", sorted(TEXTS))
def test_page_has_no_private_words_and_no_history(page):
    words = r"\b(sketch\w*|promised?|shelf|twigs?|taught|schooling|lessons? learned|issue \d+)\b"
    assert re.findall(words, TEXTS[page], re.IGNORECASE) == []
