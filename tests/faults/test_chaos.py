"""Fault 55: a minute of benchmarks/chaos.py; and its judge, which must know a wrong answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def judging(load_file: Callable[[Path], ModuleType]) -> ModuleType:
    return load_file(BENCHMARKS / "chaos_judge.py")


def to(**items: int) -> Any:
    return lambda _: dict(items)


def test_a_state_is_right_from_the_beginning_of_its_operation_to_the_end_of_the_next(judging) -> None:
    history = judging.History()
    history.begin(to(a=1), 10.0)
    assert history.allows({}, 9.0, 12.0) and history.allows({"a": 1}, 9.0, 12.0)
    history.acknowledge(13.0)
    assert history.allows({}, 12.0, 14.0) and history.allows({"a": 1}, 12.0, 14.0)
    assert not history.allows({}, 13.5, 14.0)  # asked after it was acknowledged
    assert not history.allows({"a": 1}, 8.0, 9.0)  # answered before it began
    assert not history.allows({"a": 2}, 12.0, 14.0)


def test_an_operation_of_unknown_outcome_leaves_both_states_until_the_index_is_read(judging) -> None:
    history = judging.History()
    history.begin(to(a=1), 1.0)
    history.acknowledge(2.0)
    history.begin(to(a=2), 3.0)
    history.give_up()
    assert history.allows({"a": 1}, 9.0, 9.0) and history.allows({"a": 2}, 9.0, 9.0)
    assert history.observe({"a": 1}, 10.0) == []
    assert history.allows({"a": 1}, 11.0, 11.0) and not history.allows({"a": 2}, 11.0, 11.0)


def test_what_was_acknowledged_and_is_not_there_is_lost(judging) -> None:
    judge = judging.Judge(("w",), delay=0.0)
    history = judge.histories["w"]
    history.begin(to(a=1, b=1), 1.0)
    history.acknowledge(2.0)
    judge.observe("w", {"a": 1})
    assert judge.lost == ["w: b is None, not 1"]
    judge.add(judging.Answer("reader", 3.0, 4.0, {"w": {"a": 7}}))
    judge.judge(everything=True)
    assert len(judge.wrong) == 1


@pytest.mark.slow
def test_half_a_minute_of_chaos() -> None:
    pytest.importorskip("ray", reason="a cluster needs the extra `cluster`")
    command = [sys.executable, str(BENCHMARKS / "chaos.py"), "--minutes", "0.5", "--out", "-"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-4000:]
    found = json.loads(done.stdout)
    assert found["wrong_answers"] == found["lost_acknowledged_items"] == found["unexpected"] == 0
    assert found["operations"]["writes"] > 5 and found["operations"]["searches"] > 25
    assert found["faults_injected"] > 5


@pytest.mark.parametrize("name", ["mutations.toml", "mutations_bench.toml"])
def test_every_sabotage_of_the_mutation_check_can_be_carried_out(name: str) -> None:
    """Its text is in the code once, and its tests are there; benchmarks/mutations.py runs them."""
    root = BENCHMARKS.parent
    entries = tomllib.loads((BENCHMARKS / name).read_text())["mutation"]
    assert len(entries) >= 25
    for entry in entries:
        assert (root / entry["file"]).read_text().count(entry["old"]) == 1, entry["name"]
        assert entry["old"] != entry["new"], entry["name"]
        for test in entry["tests"]:
            assert (root / test.partition("::")[0]).is_file(), (entry["name"], test)
