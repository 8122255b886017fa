"""`genius search`: answers in five forms, on stdout alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from genius.confidence import Calibration, ConfidenceWeights


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


def test_a_threshold_needs_a_calibrated_model(indexed):
    done = indexed("search", "red", "--at-least", "0.3")
    assert done.code == 2 and "genius calibrate" in done.err
    assert indexed("search", "red", "--at-least", "7").code == 2


def test_sure_answers_or_the_nearest_with_a_note(indexed, fake, monkeypatch):
    calibrations = {"vectors": Calibration({}, ConfidenceWeights(-16.0, 20.0, 0.0))}
    monkeypatch.setattr(fake.FakeModel, "calibrations", calibrations, raising=False)
    ask = ("search", "red", "--want", "image", "--at-least")
    (hit,) = json.loads(indexed(*ask, "0.9", "--format", "json").out)
    assert hit["id"] == "red.png" and 0.9 <= hit["confidence"] <= 1
    table = indexed(*ask, "0.9").out.splitlines()
    assert table[0].split() == ["rank", "confidence", "score", "modality", "id", "text"] and len(table) == 2
    none = indexed("search", "xyzzy", "--want", "image", "--at-least", "0.9")
    assert none.code == 0 and none.err == "nothing close was found; the nearest are:\n"
    assert len(none.out.splitlines()) == 10
    monkeypatch.setattr("webbrowser.open", lambda address: True)
    opened = Path(indexed("search", "xyzzy", "--at-least", "0.9", "--open").out.strip())
    printed = indexed("search", "xyzzy", "--at-least", "0.9", "--format", "html").out
    for page in (opened.read_text(), printed):
        assert "<p>Nothing close was found; the nearest are:</p>" in page and ", similarity 0." in page
    opened.unlink()
    lines = indexed("search", "xyzzy", "--want", "image", "--at-least", "0.9", "--format", "jsonl")
    assert lines.out == "" and "nothing close was found" in lines.err


def test_words_that_must_be_there(indexed):
    found = json.loads(indexed("search", "red", "--match", "note", "--format", "json").out)
    assert [hit["id"] for hit in found] == ["note.txt"]
    assert indexed("search", "red", "--match", "").code == 2


def test_the_name_of_a_file_is_found_unless_only_vectors_count(indexed):
    ask = ("search", "note", "--format", "json", "-k", "3")
    assert json.loads(indexed(*ask).out)[0]["id"] == "note.txt"
    by_vectors = json.loads(indexed(*ask, "--no-hybrid").out)
    assert by_vectors != json.loads(indexed(*ask, "--hybrid").out) == json.loads(indexed(*ask).out)


def test_words_count_in_the_order_and_scores_are_similarities(indexed):
    ask = ("search", "red note", "--format", "json", "-k", "20")
    hits = json.loads(indexed(*ask).out)
    similar = {hit["id"]: hit["score"] for hit in json.loads(indexed(*ask, "--no-hybrid").out)}
    assert hits[0]["id"] == "note.txt" and hits[0]["score"] < hits[1]["score"] <= 1
    assert {hit["id"]: hit["score"] for hit in hits} == pytest.approx(similar)
    table = indexed(*ask[:2], "-k", "20").out.splitlines()[1:]
    assert [float(row.split()[1]) for row in table] == pytest.approx([hit["score"] for hit in hits], abs=1e-4)
    trec = [row.split() for row in indexed(*ask[:2], "--format", "trec").out.splitlines()]
    assert trec[0][2] == "note.txt" and float(trec[0][4]) > float(trec[1][4])  # evaluators sort by it


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
    assert indexed("search", "--like", "red.png", "--hybrid").code == 2


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


def test_a_filter_that_no_item_passes_is_told(indexed):
    done = indexed("search", "red", "--where", "price < 5")
    assert done.code == 0 and done.err == "no item passes the filter: none has the field price\n"
    listed = indexed("list", "--where", "\"odd name\".x = 5 or folder = 'x'")
    assert listed.err == "no item passes the filter: none has the field odd name.x\n0 of 0\n"
    assert indexed("search", "red", "--where", "folder = 'nowhere'").err == "no item passes the filter\n"
    assert indexed("search", "red", "--where", "folder = ''", "-k", "1").err == ""
