"""The ranking by words, and by words and vectors together."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import numpy as np
import pytest

from genius import Item, Query
from genius.confidence import Calibration, ConfidenceWeights
from genius.engine import Engine
from genius.errors import BadInput
from genius.query import words
from genius.query.words import WordSearch, slips


@pytest.fixture(scope="module")
def model():
    file = Path(__file__).parents[1] / "cli" / "fake_model.py"
    spec = importlib.util.spec_from_file_location("fake_model", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FakeModel()


COLORS = ("red", "green", "blue", "cyan", "black", "white", "orange", "yellow")


@pytest.fixture(scope="module", params=["vectors", "codes"])
def engine(request, tmp_path_factory, model):
    folder = tmp_path_factory.mktemp(request.param) / "index"
    with Engine.create(folder, model, vectors=request.param == "vectors") as opened:
        items = [
            Item(f"i{n}", text=f"{COLORS[n % 8]} lamp number{n}", meta={"sku": f"QX-{1000 + 37 * n}"})
            for n in range(100)
        ]
        opened.add(items[:60])
        opened.compact()
        opened.add(items[60:])
        opened.remove(["i7", "i70"])
        yield opened


def rows(engine: Engine, text: str) -> list[str]:
    found = WordSearch(engine.index).find(text)
    assert (np.diff(found.scores) <= 0).all() and (found.scores <= 1).all()
    records = engine.index.truth.records(found.rows.tolist())
    return [records[row].id for row in found.rows.tolist()]


def test_items_with_more_and_rarer_words_come_first(engine):
    assert rows(engine, "a lamp, number42")[0] == "i42"
    assert rows(engine, "QX-1000")[0] == "i0"
    assert rows(engine, "Number5 and NUMBER6")[:2] == ["i5", "i6"]
    assert rows(engine, "nothing of this") == [] == rows(engine, "?!")
    assert rows(engine, "number7") == [] == rows(engine, "number70")  # removed


def test_a_letter_counts_alone_but_not_beside_words(tmp_path, model):
    """Photos are called anything: "a dog" is not to find those with an a in their names."""
    with Engine.create(tmp_path / "index", model) as opened:
        opened.add([Item(f"{'a' if n < 3 else 'x'} {n}.txt", text=COLORS[n % 8]) for n in range(20)])
        assert rows(opened, "a dog") == [] and rows(opened, "I like a green one") == rows(opened, "green")
        assert set(rows(opened, "a")) == {"a 0.txt", "a 1.txt", "a 2.txt"}
        assert rows(opened, "a 7") == ["x 7.txt"]
        opened.add([Item("hi.txt", text="red")])
        assert rows(opened, "hi, a dog") == ["hi.txt"]
        opened.add([Item("A-1", text="red"), Item("B-1", text="red")])
        assert rows(opened, "B-1")[0] == "B-1" and rows(opened, "the A-1 - I mean")[0] == "A-1"


def test_a_slip_of_the_keyboard_is_forgiven_but_not_another_number(engine):
    assert "i2" in rows(engine, "bleu lmap")  # blue
    assert set(rows(engine, "oragne")) == {f"i{n}" for n in range(100) if n % 8 == 6 and n not in (7, 70)}
    assert set(rows(engine, "qx 1073")) == {"i1", "i19"}  # 1037 and 1703 with digits exchanged
    assert rows(engine, "qx 1038") == []
    assert "snow" in slips("snwo")
    assert all(word[0] == "b" for word in slips("boat")) and "coat" not in slips("boat")
    assert slips("1234") == ["1324", "1243"]


def test_a_text_query_finds_a_product_number_first_and_an_image_query_does_not_change(engine):
    by_vectors = engine.search("QX-3072", k=5, hybrid=False)
    hits = engine.search("QX-3072", k=5)
    assert hits[0].id == "i56" != by_vectors[0].id
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    red = np.zeros((8, 8, 3), np.uint8)
    red[..., 0] = 255
    from PIL import Image

    image = Image.fromarray(red)
    both = Query(text="QX-3072", image=image)
    assert engine.search(both, k=5) == engine.search(both, k=5, hybrid=False)
    assert engine.search(both, k=5, hybrid=True)[0].id == "i56"
    assert engine.search("QX-3072", k=5, rerank="none") == engine.search(
        "QX-3072", k=5, rerank="none", hybrid=False
    )


@pytest.mark.parametrize("want", ["text", "any"])
@pytest.mark.parametrize("calibrated", [False, True])
def test_words_count_in_the_order_and_scores_are_cosines(engine, model, monkeypatch, want, calibrated):
    weights = Calibration({}, ConfidenceWeights(-16.0, 20.0, 0.0))
    known = {"vectors": weights, "codes": weights} if calibrated else {}
    monkeypatch.setattr(model, "calibrations", known, raising=False)
    cosines = {hit.id: hit.score for hit in engine.search("red QX-3072", 99, want, hybrid=False)}
    hits = engine.search("red QX-3072", 99, want)
    assert hits[0].id == "i56" and hits[0].score < max(cosines.values())  # has both words, others are nearer
    scores = [hit.score for hit in hits]
    np.testing.assert_allclose(scores, [cosines[hit.id] for hit in hits], atol=1e-6)
    assert scores != sorted(scores, reverse=True) and max(scores) <= 1
    if not calibrated:
        return
    sure = {hit.id: hit.confidence for hit in hits}
    alone = 1 / (1 + np.exp(16 - 20 * cosines["i1"]))  # i1 has no word of the query
    assert sure["i56"] == 0.99 and sure["i1"] == pytest.approx(alone, rel=1e-3)
    found = engine.search("red QX-3072", 99, want, at_least=0.5)
    assert found == [hit for hit in hits if hit.confidence >= 0.5] and found[0].id == "i56"


def test_the_score_of_an_item_that_is_the_query_is_one(engine):
    """Vectors are kept as float16: the product of two of length one may be larger than one."""
    for n in range(98):
        assert engine.search(f"{COLORS[n % 8]} lamp number{n}", k=1, instruction="")[0].score <= 1


def test_words_respect_what_is_wanted_filters_and_pages(engine):
    assert engine.search("QX-3072", want="image") == []
    assert "i56" not in {hit.id for hit in engine.search("QX-3072", k=98, where="sku != 'QX-3072'")}
    every = [hit.id for hit in engine.search("QX-3072 lamp", k=98)]
    assert len(set(every)) == 98
    paged = [hit.id for page in engine.pages("QX-3072 lamp", k=9) for hit in page]
    assert paged == every


def test_words_that_many_items_have_are_not_looked_up(engine, monkeypatch):
    monkeypatch.setattr(words, "RARE", 10)
    assert rows(engine, "lamp") == [] == rows(engine, "red")
    assert rows(engine, "red lamp number8") == ["i8"]


def test_a_lookup_costs_the_same_however_many_items_have_the_words(tmp_path, model, monkeypatch):
    """Counted in steps of SQLite: rows of a word, and lengths of items, are read up to a bound."""
    monkeypatch.setattr(words, "RARE", 20)
    monkeypatch.setattr(words, "MEASURED", 10)
    steps = {}
    for items in (200, 800, 3200):
        with Engine.create(tmp_path / str(items), model) as engine:
            engine.add(Item(f"i{n}", text=f"red lamp{n % (items // 10)} of{n % 4}") for n in range(items))
            passed: list[int] = []
            search = WordSearch(engine.index)
            engine.index.truth.connection.set_progress_handler(lambda p=passed: p.append(1), 1)
            assert len(search.find("red lamp7 lamp8 lamp9 of3").rows)
            engine.index.truth.connection.set_progress_handler(None, 1)
            steps[items] = len(passed)
    assert steps[3200] < 1.2 * steps[200], steps


def test_the_largest_come_in_order_and_of_equal_ones_the_earlier():
    values = np.array([3, 1, 3, 2, 3, 1], dtype=np.float32)
    for count in range(1, 8):
        expected = sorted(range(6), key=lambda place: (-values[place], place))[:count]
        assert words._largest(values, count).tolist() == expected


def test_a_short_text_is_a_better_match_than_a_long_one(tmp_path, model):
    with Engine.create(tmp_path / "index", model) as engine:
        filler = " ".join(f"word{n}" for n in range(400))
        engine.add([Item("long", text=f"zebra {filler}"), Item("short", text="zebra")])
        engine.add([Item(f"i{n}", text="something else") for n in range(20)])
        assert rows(engine, "zebra") == ["short", "long"]


def test_an_index_without_words_gets_them_or_is_searched_without(tmp_path, model, caplog):
    with Engine.create(tmp_path / "index", model) as engine:
        engine.add([Item(f"i{n}", text=f"red {n}", meta={"sku": f"QX-{n}"}) for n in range(30)])
        with engine.index.writing(), engine.index.truth.writing():
            engine.index.truth.give_up_words()
        assert engine.search("QX-17")[0].id == "i17" and engine.index.truth.has_words()
        with engine.index.writing(), engine.index.truth.writing():
            engine.index.truth.connection.execute("UPDATE words_data SET block = x'ff'")
        with caplog.at_level(logging.WARNING):
            assert len(engine.search("QX-17")) == 10
        assert "searched without words" in caplog.text


def test_words_that_must_be_there_are_taken_as_they_are(tmp_path, model):
    """An underscore or a percent sign of a file name stands for nothing else."""
    names = ["IMG_0003.txt", "IMGX0003.txt", "50% off.txt", "500 off.txt", r"a\b.txt", "ab.txt"]
    with Engine.create(tmp_path / "index", model) as opened:
        opened.add([Item(name, text="red") for name in names])
        for words, name in (("img_0003", names[0]), ("50%", names[2]), ("a\\b", names[4])):
            assert [hit.id for hit in opened.search("red", match=words)] == [name]
        with pytest.raises(BadInput) as refused:
            opened.search("red", where="price <", match="img")
        assert refused.value.args[0].splitlines()[1] == "  price <"


def test_an_item_that_has_the_words_is_found_by_match_as_before(engine):
    for phrase, expected in {
        "number42": {"i42"},
        "umber4": {f"i{n}" for n in (4, *range(40, 50))},
        '"red lamp"': {f"i{n}" for n in range(0, 100, 8)},
        "QX": set(),  # of metadata, `where` asks
        "I5": {f"i{n}" for n in (5, *range(50, 60))},
    }.items():
        assert {hit.id for hit in engine.search("red", k=98, match=phrase)} == expected
    with pytest.raises(BadInput):
        engine.search("red", match=" ")
