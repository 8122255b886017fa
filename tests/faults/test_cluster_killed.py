"""Fault 14: the driver of a cluster dies; run again, it makes the index that a single process makes.

A worker that dies is in tests/cluster/test_indexing.py.
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
from typing import Any

import pytest

pytest.importorskip("ray", reason="a cluster needs the extra `cluster`")
pytestmark = pytest.mark.xdist_group("ray")

GENIUS = [sys.executable, "-c", "from genius.cli import main; main()"]
LINES = 1200


def index(source: Path, to: Path, *more: str) -> subprocess.Popen[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*GENIUS, "index", str(source), "--to", str(to), "--format", "json", *more]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def committed(folder: Path) -> int:
    if not (folder / "index.sqlite").exists():
        return 0
    try:
        with sqlite3.connect(folder / "index.sqlite") as truth:
            return int(truth.execute("SELECT count(*) FROM items").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def rows(folder: Path) -> list[Any]:
    truth = sqlite3.connect(folder / "index.sqlite")
    found = truth.execute(
        "SELECT row, id, text, meta, hash, codes, vector FROM items ORDER BY row"
    ).fetchall()
    truth.close()
    return found


def arrays(folder: Path) -> dict[str, bytes]:
    (generation,) = folder.glob("generation-*")
    return {file.name: file.read_bytes() for file in generation.glob("*.bin")}


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    summary: dict[str, Any] = json.loads(out)
    return summary


def test_a_killed_driver_is_run_again_and_redoes_only_what_was_not_published(tmp_path):
    source = tmp_path / "lines.jsonl"
    colours = ("red", "green", "blue", "yellow", "black")
    texts = [f"{n} " + " ".join(colours[: 1 + n % 5]) for n in range(LINES)]
    source.write_text("\n".join(json.dumps({"id": f"i{n}", "text": text}) for n, text in enumerate(texts)))
    alone = index(source, tmp_path / "alone")
    assert ended(alone)["added"] == LINES
    first = index(source, tmp_path / "killed", "--cluster", "local", "--workers", "2")
    try:
        deadline = time.monotonic() + 200
        while committed(tmp_path / "killed") == 0 and first.poll() is None:
            assert time.monotonic() < deadline, "nothing was committed"
            time.sleep(0.02)
        os.kill(first.pid, signal.SIGKILL)
    finally:
        first.communicate(timeout=60)
    safe = committed(tmp_path / "killed")
    assert 0 < safe < LINES
    second = index(source, tmp_path / "killed", "--cluster", "local", "--workers", "2")
    summary = ended(second)
    assert summary == {"added": LINES - safe, "updated": 0, "unchanged": safe, "repeated": 0,
                       "skipped": 0, "removed": 0, "ignored": {}, "items": LINES}  # fmt: skip
    assert rows(tmp_path / "killed") == rows(tmp_path / "alone")
    assert arrays(tmp_path / "killed") == arrays(tmp_path / "alone")
