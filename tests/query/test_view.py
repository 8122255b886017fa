"""Views: samples are a function of the committed state; every item is looked at once per generation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from genius import Item, Modality
from genius.engine import Engine
from genius.query import fresh as fresh_ranges
from genius.query import modalities, view
from genius.query.modalities import ModalityCounts
from genius.store.records import MODALITIES, pack_modality


@given(st.lists(st.integers(0, 2), max_size=60))
def test_the_nth_item_of_a_modality_and_its_rank(kinds):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modalities, "BLOCK", 8)
        every = np.array(kinds, dtype=np.uint8)
        counts = ModalityCounts(pack_modality(every), len(every))
        np.testing.assert_array_equal(counts.of(np.arange(len(every))), every)
        for kind in range(3):
            there = np.flatnonzero(every == kind)
            assert counts.total(kind) == len(there)
            np.testing.assert_array_equal(counts.nth(kind, np.arange(len(there))), there)
            np.testing.assert_array_equal(counts.ranks(kind, there), np.arange(len(there)))


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 30), st.sampled_from(["text", "pair"])),
        st.tuples(st.just("remove"), st.integers(0, 30), st.just("")),
        st.tuples(st.just("compact"), st.just(0), st.just("")),
    ),
    max_size=25,
)


def words(number: int, fake) -> str:
    return f"{fake.COLOURS[number % 10]} word{number} other{number * 7}"


def change(engine: Engine, fake, what: str, number: int, kind: str) -> None:
    if what == "add":
        image = None if kind == "text" else Image.new("RGB", (4, 4), fake.COLOURS[number % 10])
        engine.add([Item(f"i{number}", image=image, text=words(number, fake))])
    elif what == "remove":
        engine.remove([f"i{number}"])
    else:
        engine.compact()


@pytest.mark.parametrize("vectors", [True, False])
@settings(deadline=None, max_examples=40)
@given(changes=CHANGES)
def test_scores_of_any_do_not_depend_on_what_the_process_did_before(fake, tmp_path_factory, vectors, changes):
    """An engine that saw every change answers as one that has just been opened: replicas agree."""
    folder = tmp_path_factory.mktemp("index") / "index"
    model = fake.FakeModel()
    with pytest.MonkeyPatch.context() as patch, Engine.create(folder, model, vectors=vectors) as old:
        patch.setattr(view, "SAMPLE", 3)
        patch.setattr(modalities, "BLOCK", 8)
        patch.setattr(fresh_ranges, "COARSE", 6)
        patch.setattr(fresh_ranges, "FINE", 2)
        for one in changes:
            change(old, fake, *one)
            old.search("red other7", k=5)  # takes samples of this state
        with Engine.open(folder, model=model) as fresh:
            assert old.search("red other7", k=50) == fresh.search("red other7", k=50)
            check_samples(fresh, model, vectors)


def check_samples(engine: Engine, model, vectors: bool) -> None:
    """The sample is spread evenly over the items of a modality in the order of their rows."""
    current = engine._current()
    rows = engine.index.truth.rows()
    records = [engine.index.truth.records([row])[row] for row in rows]
    present = [m for m in MODALITIES if any(record.modality is m for record in records)]
    assert current.present == present
    for modality in present:
        own = [record for record in records if record.modality is modality]
        picked = np.linspace(0, len(own) - 1, min(3, len(own))).astype(int)
        sample = current.sample(modality)
        if vectors:
            assert sample.vectors is not None and len(sample.vectors) == len(picked)
        else:
            np.testing.assert_array_equal(sample.codes, [own[number].codes for number in picked])


def test_a_view_is_kept_also_after_a_repair(fake, tmp_path, monkeypatch):
    """A repaired file counts its changes anew; a view of an older state of the same file is not kept."""
    with Engine.create(tmp_path / "index", fake.FakeModel()) as engine:
        engine.add([Item("red", text="red")])
        engine.add([Item("blue", text="blue")])
        own, kept = engine.index.snapshot(), engine._current()
        (file, change) = own.state
        stale = replace(own, state=(file, change - 1))
        monkeypatch.setattr(engine.index, "snapshot", lambda: stale)
        assert engine._current().snapshot is stale and engine._view is kept
        repaired = replace(own, state=((0, 0), 1))
        monkeypatch.setattr(engine.index, "snapshot", lambda: repaired)
        assert engine._current() is engine._current()


def test_every_item_is_looked_at_once_per_generation(fake, tmp_path, monkeypatch):
    """Later searches, and searches after small changes, cost nothing that grows with the pool."""
    blocks: list[int] = []
    own = ModalityCounts._block
    monkeypatch.setattr(ModalityCounts, "_block", lambda self, n: blocks.append(n) or own(self, n))
    checks: list[int] = []
    plain = view._level_zero_is

    def counted(trie, *arguments):
        checks.append(trie.items)
        return plain(trie, *arguments)

    monkeypatch.setattr(view, "_level_zero_is", counted)
    monkeypatch.setattr(modalities, "BLOCK", 8)
    monkeypatch.setattr(view, "SAMPLE", 2)
    with Engine.create(tmp_path / "index", fake.FakeModel()) as engine:
        engine.add([Item(f"t{number}", text=words(number, fake)) for number in range(80)])
        engine.compact()
        engine.search("red")
        engine.search("red", want=Modality.TEXT)
        assert blocks[:10] == list(range(10)) and len(blocks) <= 10 + 2
        assert checks.count(80) == 1
        for number in range(5):
            blocks.clear()
            checks.clear()
            engine.add([Item(f"new{number}", text="something new")])
            engine.search("red")
            engine.search("red", want=Modality.TEXT)
            assert len(blocks) <= 2  # those of the sample
            assert not checks
