"""Fault 52: a fit is killed, or meets other writers: old codes or new ones, and the others are told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    script = Path(__file__).with_name("fit_worker.py")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script, tmp_path_factory.mktemp("fit")], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_killed_fit_leaves_old_codes_or_new_ones(found):
    assert len(found["killed"]) == 7
    for place, left in found["killed"].items():
        assert left["code"] == -signal.SIGKILL, f"{place} was not reached"
        assert left["state"] == (["new"] if place == "after-commit" else ["old"]), place
        assert left["clean"] and left["again"] == 300, place


def test_other_writers_are_told_who_fits_and_searches_go_on(found):
    together = found["together"]
    for writer in ("fit", "compact", "add", "remove"):
        assert together["pid"] in together[writer], writer
    assert together["search"] == "i7" and together["then"] == "300"
