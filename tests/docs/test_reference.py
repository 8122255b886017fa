"""Signatures in docs/python.md and routes in docs/http.md are those of the code."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import genius

REPOSITORY = Path(__file__).parents[2]


def test_pages_are_current():
    pytest.importorskip("fastapi", reason="the server needs the extra `serve`")
    script = runpy.run_path(str(REPOSITORY / "docs" / "reference.py"))
    for file, text in script["pages"]().items():
        assert file.read_text(encoding="utf-8") == text, "run `python docs/reference.py`"


def test_every_public_class_is_shown():
    page = (REPOSITORY / "docs" / "python.md").read_text(encoding="utf-8")
    missing = [name for name in genius.__all__ if f"**`{name}`**" not in page and name != "__version__"]
    assert missing == []
