"""`genius search`: answers in five forms, on stdout alone."""

from __future__ import annotations

import json

import pytest
from PIL import Image


@pytest.fixture
def indexed(genius, pictures):
    assert genius("index", pictures).code == 0
    return genius


def test_json_has_the_promised_keys(indexed, pictures):
    done = indexed("search", "red", "--want", "image", "-k", "3", "--format", "json")
    assert done.code == 0 and done.err == ""
    hits = json.loads(done.out)
    assert len(hits) == 3 and [hit["rank"] for hit in hits] == [1, 2, 3]
    assert hits[0]["id"] == "red.png" and hits[0]["path"] == str(pictures / "red.png")
    assert {"id", "score", "rank", "modality", "codes", "path", "meta"} == hits[0].keys()
    (text,) = json.loads(indexed("search", "something red", "--want", "text", "--format", "json").out)
    assert {"id", "score", "rank", "modality", "codes", "text", "meta"} == text.keys()


def test_lines_paths_trec_and_table(indexed, pictures):
    ask = ("search", "--image", pictures / "blue.png", "--want", "image", "-k", "2", "--format")
    lines = [json.loads(line) for line in indexed(*ask, "jsonl").out.splitlines()]
    assert lines[0]["id"] == "blue.png" and len(lines) == 2
    assert indexed(*ask, "paths").out.splitlines()[0] == str(pictures / "blue.png")
    columns = indexed(*ask, "trec").out.splitlines()[0].split()
    assert columns[:4] == ["1", "Q0", "blue.png", "1"] and columns[5] == "genius"
    table = indexed(*ask, "table").out.splitlines()
    assert table[0].split() == ["rank", "score", "modality", "id", "text"] and "blue.png" in table[1]


def test_any_is_the_default_and_a_sentence_is_an_instruction(indexed):
    found = {
        hit["modality"] for hit in json.loads(indexed("search", "red", "-k", "11", "--format", "json").out)
    }
    assert found == {"image", "text", "pair"}
    free = indexed("search", "red", "--want", "Find anything like it.", "-k", "1", "--format", "json")
    assert json.loads(free.out)[0]["id"] == "red.png"


def test_an_instruction_is_given_or_left_out(indexed):
    ask = ("search", "red", "--want", "image", "-k", "1", "--format", "json")
    for option in (("--instruction", "Find its picture."), ("--no-instruction",)):
        assert json.loads(indexed(*ask, *option).out)[0]["id"] == "red.png"
        assert indexed("search", "--like", "red.png", *option).code == 0
    assert indexed(*ask, "--no-instruction", "--instruction", "Find it.").code == 2
    assert "image, text, pair, any, or a sentence" in indexed("search", "red", "--want", "video").err


def test_what_is_like_a_stored_item(indexed):
    done = indexed("search", "--like", "red.png", "--want", "image", "-k", "20", "--format", "json")
    found = [hit["id"] for hit in json.loads(done.out)]
    assert len(found) == 8 and "red.png" not in found  # all other pictures without a caption
    but = indexed(
        "search", "blue blue", "--like", "red.png", "--want", "image", "-k", "1", "--format", "paths"
    )
    assert but.out.endswith(".png\n") and "red.png" not in but.out
    assert indexed("search", "--like", "nobody").code == 2
    assert indexed("search", "--like", "red.png", "--beam", "5").code == 2


@pytest.mark.parametrize("rerank", ["none", "codes", "vectors"])
def test_ways_to_search(indexed, rerank):
    done = indexed(
        "search", "green", "--want", "image", "--search", "lookup", "--rerank", rerank, "--beam", "5"
    )
    assert done.code == 0 and "green.png" in done.out
    assert indexed("search", "green", "--search", "generate").code == 2  # this model has no decoder


def test_errors_have_their_own_codes(indexed, tmp_path):
    assert indexed("search", "red", "--in", "nowhere").code == 5
    assert indexed("search").code == 2
    assert indexed("search", "red", "--want", "video").code == 2
    assert indexed("search", "--image", "nowhere.png").code == 2
    assert indexed("search", "red", "-k", "0").code == 2
    assert indexed("search", "red", "--format", "xml").code == 2
    assert indexed("stats", "--in", "nowhere").code == 5


def test_blanks_in_names_do_not_break_columns(genius, pictures):
    Image.new("RGB", (8, 8), "pink").save(pictures / "a b.png")
    genius("index", pictures)
    out = genius(
        "search", "--image", pictures / "a b.png", "--want", "image", "-k", "1", "--format", "trec"
    ).out
    assert out.split()[2] == "a%20b.png" and len(out.split()) == 6
