"""The command line in this process, with a model whose answers can be foreseen."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def genius(fake, monkeypatch, capsys, tmp_path) -> Iterator[Callable[..., Done]]:
    """Runs `genius ARGUMENTS` in an empty folder."""
    from genius import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GENIUS_INDEX", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(
        "genius.engine.opening.load_model", lambda name, device="cpu": fake.FakeModel(str(name))
    )
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["genius", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return Done(0 if code is None else int(code), out, err)

    yield run
    signal.signal(signal.SIGTERM, before)


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
