"""`genius list`, and filters, pages and facets of `genius search`."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def shop(genius, tmp_path):
    """Texts from JSONL, with numbers, and from CSV, where numbers may be texts."""
    rows = [
        {"id": f"j{n}", "text": f"{colour} sofa", "price": n * 10, "colour": colour, "sold": n % 2 == 0}
        for n, colour in enumerate(["red", "blue", "red", "green"])
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "b.csv").write_text("id,text,price,colour\nc0,red chair,5,red\nc1,blue chair,35.50,blue\n")
    assert genius("index", tmp_path / "a.jsonl", tmp_path / "b.csv").code == 0
    return genius


def listed(done) -> list[str]:
    assert done.code == 0, done.err
    return done.out.split()


def test_a_list_of_what_passes(shop):
    assert listed(shop("list", "--format", "ids")) == ["j0", "j1", "j2", "j3", "c0", "c1"]
    assert listed(shop("list", "--where", "price < 15", "--format", "ids")) == ["j0", "j1", "c0"]
    assert listed(shop("list", "--where", "price > 15 and not sold", "--format", "ids")) == ["j3", "c1"]
    done = shop("list", "--limit", "2", "--offset", "1", "--format", "json")
    items = json.loads(done.out)
    assert [item["id"] for item in items] == ["j1", "j2"] and items[0]["meta"]["colour"] == "blue"
    assert {"id", "modality", "codes", "text", "meta"} == items[0].keys() and done.err == "2 of 6\n"
    assert [json.loads(line)["id"] for line in shop("list", "--all", "--format", "jsonl").out.splitlines()][
        -1
    ] == "c1"
    table = shop("list", "--facet", "colour").out.splitlines()
    assert table[0].split() == ["text", "j0", "red", "sofa"]
    assert table[-1] == "colour: red (3), blue (2), green (1)"
    counted = json.loads(shop("list", "--limit", "0", "--facet", "sold", "--format", "json").out)
    assert counted == {
        "items": [],
        "total": 6,
        "facets": {"sold": [{"value": False, "count": 2}, {"value": True, "count": 2}]},
    }


def test_an_empty_value_is_written_as_in_a_filter(genius, pictures):
    genius("index", pictures)
    done = genius("list", "--facet", "folder", "--limit", "0")
    assert done.out == "folder: '' (10)\n" and genius("list", "--where", "folder = ''").err == "10 of 10\n"


def test_a_search_with_a_filter_an_offset_and_facets(shop):
    ask = ("search", "red", "--format", "json")
    assert {hit["id"] for hit in json.loads(shop(*ask, "--where", "price >= 20").out)} == {"j2", "j3", "c1"}
    whole, rest = json.loads(shop(*ask).out), json.loads(shop(*ask, "--offset", "2").out)
    assert rest == whole[2:] and rest[0]["rank"] == 3
    both = json.loads(shop(*ask, "--facet", "colour", "-k", "1").out)
    assert len(both["hits"]) == 1 and both["facets"]["colour"][0] == {"value": "red", "count": 3}
    assert "colour: red (3), blue (2), green (1)" in shop("search", "red", "--facet", "colour").out
    like = ("search", "--like", "j0", "--format", "json", "--where", "price < 25")
    assert {hit["id"] for hit in json.loads(shop(*like).out)} == {"j1", "j2", "c0"}
    counted = json.loads(shop(*like, "--facet", "colour", "--search", "lookup", "--beam", "9").out)
    assert {one["value"]: one["count"] for one in counted["facets"]["colour"]} == {"red": 2, "blue": 1}
    assert shop(*like, "--image", "x.png").code == 2


def test_a_filter_that_cannot_be_read_is_shown_with_the_place(shop):
    done = shop("search", "red", "--where", "price < and sold")
    assert done.code == 2
    message, text, caret = done.err.splitlines()
    assert "a value is expected" in message and text == "  price < and sold" and caret == "          ^"
    assert shop("search", "red", "--facet", "colour", "--format", "paths").code == 2
