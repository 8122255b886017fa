"""`genius search` for eyes and other programs: pages, pictures, paths by NUL, many queries, defaults."""

from __future__ import annotations

import base64
import json
import re
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from genius.cli.pictures import ROWS, protocol, terminal_picture


@pytest.fixture
def indexed(genius, pictures, monkeypatch):
    monkeypatch.delenv("GENIUS_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(pictures / "nothing"))
    assert genius("index", pictures).code == 0
    return genius


def test_a_page_of_pictures_in_one_file(indexed, pictures):
    (pictures / "evil.txt").write_text("<img src=x onerror=alert(1)> red")
    indexed("index", pictures)
    page = indexed("search", "red", "-k", "30", "--format", "html").out
    first = re.search(r'data:image/jpeg;base64,([^"]+)"', page)
    assert first is not None
    assert Image.open(BytesIO(base64.b64decode(first[1]))).convert("RGB").getpixel((2, 2))[0] > 200
    assert (pictures / "red.png").as_uri() in page and "<h1>red</h1>" in page
    assert "<img src=x" not in page and "&lt;img src=x" in page
    assert not re.search(r'(src|href)="https?:', page)


def test_open_shows_the_page_in_the_browser(indexed, monkeypatch, tmp_path):
    shown = []
    monkeypatch.setattr("webbrowser.open", lambda address: shown.append(address) or True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = indexed("search", "red", "--open")
    file = Path(done.out.strip())
    assert shown == [file.as_uri()] and "red.png" in file.read_text() and done.err == ""
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    assert "open this file yourself" in indexed("search", "red", "--open").err


def test_paths_by_nul_are_those_of_the_file_system(indexed, pictures):
    odd = pictures / "new\nline.png"
    Image.new("RGB", (8, 8), "red").save(odd)
    indexed("index", pictures)
    done = indexed("search", "red", "--want", "image", "-k", "2", "-0")
    paths = done.out.split("\0")
    assert set(paths) == {str(odd), str(pictures / "red.png"), ""}


def test_many_queries_from_a_file(indexed, tmp_path, pictures):
    file = tmp_path / "queries.txt"
    blue = json.dumps({"id": "b", "image": str(pictures / "blue.png"), "want": "image"})
    file.write_text(f"red\n\n{blue}\n")
    ask = ("search", "--queries", file, "-k", "1", "--format")
    first, second = json.loads(indexed(*ask, "json").out)
    assert first["query"] == "1" and second["query"] == "b" and second["hits"][0]["id"] == "blue.png"
    lines = [json.loads(line) for line in indexed(*ask, "jsonl").out.splitlines()]
    assert [line["query"] for line in lines] == ["1", "b"]
    assert [line.split()[0] for line in indexed(*ask, "trec").out.splitlines()] == ["1", "b"]
    table = indexed(*ask, "table").out
    assert "1: red" in table and "b: " in table
    assert indexed("search", "red", "--queries", file).code == 2
    file.write_text('{"text": 5}\n')
    wrong = indexed(*ask, "json")
    assert wrong.code == 2 and "queries.txt:1" in wrong.err
    file.write_text("\n")
    assert "no queries" in indexed(*ask, "json").err
    missing = indexed("search", "--queries", tmp_path / "none.txt")
    assert missing.err == f"genius: cannot read {tmp_path / 'none.txt'}: No such file or directory\n"
    file.write_text('red\n{"text": "a"\n')
    wrong = indexed(*ask, "json").err
    assert "queries.txt:2: not JSON: Expecting ',' delimiter at character 13" in wrong
    assert "line 1" not in wrong


def test_defaults_come_from_a_file(indexed, tmp_path, monkeypatch):
    (tmp_path / "genius.toml").write_text('[search]\nk = 2\nformat = "jsonl"\nwant = "image"\n')
    assert len(indexed("search", "red").out.splitlines()) == 2
    assert len(indexed("search", "red", "-k", "3").out.splitlines()) == 3
    other = tmp_path / "other.toml"
    other.write_text('[search]\nlimit = 1\nformat = "paths"\nwant = "image"\n')
    monkeypatch.setenv("GENIUS_CONFIG", str(other))
    assert indexed("search", "red").out.splitlines() == [str(tmp_path / "pictures" / "red.png")]
    for text, said in (
        ("[search]\nkk = 2", "no option 'kk'"),
        ("[find]\nk = 2", "is no verb"),
        ("[", "cannot be"),
    ):
        other.write_text(text)
        wrong = indexed("search", "red")
        assert wrong.code == 2 and said in wrong.err


def test_pictures_in_the_terminal(indexed, monkeypatch):
    for name in ("KITTY_WINDOW_ID", "TERM_PROGRAM", "LC_TERMINAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    out = indexed("search", "red", "--want", "image", "-k", "1", "--pictures").out
    assert out.count("▀") >= ROWS and "red.png" in out
    red = [int(part) for part in re.search(r"38;2;(\d+);(\d+);(\d+)", out).groups()]
    assert red[0] > 200 and red[1] < 60


def test_each_terminal_gets_what_it_reads():
    assert protocol({"TERM": "xterm-kitty"}) == "kitty" and protocol({"TERM_PROGRAM": "iTerm.app"}) == "iterm"
    assert protocol({"TERM": "foot"}) == "sixel" and protocol({}) == "blocks"
    buffer = BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (120, 160, 3), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, "JPEG")
    jpeg = buffer.getvalue()
    kitty = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", terminal_picture(jpeg, "kitty"))
    assert len(kitty) > 1 and kitty[0][0].endswith("m=1") and kitty[-1][0] == "m=0"
    assert Image.open(BytesIO(base64.b64decode("".join(data for _, data in kitty)))).format == "PNG"
    iterm = re.fullmatch(r"\x1b]1337;File=inline=1;[^:]*:([^\a]*)\a\n", terminal_picture(jpeg, "iterm"))
    assert iterm is not None and base64.b64decode(iterm[1]) == jpeg
    sixel = terminal_picture(jpeg, "sixel")
    assert sixel.startswith("\x1bPq#0;2;") and sixel.endswith("\x1b\\\n")
    assert len(sixel.split("-")) == 24  # bands of six lines
