"""Fault 11: Ctrl-C and SIGTERM while indexing: the batch is committed or dropped, the exit code tells."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from genius.store.check import check
from genius.store.index import Index

PROGRAM = Path(__file__).parents[1] / "cli" / "fake_model.py"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
@pytest.mark.parametrize("delay", [0.0, 0.3])
def test_a_stopped_index_keeps_whole_batches_and_can_go_on(tmp_path, number, code, delay):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for n in range(300):
        Image.new("RGB", (8, 8), (n % 256, n // 2, 99)).save(pictures / f"{n:03d}.png")
    command = [sys.executable, str(PROGRAM), "index", str(pictures), "--to", str(tmp_path / "idx")]
    process = subprocess.Popen(
        command,
        env={**os.environ, "FAKE_MODEL_SECONDS": "0.2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "idx" / "index.sqlite").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    time.sleep(0.1 + delay)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code, err
    assert out == "" and "Run the same command to resume" in err and "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # no orphan in its session
    with Index.open(tmp_path / "idx") as index:
        kept = sum(index.truth.counts().values())
    assert kept % 64 == 0 and kept < 300
    assert check(tmp_path / "idx").clean
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=True)
    summary = json.loads(done.stdout)
    assert summary["items"] == 300 and summary["added"] == 300 - kept


def test_sigkill_of_index_is_resumed(tmp_path):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for n in range(200):
        Image.new("RGB", (8, 8), (n, 255 - n, 99)).save(pictures / f"{n:03d}.png")
    command = [
        sys.executable,
        str(PROGRAM),
        "index",
        str(pictures),
        "--to",
        str(tmp_path / "idx"),
        "--format",
        "json",
    ]
    process = subprocess.Popen(
        command, env={**os.environ, "FAKE_MODEL_SECONDS": "0.2"}, stdout=subprocess.DEVNULL
    )
    while not (tmp_path / "idx" / "index.sqlite").exists():
        time.sleep(0.01)
    time.sleep(0.5)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    summary = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert summary["items"] == 200
    assert check(tmp_path / "idx").clean


@pytest.mark.parametrize("place", ["during-build", "after-rename", "before-generation-commit"])
def test_a_killed_compaction_leaves_the_answers_as_they_were(
    genius, fake_loaded, tmp_path, monkeypatch, place
):
    """The same failpoints as for the store alone, now with the trie and through the command line."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for n in range(12):
        Image.new("RGB", (8, 8), (20 * n, 255 - 20 * n, 99)).save(pictures / f"{n:02d}.png")
    monkeypatch.setenv("GENIUS_INDEX", str(tmp_path / "idx"))
    assert genius("index", pictures).code == 0
    assert genius("remove", "03.png", "04.png").out == "removed 2\n"
    ask = ("search", "red", "--want", "image", "-k", "12", "--format", "json")
    before = genius(*ask).out
    assert len(json.loads(before)) == 10
    compact = [sys.executable, str(PROGRAM), "compact"]
    killed = subprocess.run(compact, env={**os.environ, "GENIUS_FAILPOINT": place}, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert genius(*ask).out == before
    assert genius("check").code == 0
    assert genius("compact").code == 0
    assert genius(*ask).out == before
