"""The index of words has the words of the items as they are now, whatever was done to them."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from genius.store import words
from genius.store.check import check, repair
from genius.store.index import Index
from genius.store.records import Amendment, Record, Stamp
from genius.types import Modality


def record(id: str, text: str | None = None, meta: str = "{}", path: str | None = None) -> Record:
    return Record(id, Modality.TEXT, np.zeros(1, np.uint16), text=text, meta=meta, path=path)


@pytest.fixture
def index(tmp_path):
    Index.create(tmp_path / "index", model="m", fingerprint="f", sizes=[2], dim=1, vectors=False)
    with Index.open(tmp_path / "index") as opened:
        yield opened


def ids(index: Index, word: str, table: str = "words") -> set[str]:
    query = f"SELECT id FROM items WHERE row IN (SELECT rowid FROM {table} WHERE {table} MATCH ?)"
    with index.truth.use():
        return {id for (id,) in index.truth.connection.execute(query, (f'"{word}"',))}


def test_name_text_and_metadata_are_indexed(index):
    index.add(
        [
            record(
                "a", "Ein Sofá", '{"sku": "AB-1", "ean": 4006381333931, "price": 12, "uri": "http://x.org/q"}'
            ),
            record("b", path="/shop/KX-77.jpg"),
        ]
    )
    assert ids(index, "sofa") == ids(index, "AB") == ids(index, "4006381333931") == {"a"}
    assert ids(index, "kx") == {"b"}
    assert not ids(index, "12") | ids(index, "org") | ids(index, "shop")
    assert ids(index, "ofá", "trigrams") == {"a"}


def test_changes_of_items_change_their_words(index):
    index.add([record("a", "red chair"), record("b", "blue chair")])
    index.add([record("a", "green chair")])
    assert not ids(index, "red") and ids(index, "green") == {"a"}
    index.remove(["b"])
    assert ids(index, "chair") == {"a"}
    row, _ = index.truth.record("a")
    index.add([], [Amendment(row, None, None, '{"maker": "Acme"}', Stamp())])
    assert ids(index, "acme") == {"a"}
    index.compact()
    assert index.truth.words_agree() and check(index.folder).clean


def test_an_older_index_gets_its_words_with_the_next_change(index):
    index.add([record("a", "red chair")])
    with index.writing(), index.truth.writing():
        for table in words.TABLES:
            index.truth.connection.execute(f"DROP TABLE {table}")
        index.truth.connection.execute("DELETE FROM meta WHERE key = 'words'")
    assert not index.truth.has_words() and check(index.folder).clean
    index.remove(["nobody"])
    index.add([record("b", "blue chair")])
    assert ids(index, "chair") == {"a", "b"} and index.truth.words_agree()


def test_without_fts5_items_are_stored_and_words_are_not(index, monkeypatch):
    index.add([record("a", "red")])
    monkeypatch.setattr(words, "supported", lambda: False)
    index.add([record("b", "blue")])
    assert not index.truth.has_words() and len(index.truth.rows()) == 2
    monkeypatch.undo()
    index.add([record("c", "cyan")])
    assert ids(index, "blue") == {"b"}


def test_check_finds_an_index_of_words_that_lacks_some_and_repair_makes_it_again(index):
    index.add([record(f"i{n}", f"chair {n}") for n in range(20)])
    index.compact()
    with index.writing(), index.truth.writing():
        words.remove(index.truth.connection, [words.ItemWords(3, "i2", None, "chair 2", "{}")])
    index.close()
    assert check(index.folder).cache == ["cache: the index of words does not agree with the items"]
    repair(index.folder)
    assert check(index.folder).clean
    with Index.open(index.folder) as again:
        assert len(ids(again, "chair")) == 20


def test_a_damaged_index_of_words_is_given_up_and_made_again(index):
    index.add([record("a", "red chair")])
    with index.writing(), index.truth.writing():
        index.truth.connection.execute("UPDATE words_data SET block = zeroblob(40)")
    index.add([record("b", "blue chair")])  # is stored, whatever becomes of the words
    index.add([record("c", "cyan chair")])
    assert {"a", "b", "c"} == set(index.truth.ids())
    if index.truth.has_words():
        assert ids(index, "chair") == {"a", "b", "c"}


def test_names_that_are_not_utf8_are_indexed(index):
    index.add([record("a", path="/x/caf\udce9.jpg")])
    assert ids(index, "jpg") == {"a"} and index.truth.words_agree()
    assert index.remove(["a"]) == 1 and index.truth.words_agree()


def test_a_query_of_sqlite_names_no_word_that_is_gone(index):
    index.add([record(f"i{n}", f"w{n}") for n in range(300)])
    index.remove([f"i{n}" for n in range(0, 300, 2)])
    connection = sqlite3.connect(index.folder / "index.sqlite")
    (count,) = connection.execute("SELECT count(*) FROM words WHERE words MATCH 'w0 OR w2 OR w3'").fetchone()
    connection.close()
    assert count == 1
