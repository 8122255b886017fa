"""The engine over a changing index: overtaken searches are repeated, changes compacted, damage is named."""

from __future__ import annotations

import pytest

from genius import Item
from genius.engine import Engine, searching
from genius.errors import IndexCorrupt


@pytest.fixture
def engine(tmp_path, fake):
    with Engine.create(tmp_path / "index", fake.FakeModel()) as opened:
        opened.add([Item(f"item-{n}", text=f"red {n}") for n in range(20)])
        yield opened


@pytest.mark.parametrize("times", [1, 3])
def test_a_search_that_a_change_has_overtaken_is_repeated(engine, monkeypatch, times):
    """The best hits are removed between the ranking and the reading of their records."""
    removed = []
    real = searching.rank_page

    def overtaken(*arguments):
        ranked = real(*arguments)
        if len(removed) < times and not engine.index.truth.connection.in_transaction:
            rows = engine.index.truth.records([ranked[0].items[0].row])
            removed.extend(record.id for record in rows.values())
            engine.remove(removed)
        return ranked

    monkeypatch.setattr(searching, "rank_page", overtaken)
    hits = engine.search("red 3", k=10, want="text")
    assert removed
    assert len(hits) == 10 and not {hit.id for hit in hits} & set(removed)
    assert [hit.rank for hit in hits] == list(range(1, 11))


def test_adding_compacts_by_itself(engine):
    engine.add([Item(f"more-{n}", text=f"blue {n}") for n in range(1100)])
    assert engine.stats()["generation"] >= 1
    assert engine.stats()["fresh"] < 1000


def test_removing_compacts_by_itself(engine):
    engine.add([Item(f"more-{n}", text=f"blue {n}") for n in range(1100)])
    before = engine.compact()
    engine.remove([f"more-{n}" for n in range(1050)])
    assert engine.stats()["generation"] == before + 1
    assert engine.stats()["removed"] == 0


def test_rows_that_the_truth_does_not_have_are_damage(engine, monkeypatch):
    """Never a KeyError or an AssertionError: the user is told what mends it."""
    engine.compact()
    monkeypatch.setattr(engine.index.truth, "records", lambda rows: {})
    with pytest.raises(IndexCorrupt, match="check --repair"):
        engine.search("red", want="text")


def test_what_is_shown_of_an_item_is_verified(engine):
    with engine.index.truth.writing():
        engine.index.truth.connection.execute("UPDATE items SET codes = x'0000' WHERE id = 'item-3'")
    with pytest.raises(IndexCorrupt, match="check --repair"):
        engine.get("item-3")
    assert engine.get("item-4") is not None
