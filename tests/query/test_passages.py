"""Texts that are longer than the encoder reads, indexed in passages that answer for their item."""

from __future__ import annotations

import json
import sqlite3

import numpy as np
import pytest
from PIL import Image

from genius import Engine, Item
from genius.errors import BadInput, IndexCorrupt
from genius.store.check import check, repair
from genius.store.connection import INDEX_FILE
from genius.store.exporting import export_lines, export_tar
from genius.store.importing import import_file
from genius.types import Modality

READ = 6  # tokens, of which two are not words and one is kept for a full stop
LONG = "Red apples. Green grass here. Blue sky above. Yellow sun today."


@pytest.fixture
def model(fake):
    class Limited(fake.FakeModel):
        """Reads the first words of a text alone."""

        max_tokens = READ

        @property
        def text_limit(self):
            return self

        def count_tokens(self, texts):
            return [2 + len(text.split()) for text in texts]

        def embed_items(self, images, texts):
            cut = [None if text is None else " ".join(text.split()[: READ - 2]) for text in texts]
            return super().embed_items(images, cut)

    return Limited()


@pytest.fixture(params=["vectors", "codes"])
def engine(request, tmp_path, model):
    vectors = request.param == "vectors"
    with Engine.create(tmp_path / "index", model, vectors=vectors, split_texts=True) as opened:
        opened.add([Item("long", text=LONG, meta={"n": 1}), Item("black", text="black", meta={"n": 2})])
        opened.add([Item(f"cyan{n}", text="cyan", meta={"n": n}) for n in range(3, 8)])
        yield opened


def found(engine: Engine, text: str, **options):
    return {hit.id: hit for hit in engine.search(text, k=3, hybrid=False, **options)}


def test_the_best_passage_answers_for_the_item(engine):
    for text in ("red", "green", "blue", "yellow"):
        first = engine.search(text, k=3)[0]
        assert first.id == "long" and first.text == LONG
        assert text in (first.passage or "").lower() and len(first.passage.split()) <= READ - 3
    short = engine.search("black", k=1)[0]
    assert short.span is None and short.passage == "black"


def test_every_item_comes_once_and_k_items_come(engine):
    for hybrid in (False, True):
        ids = [hit.id for hit in engine.search("yellow", k=7, hybrid=hybrid)]
        assert sorted(ids) == sorted(engine) and len(ids) == 7
    pages = [hit.id for page in engine.pages("yellow", k=2) for hit in page]
    assert sorted(pages) == sorted(engine)


def test_passages_are_no_items(engine):
    assert len(engine) == 7 == engine.stats()["items"] == engine.count()
    assert engine.stats()["modalities"]["text"] == 7
    assert [item.id for item in engine.browse().items] == list(engine)
    assert engine.results(["yellow"])[0].pool == 7
    assert engine.results(["yellow"], where="n < 3")[0].pool == 2 == engine.count("n < 3")
    assert all(len(group.ids) > 1 and "long" not in group.ids for group in engine.duplicates(None))
    branch, records = engine.branch(())
    assert set(branch.rows) <= set(records)


def test_filters_keep_passages_with_their_items(engine):
    for _ in range(2):
        assert "yellow" in (found(engine, "yellow", where="n < 3")["long"].passage or "").lower()
        assert "long" not in found(engine, "yellow", where="not n < 3")
        assert "long" not in found(engine, "yellow", where="n > 2 or modality = 'image'")
        engine.add([Item("more", text=LONG.upper(), meta={"n": 9})])
        assert "YELLOW" in (found(engine, "yellow", where="n = 9")["more"].passage or "")
        engine.compact()
        engine.remove(["more"])


def test_passages_go_and_change_with_their_item(engine):
    for settled in (False, True):
        if settled:
            engine.compact()
        before = engine.index.truth.last_row()
        assert engine.add([Item("long", text=LONG, meta={"n": 1})]).unchanged == 1
        assert engine.index.truth.last_row() == before
        engine.update([Item("long", meta={"n": 1, "new": True})])
        assert "blue" in found(engine, "blue")["long"].passage.lower()
        engine.update([Item("long", text=LONG.replace("Blue", "Purple"))])
        assert "purple" in found(engine, "purple")["long"].passage.lower()
        engine.add([Item("long", text="orange", meta={"n": 1})])
        assert found(engine, "orange")["long"].span is None
        assert len(engine.index.truth.passage_rows()) == 0
        assert check(engine.index.folder).clean
        engine.add([Item("long", text=LONG, meta={"n": 1})])
    assert engine.remove("long") == 1 and len(engine) == 6
    assert "long" not in found(engine, "yellow")
    assert check(engine.index.folder).clean


