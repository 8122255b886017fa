"""Items changed in part: what is not named stays; and texts whose images are missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from genius import Item, Modality
from genius.data.rows import TableOptions
from genius.ingest.missing import missing_files


@pytest.fixture
def shop(make_engine, tmp_path: Path):
    """A pair with a file, a pair whose picture was given as bytes, and a text."""
    engine = make_engine()
    Image.new("RGB", (32, 32), "red").save(tmp_path / "red.png")
    data = (tmp_path / "red.png").read_bytes()
    items = [
        Item("file", tmp_path / "red.png", "a red sofa", {"price": 10, "brand": "x"}),
        Item("bytes", data, "a red chair", {"price": 20}),
        Item("text", None, "wash it", {"price": 30}),
    ]
    assert engine.add(items).added == 3
    return engine


def meta(engine, id: str) -> dict[str, object]:
    return json.loads(engine.get(id).meta)


def test_metadata_alone_needs_no_model(shop) -> None:
    before = {id: shop.get(id) for id in ("file", "bytes", "text")}
    encoded = shop.model.encoded
    changes = [Item("file", meta={"price": 12, "new": True}), Item("text", meta={"price": None})]
    result = shop.update(changes)
    assert (result.updated, result.unchanged, shop.model.encoded) == (2, 0, encoded)
    assert meta(shop, "file") == {"price": 12, "brand": "x", "new": True}
    assert meta(shop, "text") == {}
    assert shop.get("file").text == "a red sofa" and shop.get("file").path == before["file"].path
    assert shop.update(changes).unchanged == 2


def test_changes_of_one_item_are_made_one_after_the_other(shop) -> None:
    """None of them is lost, though they come in one batch."""
    changes = [
        Item("file", meta={"price": 12}),
        Item("text", meta={"price": 31}),
        Item("file", text="a sofa"),
        Item("file", meta={"stock": 5}),
    ]
    assert shop.update(changes).updated == 4
    assert meta(shop, "file") == {"price": 12, "brand": "x", "stock": 5}
    assert meta(shop, "text") == {"price": 31}
    assert shop.get("file").text == "a sofa"


@pytest.mark.parametrize("id", ["file", "bytes"])
def test_a_new_text_keeps_the_picture(shop, id: str) -> None:
    picture = shop.thumbnail(id)
    result = shop.update([Item(id, text="a blue table")])
    assert (result.updated, result.report.skipped) == (1, 0)
    stored = shop.get(id)
    assert (stored.text, stored.modality) == ("a blue table", Modality.PAIR)
    assert shop.thumbnail(id) == picture and meta(shop, id)["price"]
    hits = shop.search("a blue table", want="pair")
    assert hits[0].id == id


def test_a_new_picture_keeps_the_text(shop, tmp_path) -> None:
    Image.new("RGB", (32, 32), "green").save(tmp_path / "green.png")
    shop.update([Item("text", image=tmp_path / "green.png"), Item("file", text="")])
    assert (shop.get("text").text, shop.get("text").modality) == ("wash it", Modality.PAIR)
    assert (shop.get("file").text, shop.get("file").modality) == (None, Modality.IMAGE)
    assert meta(shop, "text") == {"price": 30}


def test_what_cannot_be_changed_is_named(shop) -> None:
    result = shop.update(
        [
            Item("nothere", meta={"price": 1}),
            Item("text", text=" "),
            Item("file", image="absent.png"),
            Item("bytes", meta={"price": float("nan")}),
        ]
    )
    reasons = dict(result.skipped)
    assert set(reasons) == {"nothere", "text", "bytes"}
    assert "add it first" in reasons["nothere"] and "neither image nor text" in reasons["text"]
    assert [note.name for note in result.report.notes] == ["file"]  # a missing picture replaces none
    assert shop.get("file").modality is Modality.PAIR


def test_the_rows_of_a_table(shop, tmp_path) -> None:
    table = tmp_path / "prices.jsonl"
    table.write_text('{"id": "file", "price": 11}\n{"id": "gone", "price": 1}\n{"price": 3}')
    result = shop.add_from(table, update=True)
    assert (result.updated, result.report.skipped) == (1, 2)
    assert meta(shop, "file") == {"price": 11, "brand": "x"}


def test_a_row_whose_image_is_missing_keeps_its_text(make_engine, tmp_path) -> None:
    engine, table = make_engine(), tmp_path / "items.jsonl"
    rows = [
        {"id": "a", "image": "late.png", "text": "a red sofa"},
        {"id": "b", "image": "late.png"},
        {"id": "c", "image": "x" * 300, "text": "long"},
        {"id": "d", "image": "nul\0", "text": "odd"},
    ]
    table.write_text("\n".join(map(json.dumps, rows)))
    result = engine.add_from(table)
    assert (result.added, result.report.skipped, result.report.noted) == (3, 1, 3)
    assert "late.png; its text is kept" in result.report.notes[0].reason
    assert engine.get("a").modality is Modality.TEXT and meta(engine, "a") == {"image_missing": True}
    assert "3 read in part" in list(result.report.lines())

    Image.new("RGB", (32, 32), "red").save(tmp_path / "late.png")
    assert engine.add_from(table).updated == 1
    assert engine.get("a").modality is Modality.PAIR and meta(engine, "a") == {}

    (tmp_path / "late.png").unlink()  # as on a disk that is not mounted: nothing stored is given up
    result = engine.add_from(table)
    assert "the stored picture is kept" in result.report.notes[0].reason
    rows[0]["text"] = "another text"
    table.write_text("\n".join(map(json.dumps, rows)))
    assert "left as it is" in dict(engine.add_from(table).skipped)["a"]
    assert engine.get("a").modality is Modality.PAIR


def test_an_image_of_the_web_is_fetched_once(make_engine, tmp_path, monkeypatch) -> None:
    engine, table = make_engine(), tmp_path / "items.jsonl"
    Image.new("RGB", (32, 32), "red").save(tmp_path / "red.png")
    asked: list[str] = []

    def fetch(url: str) -> bytes:
        asked.append(url)
        return (tmp_path / "red.png").read_bytes()

    monkeypatch.setattr("genius.data.remote.fetch_image", fetch)
    table.write_text('{"id": "a", "image": "https://x.test/a.png", "text": "red", "price": 1}')
    result = engine.add_from(table)
    assert "--allow-urls" in result.report.notes[0].reason and not asked
    for price, expected in ((1, (0, 1, 0)), (1, (0, 0, 1)), (2, (0, 1, 0))):
        row = {"id": "a", "image": "https://x.test/a.png", "text": "red", "price": price}
        table.write_text(json.dumps(row))
        result = engine.add_from(table, tables=TableOptions(allow_urls=True))
        assert (result.added, result.updated, result.unchanged) == expected
    assert len(asked) == 1 and engine.get("a").modality is Modality.PAIR
    assert meta(engine, "a") == {"uri": "https://x.test/a.png", "price": 2}


def test_files_that_moved_or_went(make_engine, tmp_path) -> None:
    engine, folder = make_engine(), tmp_path / "photos"
    folder.mkdir()
    for colour in ("red", "green", "blue"):
        Image.new("RGB", (32, 32), colour).save(folder / f"{colour}.png")
    engine.add_from(folder)
    assert missing_files(engine.index).missing == []
    (folder / "2020").mkdir()
    (folder / "red.png").rename(folder / "2020" / "rouge.png")
    (folder / "blue.png").unlink()
    report = missing_files(engine.index)
    assert report.files == 3
    assert {one.id: one.now for one in report.missing} == {
        "red.png": str(folder / "2020" / "rouge.png"),
        "blue.png": None,
    }
    hits = {hit.id: hit.missing for hit in engine.search("red", k=3)}
    assert hits == {"red.png": True, "green.png": False, "blue.png": True}
