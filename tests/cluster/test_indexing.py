"""Ray with two workers makes the index that one process makes, also when a worker dies on the way."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="a cluster needs the extra `cluster`")

from genius.cluster.indexing import index_on_cluster
from genius.data.tables import read_items
from genius.engine import Engine

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


def run(engine: Engine, places: Any, **options: Any) -> Any:
    sources = [(str(place), str(place), ()) for place in places]
    return index_on_cluster(engine.index, sources, **{"workers": 2, "batches": 1, **options})


def test_two_workers_make_the_index_of_one_process(ray, kit, model, sources, plain, tmp_path):
    """Also: one of them is killed while it works, bad items are named, and the rest of a run is told."""
    killed: list[int] = []

    def kill_one(outcome: Any) -> None:
        if not killed and len(outcome.workers) == 2:
            name = next(iter(outcome.workers))
            killed.append(int(name.rpartition(":")[2]))
            os.kill(killed[0], signal.SIGKILL)

    with Engine.create(tmp_path / "index", model) as engine:
        outcome = run(engine, sources.values(), progress=kill_one, note_ids=True)
        assert killed
        added = outcome.added
        assert (added.added, added.updated, added.unchanged) == (24 + 148 + 90 + 20, 0, 0)
        assert added.report.skipped == 3
        reasons = dict(added.report.names)
        assert "not JSON" in reasons[f"{sources['jsonl']}:4"]
        assert "not one of JPEG, PNG" in reasons["broken.png"]
        assert sum(share.items for share in outcome.workers.values()) == added.done - 2  # two were no items
        assert all(share.rate > 0 for share in outcome.workers.values())
        assert [len(ids) for ids in outcome.seen] == [25, 148, 90, 20]
        assert engine.index.pinned().number == 1
    end = time.monotonic() + 60
    while any(b"KnownItems" in words for words in kit.processes_below(os.getpid()).values()):
        assert time.monotonic() < end, "a run leaves no process behind"
        time.sleep(0.1)
    assert not (tmp_path / "index" / "parts").exists()
    assert kit.rows_of(tmp_path / "index") == kit.rows_of(plain)
    assert kit.arrays_of(tmp_path / "index") == kit.arrays_of(plain)


def test_workers_code_with_what_was_fitted_to_the_index(ray, kit, tmp_path):
    """Vectors made elsewhere, into an index with fitted codes: as one process makes it."""
    noise = np.random.default_rng(0)
    rows = [{"id": f"i{n}", "vector": noise.standard_normal(16).tolist()} for n in range(300)]
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    for file, some in ((old, rows[:200]), (new, rows[200:])):
        file.write_text("".join(json.dumps(row) + "\n" for row in some))
    for name in ("one", "two"):
        with Engine.create(tmp_path / name, encoder="vectors", dim=16) as engine:
            engine.add(read_items(old), source=str(old))
            engine.fit(item_bytes=4)
            if name == "one":
                engine.add(read_items(new), source=str(new))
            else:
                assert run(engine, [new], workers=1).added.added == 100
            engine.compact()
    assert kit.rows_of(tmp_path / "two") == kit.rows_of(tmp_path / "one")
    assert kit.arrays_of(tmp_path / "two") == kit.arrays_of(tmp_path / "one")
