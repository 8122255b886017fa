"""The soak test of the benchmarks, for seconds: changes, searches and bursts of 200 on one server."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROGRAM = (sys.executable, str(Path(__file__).parents[1] / "cli" / "fake_model.py"))


def test_answers_under_traffic_are_of_committed_states_and_memory_is_flat(tmp_path, monkeypatch):
    """Faults 27 and 32; `python benchmarks/soak.py --minutes 10` does the same for longer."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    server_file, soak_file = (importlib.import_module(name) for name in ("server", "soak"))
    server_file.fill(tmp_path / "index", 20, PROGRAM)
    server = server_file.Server(tmp_path / "index", PROGRAM)
    try:
        found = soak_file.soak(server, minutes=0.07, pause=1.0)
    finally:
        server.stop()
    assert found["answers"] > 20 and found["states"] > 10 and found["burst_answers"] > 100
    assert found["wrong"] == 0 and found["failed"] == []
    assert set(found["refused"]) <= {"429", "503"}
    assert found["memory_growth"] < 1.2
