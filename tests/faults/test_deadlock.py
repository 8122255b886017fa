"""Fault 35: a search meets a damaged generation while an `add` begins, in two threads: both end."""

from __future__ import annotations

import shutil
import threading
from contextlib import contextmanager

import pytest

from genius import Item
from genius.engine import Engine

SECONDS = 20  # no step takes one of them; a deadlock takes all


def damage(index, kind: str) -> None:
    (generation,) = index.glob("generation-*")
    if kind == "missing":
        shutil.rmtree(generation)
    elif kind == "manifest":
        (generation / "manifest.json").write_bytes(b"{}")
    else:  # noticed only when a search reads the vectors
        file = generation / "vectors.bin"
        file.write_bytes(bytes(len(file.read_bytes())))


@pytest.fixture(params=["missing", "manifest", "vectors"])
def index(request, tmp_path, fake):
    """An index whose only generation is damaged."""
    with Engine.create(tmp_path / "index", fake.FakeModel()) as engine:
        engine.add([Item(colour, text=f"something {colour}") for colour in fake.COLOURS])
        engine.compact()
    damage(tmp_path / "index", request.param)
    return tmp_path / "index"


def run_both(*work):
    """Run each in a thread of its own; what they returned, once all have ended."""
    results: dict[int, object] = {}

    def keep(number, one):
        try:
            results[number] = one()
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=keep, args=pair, daemon=True) for pair in enumerate(work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    return [results[number] for number in range(len(work))]


def test_a_search_and_an_add_that_begins_both_end(index, fake, monkeypatch):
    """The add has begun to write and has no model yet when the search finds the damage."""
    writing, searching = threading.Event(), threading.Event()
    monkeypatch.setattr("genius.engine.opening.load_model", lambda name, device: fake.FakeModel())
    with Engine.open(index) as engine:
        own = engine.index.writing
        adder: list[int] = []

        @contextmanager
        def slow(*args, **options):
            if threading.get_ident() not in adder:
                searching.set()  # the search wants to build the generation anew
            with own(*args, **options):
                if threading.get_ident() in adder:
                    writing.set()
                    searching.wait(1)
                yield

        monkeypatch.setattr(engine.index, "writing", slow)

        def add():
            adder.append(threading.get_ident())
            return engine.add([Item("new", text="something red and new")]).added

        def search():
            assert writing.wait(SECONDS)
            return engine.search("red", want="text", k=3)

        added, hits = run_both(add, search)
        assert added == 1
        assert next(hit.id for hit in hits if hit.id != "new") == "red"
        assert len(engine.search("red", want="text", k=50)) == len(fake.COLOURS) + 1


def test_a_search_does_not_wait_for_a_whole_add(index, fake):
    """The add goes on until the search has answered."""
    searched, writing = threading.Event(), threading.Event()

    def items():
        yield Item("first", text="something new")
        writing.set()
        assert searched.wait(SECONDS), "the search waits for the add"

    with Engine.open(index, model=fake.FakeModel()) as engine:

        def search():
            assert writing.wait(SECONDS)
            hits = engine.search("red", want="text", k=1)
            searched.set()
            return hits

        added, hits = run_both(lambda: engine.add(items()), search)
        assert added.added == 1 and [hit.id for hit in hits] == ["red"]
    with Engine.open(index, model=fake.FakeModel()) as engine:  # what was built in memory is written now
        assert len(engine.search("red", want="text", k=50)) == len(fake.COLOURS) + 1
        assert engine.stats()["generation"] == 2
