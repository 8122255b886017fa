"""The command line in this process, with a model whose answers can be foreseen."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image


@pytest.fixture
def genius(genius, fake_loaded):
    """Runs `genius ARGUMENTS` in an empty folder, with the fake model in place of every other."""
    return genius


@pytest.fixture
def pictures(tmp_path, fake) -> Path:
    """A folder with one picture of each colour, one of them with a caption, and a note."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for colour in fake.COLOURS:
        Image.new("RGB", (32, 24), colour).save(folder / f"{colour}.png")
    (folder / "purple.txt").write_text("a purple thing")
    (folder / "note.txt").write_text("something red")
    return folder