def test_a_pair_has_its_picture_in_every_passage(engine):
    engine.add([Item("pair", image=Image.new("RGB", (32, 32), "white"), text=LONG)])
    hit = engine.search("yellow", k=1, want="pair")[0]
    assert hit.id == "pair" and hit.modality is Modality.PAIR and hit.span is not None
    if engine.index.dim is not None:  # in the codes of this model, the picture is all that is left
        assert "sun" in hit.passage.lower()


def test_words_in_a_late_passage_find_the_item(engine):
    engine.add([Item("note", text="White paper only. Black ink on it. Order QX731 then.")])
    hit = engine.search("QX731", k=1)[0]
    assert hit.id == "note" and hit.span is not None


@pytest.mark.parametrize("form", [export_lines, export_tar])
def test_exports_have_the_passages(engine, model, tmp_path, form):
    file = tmp_path / "export"
    file.write_bytes(b"".join(form(engine.index)))
    assert import_file(file, tmp_path / "copy") == 7
    with Engine.open(tmp_path / "copy", model=model) as copy:
        assert copy.index.split_texts and check(copy.index.folder).clean
        for text in ("red", "yellow"):
            ours, theirs = (one.search(text, k=7) for one in (engine, copy))
            assert [(hit.id, hit.span, hit.score) for hit in ours] == [
                (hit.id, hit.span, hit.score) for hit in theirs
            ]


def test_an_export_with_wrong_passages_is_refused(engine, tmp_path):
    lines = b"".join(export_lines(engine.index)).splitlines(keepends=True)
    fields = json.loads(lines[1])
    fields["passages"][1]["end"] = 10_000
    file = tmp_path / "export.jsonl"
    file.write_bytes(lines[0] + json.dumps(fields).encode() + b"\n")
    from genius.data.report import Report

    report = Report()
    assert import_file(file, tmp_path / "copy", partial=True, report=report) == 0
    assert "passages are no parts of its text" in report.names[0].reason


def test_a_repair_saves_passages(engine, model):
    folder = engine.index.folder
    engine.index.truth.connection.execute("UPDATE items SET meta = '{}' WHERE id = 'black'")
    engine.close()
    assert not check(folder).clean
    _, salvage = repair(folder)
    assert salvage.lost == ["black"] and check(folder).clean
    with Engine.open(folder, model=model) as opened:
        assert "yellow" in found(opened, "yellow")["long"].passage.lower()
        opened.add([Item("black", text="black")])
        assert opened.search("black", k=1)[0].id == "black"


def test_damaged_passages_are_found_and_left_out_by_a_repair(engine, model):
    folder = engine.index.folder
    engine.index.truth.connection.execute("UPDATE passages SET spans = zeroblob(length(spans))")
    engine.close()
    assert any("passages" in problem for problem in check(folder).truth)
    _, salvage = repair(folder)
    assert check(folder).clean
    assert (salvage.lost, salvage.cut) == ([], ["long"])
    with Engine.open(folder, model=model) as opened:
        assert opened.search("red", k=1)[0].id == "long"


def test_a_repair_reads_passages_behind_a_damaged_page(tmp_path, model):
    """Items whose passages are on it are named; those after it keep theirs."""
    with Engine.create(tmp_path / "index", model, split_texts=True) as engine:
        engine.add([Item(f"{n:03}", text=f"{LONG} {n}") for n in range(200)])
        engine.compact()
        connection = engine.index.truth.connection
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        query = "SELECT pageno FROM dbstat WHERE name = 'passages' AND pagetype = 'leaf' ORDER BY path"
        try:
            pages = [page for (page,) in connection.execute(query)]
        except sqlite3.OperationalError:
            pytest.skip("this SQLite cannot tell which pages a table has")
    with (tmp_path / "index" / INDEX_FILE).open("r+b") as stream:
        stream.seek((pages[1] - 1) * 4096)
        stream.write(b"\xff" * 4096)
    _, salvage = repair(tmp_path / "index")
    assert salvage.saved == 200 and 0 < len(salvage.cut) < 100 and check(tmp_path / "index").clean
    with Engine.open(tmp_path / "index", model=model) as opened:
        named = {opened.index.truth.record(id)[0] for id in salvage.cut}
        kept = set(opened.index.truth.passage_rows().items.tolist())
        assert len(kept) == 200 - len(named) and not kept & named and max(kept) > max(named)


