"""The driver of a cluster and one worker in this process: what they encode, keep, commit and refuse.

Ray only carries values between them; test_indexing.py runs both on Ray.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="a cluster needs the extra `cluster`")

from genius.cluster import encoding, indexing
from genius.cluster.parts import PartStore, part_name
from genius.cluster.reading import SourceSpec, read_parts
from genius.cluster.session import ray_module
from genius.cluster.wire import pack_batches
from genius.engine import Engine
from genius.errors import BadInput
from genius.store.connection import INDEX_FILE
from genius.store.index import Index
from genius.types import Item


class Worker(encoding.EncodingWorker):
    """A worker that asks the index itself."""

    def _known(self, ids: Any) -> Any:
        return self.job.known_items.known(ids)


def answers(
    ray: Any, index: Index, sources: Any, parts: str, workers: int, gpus: Any, batches: int
) -> Generator[dict[str, Any], None, None]:
    """What Ray gives the driver, in order."""
    specs = tuple(SourceSpec(name, label, tuple(exclude)) for name, label, exclude in sources)
    known = encoding.KnownItems(str(index.folder / INDEX_FILE))
    worker = Worker(indexing.encoding_job(index, specs, parts, known))
    try:
        for place, source in enumerate(specs):
            for table in read_parts(place, source, batches):
                yield from map(worker, table.to_pylist())
    finally:
        worker.readers.shutdown()
        known.truth.close()


@contextmanager
def not_connected(address: str, cpus: int | None) -> Iterator[Any]:
    yield ray_module()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A run without Ray."""
    monkeypatch.setattr(indexing, "_rows", answers)
    monkeypatch.setattr(indexing, "connected", not_connected)

    def run(engine: Engine, places: Any, **options: Any) -> Any:
        sources = [(str(place), str(place), ()) for place in places]
        return indexing.index_on_cluster(engine.index, sources, batches=1, **options)

    return run


def test_a_second_run_encodes_only_what_has_changed(run, model, sources, tmp_path):
    file = tmp_path / "lines.jsonl"
    lines = sources["jsonl"].read_text().replace("folder/", f"{sources['folder']}/").splitlines()
    file.write_text("\n".join(lines[:70]))
    with Engine.create(tmp_path / "index", model, vectors=False) as engine:
        first = run(engine, [file])
        assert first.encoded == first.added.added == 69
        changed = lines[20].replace("number", "thing")
        file.write_text("\n".join([*lines[:20], changed, *lines[21:80], lines[0]]))
        again = run(engine, [file])
        assert (again.encoded, again.added.added, again.added.updated) == (11, 10, 1)
        assert again.added.unchanged == 68 + 1  # the line that came twice had not changed
        assert [name for name, why in again.added.report.names if "listed twice" in why] == ["l0"]
        assert engine.stats()["items"] == 79


def test_what_a_worker_kept_is_not_encoded_again(run, kit, model, sources, plain, tmp_path, monkeypatch):
    """The driver dies at the fourth part, before it commits anything: the next one finds the parts."""

    class Dead(Exception):
        pass

    offered: list[Any] = []

    def die(*offer: Any) -> None:
        offered.append(offer)
        if len(offered) == 4:
            raise Dead

    with Engine.create(tmp_path / "index", model) as engine:
        with monkeypatch.context() as patch:
            patch.setattr("genius.cluster.indexing._take", die)
            with pytest.raises(Dead):
                run(engine, sources.values())
        left = list((tmp_path / "index" / "parts").glob("*.part"))
        assert len(left) > 1 and engine.stats()["items"] == 0
        left[0].write_bytes(left[0].read_bytes()[:-100])  # torn: it is made anew
        outcome = run(engine, sources.values())
        assert outcome.added.added == 282
        assert outcome.encoded < 282
    assert kit.rows_of(tmp_path / "index") == kit.rows_of(plain)
    assert kit.arrays_of(tmp_path / "index") == kit.arrays_of(plain)


def test_a_source_that_cannot_be_read_ends_the_run(run, model, tmp_path):
    bad = tmp_path / "bad.tar"
    bad.write_bytes(b"x" * 5000)
    with Engine.create(tmp_path / "index", model) as engine:
        with pytest.raises(BadInput, match=r"bad\.tar: cannot be read .*what was committed is safe"):
            run(engine, [bad])
        assert engine.stats()["items"] == 0


def test_a_part_that_was_given_up_loses_no_item(run, kit, model, tmp_path) -> None:
    """Fault 43: its items are not encoded again, but they are still there: --prune must keep them."""
    file = tmp_path / "lines.jsonl"
    file.write_text("\n".join(json.dumps({"id": f"i{n}", "text": kit.caption(n)}) for n in range(5)))
    with Engine.create(tmp_path / "index", model) as engine:
        assert run(engine, [file]).added.added == 5
        parts = PartStore(str(tmp_path / "index" / "parts"))
        for _ in range(encoding.ATTEMPTS):
            parts.begin(part_name(str(file), 0, engine.index.settings["fingerprint"], True))
        outcome = run(engine, [file], note_ids=True)
        assert outcome.added.report.skipped == 5
        assert engine.prune(str(file), outcome.seen[0]) == 0
        assert engine.stats()["items"] == 5


def test_what_ends_every_worker_is_left_out(tmp_path: Path, monkeypatch) -> None:
    """A worker begins a part that ended others before it: it does not read it, but names it."""
    worker = object.__new__(encoding.EncodingWorker)
    worker.parts = PartStore(str(tmp_path / "parts"))
    worker.job = encoding.EncodingJob(
        model="m", fingerprint="f" * 64, device="cpu", vectors=True, split_texts=False, parts="",
        sources=(SourceSpec("s.jsonl", "s"),), known_items=None,
    )  # fmt: skip
    for before in range(encoding.ATTEMPTS):
        assert worker.parts.begin(part_name("s", 0, "f" * 64, True)) == before
    done = worker._part({"source": 0, "number": 0}, [[Item("bad", text="x")]])
    assert done["ids"] == ["bad"]
    assert done["counts"] == [[0, 0, 0, [("bad", encoding.DEADLY)]]] and not done["part"]
    assert worker.parts.begin(part_name("s", 0, "f" * 64, True)) == 0


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


def test_long_texts_are_in_passages_as_in_one_process(run, model, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    text = " ".join(
        f"Sentence {n} says something of its own about dogs, snow and mountains." for n in range(20)
    )
    file.write_text(
        json.dumps({"id": "long", "text": text}) + "\n" + json.dumps({"id": "short", "text": "red"})
    )
    spans = {}
    for name in ("plain", "cluster"):
        with Engine.create(tmp_path / name, model, split_texts=True) as engine:
            if name == "cluster":
                assert run(engine, [file]).added.added == 2
            else:
                engine.add_from(file)
            passages = engine.index.truth.passages(1)
            assert passages is not None and engine.index.truth.passages(1 + len(passages.spans)) is None
            spans[name] = passages.columns()
    assert spans["plain"] == spans["cluster"]
