"""Fault 14: the driver of a cluster dies; run again, it makes the index that a single process makes.

A worker that dies is in test_indexing.py.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="a cluster needs the extra `cluster`")

from genius.data.tables import read_items
from genius.engine import Engine

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

GENIUS = [sys.executable, "-c", "from genius.cli import main; main()"]
LINES = 1200  # six parts: a loaded machine may commit several before the driver is killed


def committed(folder: Path) -> int:
    if not (folder / "index.sqlite").exists():
        return 0
    try:
        with sqlite3.connect(folder / "index.sqlite") as truth:
            return int(truth.execute("SELECT count(*) FROM items").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def kill_driver(words: list[str], folder: Path) -> None:
    """Run the command, and kill it as soon as it has committed something."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    driver = subprocess.Popen(
        [*GENIUS, *words], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 200
        while committed(folder) == 0 and driver.poll() is None:
            assert time.monotonic() < deadline, "nothing was committed"
            time.sleep(0.02)
        os.kill(driver.pid, signal.SIGKILL)
    finally:
        driver.communicate(timeout=60)


def test_a_killed_driver_is_run_again_and_redoes_only_what_was_not_published(
    genius, ray, kit, model, tmp_path
):
    source, alone, killed = (tmp_path / name for name in ("lines.jsonl", "alone", "killed"))
    texts = [kit.caption(number % 5) + f" {number}" for number in range(LINES)]
    source.write_text("\n".join(json.dumps({"id": f"i{n}", "text": text}) for n, text in enumerate(texts)))
    with Engine.create(alone, model) as engine:
        engine.add(read_items(source), source=str(source))
        engine.compact()
    words = ["index", str(source), "--to", str(killed), "--model", str(model), "--format", "json"]
    words += ["--cluster", ray.get_runtime_context().gcs_address, "--workers"]
    kill_driver([*words, "2"], killed)
    safe = committed(killed)
    assert 0 < safe < LINES
    done = genius(*words, "1")  # as many as are there when it is run again
    assert json.loads(done.out) == {"added": LINES - safe, "updated": 0, "unchanged": safe, "repeated": 0,
                                    "skipped": 0, "removed": 0, "ignored": {}, "long_texts": 0,
                                    "items": LINES}  # fmt: skip
    assert kit.rows_of(killed) == kit.rows_of(alone)
    assert kit.arrays_of(killed) == kit.arrays_of(alone)