def test_passages_of_no_item_are_found(engine):
    engine.index.truth.connection.execute("UPDATE passages SET row = 900")
    with pytest.raises(IndexCorrupt, match="belong to no item"):
        engine.index.truth.check_passages()


def test_new_codes_are_for_passages_too(tmp_path, model):
    from genius.store.recoding import recode

    with Engine.create(tmp_path / "index", model, split_texts=True) as engine:
        engine.add([Item("long", text=LONG), Item("black", text="black")])
        settings = {name: engine.index.settings[name] for name in ("model", "fingerprint", "notes")}

        def reversed_codes(batch):
            codes = batch.codes.copy()
            codes[:, 1:] = 15 - codes[:, 1:]
            return codes

        before = {hit.id: hit.codes for hit in engine.search("yellow", k=2)}
        recode(engine.index, reversed_codes, engine.index.settings["sizes"], settings)
        after = {hit.id: hit.codes for hit in engine.search("yellow", k=2)}
        for id, codes in before.items():
            assert after[id] == (codes[0], *(15 - code for code in codes[1:]))
        assert check(engine.index.folder).clean
        engine.index.rebuild()
        assert {hit.id: hit.codes for hit in engine.search("yellow", k=2)} == after


def test_without_the_option_long_texts_are_counted(tmp_path, model):
    with Engine.create(tmp_path / "index", model) as engine:
        added = engine.add([Item("long", text=LONG), Item("black", text="black")])
        assert added.long_texts == 1
        assert engine.add([Item("long", text=LONG)]).long_texts == 0  # unchanged
        assert engine.search("yellow", k=1)[0].score < 0.5


def test_the_option_is_one_of_the_index(tmp_path, model, fake):
    with Engine.create(tmp_path / "split", model, split_texts=True) as engine:
        assert engine.add([Item("long", text=LONG)]).long_texts == 0
    with Engine.open_or_create(tmp_path / "split", model) as engine:
        assert engine.index.split_texts
    with pytest.raises(BadInput, match="made with --split-texts"):
        Engine.open_or_create(tmp_path / "split", model, split_texts=False)
    with pytest.raises(BadInput, match="does not say how much of a text it reads"):
        Engine.create(tmp_path / "other", fake.FakeModel(), split_texts=True)
    with pytest.raises(BadInput, match="does not say how much of a text it reads"):
        Engine.create(tmp_path / "other", encoder="vectors", dim=4, split_texts=True)


def test_rows_of_passages(model, tmp_path):
    with Engine.create(tmp_path / "index", model, split_texts=True) as engine:
        engine.add([Item("a", text="red"), Item("long", text=LONG), Item("b", text="blue")])
        passages = engine.index.truth.passage_rows()
        assert passages.items.tolist() == [2] and passages.counts.tolist() == [3]
        rows, items = passages.rows()
        assert rows.tolist() == [3, 4, 5] and items.tolist() == [2, 2, 2]
        assert passages.items_of(np.arange(1, 8)).tolist() == [1, 2, 2, 2, 2, 6, 7]
        assert engine.index.truth.last_row() == 6


def test_passages_of_mini(tmp_path):
    filler = "The committee met on a Tuesday and talked about the budget for a long time. " * 15
    text = f"{filler}A brown dog runs through deep snow in the mountains. {filler}"
    with Engine.create(tmp_path / "split", split_texts=True) as engine:
        engine.add([Item("report", text=text), Item("cat", text="A cat sleeps on a sofa.")])
        hit = engine.search("a dog in the snow", k=1, hybrid=False)[0]
        assert hit.id == "report" and "brown dog" in hit.passage and len(hit.passage) < len(text) / 3
    with Engine.create(tmp_path / "whole") as engine:
        engine.add([Item("report", text=text), Item("cat", text="A cat sleeps on a sofa.")])
        hits = {hit.id: hit for hit in engine.search("a dog in the snow", k=2, hybrid=False)}
        assert hits["report"].span is None and hits["report"].score < hit.score
