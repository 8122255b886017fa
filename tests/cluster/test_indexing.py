"""Ray with two workers makes the index that one process makes, also when a worker dies on the way."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="a cluster needs the extra `cluster`")

from genius.cluster.indexing import index_on_cluster
from genius.cluster.parts import PartStore, part_name
from genius.cluster.wire import pack_batches
from genius.data.tables import read_items
from genius.engine import Engine
from genius.errors import BadInput
from genius.types import Item

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
    assert not (tmp_path / "index" / "parts").exists()
    assert kit.rows_of(tmp_path / "index") == kit.rows_of(plain)
    assert kit.arrays_of(tmp_path / "index") == kit.arrays_of(plain)


def test_a_second_run_encodes_only_what_has_changed(ray, kit, model, sources, tmp_path):
    file = tmp_path / "lines.jsonl"
    lines = sources["jsonl"].read_text().replace("folder/", f"{sources['folder']}/").splitlines()
    file.write_text("\n".join(lines[:70]))
    with Engine.create(tmp_path / "index", model) as engine:
        first = run(engine, [file])
        assert first.encoded == first.added.added == 69
        changed = lines[20].replace("number", "thing")
        file.write_text("\n".join([*lines[:20], changed, *lines[21:80], lines[0]]))
        again = run(engine, [file])
        assert (again.encoded, again.added.added, again.added.updated) == (11, 10, 1)
        assert again.added.unchanged == 68 + 1  # the line that came twice had not changed
        assert [name for name, why in again.added.report.names if "listed twice" in why] == ["l0"]
        assert engine.stats()["items"] == 79


def test_what_a_worker_kept_is_not_encoded_again(ray, kit, model, sources, plain, tmp_path, monkeypatch):
    """The driver dies before it commits anything: the next one finds the parts."""

    class Dead(Exception):
        pass

    def die(*_: Any) -> None:
        raise Dead

    with Engine.create(tmp_path / "index", model) as engine:
        with monkeypatch.context() as patch:
            patch.setattr("genius.cluster.indexing._take", die)
            with pytest.raises(Dead):
                run(engine, sources.values())
        left = list((tmp_path / "index" / "parts").glob("*.part"))
        assert left and engine.stats()["items"] == 0
        left[0].write_bytes(left[0].read_bytes()[:-100])  # torn: it is made anew
        outcome = run(engine, sources.values())
        assert outcome.added.added == 282
        assert outcome.encoded < 282
    assert kit.rows_of(tmp_path / "index") == kit.rows_of(plain)
    assert kit.arrays_of(tmp_path / "index") == kit.arrays_of(plain)


def test_an_object_store_gives_what_files_give(ray, kit, model, sources, tmp_path):
    """Sources, images and parts behind URIs, read through fsspec."""
    root = sources["folder"].parent
    with Engine.create(tmp_path / "index", model, vectors=False) as engine:
        places = [f"local://{sources['folder']}", f"local://{root}/rows.parquet"]
        outcome = run(engine, places, parts=f"local://{tmp_path}/elsewhere", workers=1)
        assert (outcome.added.added, outcome.added.report.skipped) == (114, 1)
        record = engine.get("inner/003.png")
        assert record is not None and record.text == kit.caption(3)
        assert f"local://{sources['folder']}/inner/003.png" in record.meta
        assert engine.thumbnail("inner/003.png")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_source_that_cannot_be_read_ends_the_run(ray, model, sources, tmp_path):
    bad = tmp_path / "bad.tar"
    bad.write_bytes(b"x" * 5000)
    with Engine.create(tmp_path / "index", model) as engine:
        with pytest.raises(BadInput, match=r"bad\.tar: cannot be read .*what was committed is safe"):
            run(engine, [bad], workers=1)
        assert engine.stats()["items"] == 0


def test_parts_are_there_whole_or_not_at_all(tmp_path: Path) -> None:
    parts = PartStore(str(tmp_path / "parts"), owned=True)
    name = part_name("source", 0, "f" * 64, True)
    assert parts.read(name) is None
    parts.write(name, pack_batches([]))
    assert parts.read(name) == []
    parts.write(name, pack_batches([])[:-9])
    assert parts.read(name) is None
    parts.delete(name)
    parts.close()
    assert not (tmp_path / "parts").exists()


def test_only_our_own_files_are_removed(tmp_path: Path) -> None:
    """Fault 43: `--parts` may name a folder that has other things in it, too."""
    theirs = {
        "thesis.partial.docx": b"years of work",
        "notes.part": b"x",
        "a.part.begun": b"xxx",
        "0123456789abcdef-00000000.part": b"a name like ours",
        "0123456789abcdef-00000001.part.begun": b"no mark",
        "0123456789abcdef-00000002.part.partial": b"something else",
    }
    for name, data in theirs.items():
        (tmp_path / name).write_bytes(data)
    parts = PartStore(str(tmp_path))
    names = [part_name("source", number, "f" * 64, True) for number in range(4)]
    parts.write(names[0], pack_batches([]))
    parts.begin(names[1])
    (tmp_path / f"{names[2]}.partial").write_bytes(pack_batches([])[:40])  # its worker was killed
    (tmp_path / f"{names[3]}.partial").write_bytes(b"")
    (tmp_path / part_name("link", 0, "f" * 64, True)).symlink_to(tmp_path / "notes.part")
    parts.close()
    left = {file.name: file.read_bytes() for file in tmp_path.iterdir() if not file.is_symlink()}
    assert left == theirs
    empty = tmp_path / "empty"
    empty.mkdir()
    PartStore(str(empty)).close()
    assert empty.exists(), "a folder of the user's stays"


def test_a_part_that_was_given_up_loses_no_item(ray, kit, model, tmp_path) -> None:
    """Fault 43: its items are not encoded again, but they are still there: --prune must keep them."""
    from genius.cluster import encoding

    file = tmp_path / "lines.jsonl"
    file.write_text("\n".join(json.dumps({"id": f"i{n}", "text": kit.caption(n)}) for n in range(5)))
    with Engine.create(tmp_path / "index", model) as engine:
        assert run(engine, [file], workers=1).added.added == 5
        parts = PartStore(str(tmp_path / "index" / "parts"))
        for _ in range(encoding.ATTEMPTS):
            parts.begin(part_name(str(file), 0, engine.index.settings["fingerprint"], True))
        outcome = run(engine, [file], workers=1, note_ids=True)
        assert outcome.added.report.skipped == 5
        assert engine.prune(str(file), outcome.seen[0]) == 0
        assert engine.stats()["items"] == 5


def test_what_ends_every_worker_is_left_out(tmp_path: Path, monkeypatch) -> None:
    """A worker begins a part that ended others before it: it does not read it, but names it."""
    from genius.cluster import encoding
    from genius.cluster.reading import SourceSpec

    worker = object.__new__(encoding.EncodingWorker)
    worker.parts = PartStore(str(tmp_path / "parts"))
    worker.job = encoding.EncodingJob("m", "f" * 64, "cpu", True, "", (SourceSpec("s.jsonl", "s"),), None)
    for before in range(encoding.ATTEMPTS):
        assert worker.parts.begin(part_name("s", 0, "f" * 64, True)) == before
    done = worker._part({"source": 0, "number": 0}, [[Item("bad", text="x")]])
    assert done["ids"] == ["bad"]
    assert done["counts"] == [[0, 0, 0, [("bad", encoding.DEADLY)]]] and not done["part"]
    assert worker.parts.begin(part_name("s", 0, "f" * 64, True)) == 0


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
                assert run(engine, [new]).added.added == 100
            engine.compact()
    assert kit.rows_of(tmp_path / "two") == kit.rows_of(tmp_path / "one")
    assert kit.arrays_of(tmp_path / "two") == kit.arrays_of(tmp_path / "one")
