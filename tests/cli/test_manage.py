"""The verbs that look after an index; none of them loads a model or torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from genius.engine import Engine
from genius.errors import GeniusError
from genius.store.index import Index


@pytest.fixture
def indexed(genius, pictures):
    assert genius("index", pictures).code == 0
    return genius


def facts(genius):
    return json.loads(genius("stats", "--format", "json").out)


def test_stats_has_the_promised_keys(indexed):
    found = facts(indexed)
    assert {"items", "modalities", "bytes_per_item", "model", "generation", "search"} <= found.keys()
    assert found["items"] == 11 and found["modalities"] == {"image": 9, "text": 1, "pair": 1}
    assert found["bytes_per_item"] > 0 and found["model"] == "mini" and found["generation"] == 1
    assert "items" in indexed("stats").out


def test_stats_states_the_default_search(indexed, genius, pictures):
    told = facts(indexed)["search"]
    assert {"method", "beam", "rerank", "chosen_on"} <= told.keys()
    assert told["rerank"] == "vectors" and told["chosen_on"] == "val"
    line = next(line for line in indexed("stats").out.splitlines() if line.startswith("search"))
    assert "rerank vectors" in line and "chosen on val" in line
    genius("index", pictures, "--to", "small", "--no-vectors")
    assert facts(lambda *words: genius(*words, "--in", "small"))["search"]["rerank"] == "codes"


def test_stats_remembers_the_search_of_a_model_that_is_gone(tmp_path):
    Index.create(
        tmp_path / "idx",
        model=str(tmp_path / "gone"),
        fingerprint="0" * 16,
        sizes=(3, 4),
        dim=8,
        notes={"search": {"method": "both", "beam": 7}},
    )
    with Engine.open(tmp_path / "idx") as engine:
        told = {"method": "both", "beam": 7, "rerank": "vectors", "chosen_on": "val"}
        assert engine.stats()["search"] == told


def test_stats_shows_how_well_codes_tell_items_apart(indexed, tmp_path):
    health = json.loads(indexed("stats", "--codes", "--format", "json").out)["health"]
    sizes = facts(indexed)["sizes"]
    assert [level["size"] for level in health["levels"]] == sizes and health["items"] == 11
    assert health["levels"][0]["buckets"] == 3 and health["purity"] == 1.0  # three modalities
    lines = indexed("stats", "--codes").out.split("\n\n")[1].splitlines()
    assert lines[0].startswith("11 items, collisions ") and lines[1].split()[0] == "level"
    assert [line.split()[1] for line in lines[2:-1]] == [str(size) for size in sizes]
    assert "health" not in facts(indexed)
    Index.create(tmp_path / "new", model="mini", fingerprint="0", sizes=(3, 4), dim=8)
    assert "no items yet" in indexed("stats", "--codes", "--in", tmp_path / "new").out


def test_remove_counts_what_was_there(indexed):
    assert indexed("remove", "red.png", "nobody", "red.png", "--ignore-missing") == (0, "removed 1\n", "")
    assert indexed("remove", "red.png", "--ignore-missing").out == "removed 0\n"
    assert facts(indexed)["removed"] == 1
    assert indexed("compact").out == "generation 2\n"
    assert facts(indexed)["removed"] == 0 and facts(indexed)["items"] == 10


def test_remove_names_what_is_not_there(indexed):
    done = indexed("remove", "nothere", "red.png", "blue.png", "elsewhere")
    assert done.code == 2 and done.out == "removed 2\n"
    assert "'nothere', 'elsewhere'" in done.err and "red.png" not in done.err
    assert facts(indexed)["items"] == 9
    assert indexed("remove", "bad\ud800").code == 2  # no item can have such an id


def test_check_and_repair(indexed, tmp_path):
    assert indexed("check").out == "11 items, nothing wrong\n"
    assert indexed("check", "--repair").out == "11 items, nothing wrong\n"
    file = tmp_path / "genius-index" / "generation-000001" / "records.bin"
    file.write_bytes(b"")
    damaged = indexed("check")
    assert damaged.code == 6 and "check --repair" in damaged.err
    assert "nothing is lost" in indexed("check", "--repair").out
    assert indexed("check").code == 0
    truth = tmp_path / "genius-index" / "index.sqlite"
    truth.write_bytes(b"x" * 5000 + truth.read_bytes()[5000:])
    assert indexed("stats").code == 6
    done = indexed("check", "--repair")
    assert done.code == 0 and done.out.startswith("saved ")
    assert indexed("check").code == 0


@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_export_and_import(indexed, kind, pictures):
    ask = ("search", "red", "--want", "image", "-k", "3", "--format", "jsonl")
    before = [json.loads(line) for line in indexed(*ask).out.splitlines()]
    assert indexed("export", f"all.{kind}").out == f"all.{kind}\n"
    assert indexed("import", f"all.{kind}", "--to", "copy").out == "imported 11\n"
    after = [json.loads(line) for line in indexed(*ask, "--in", "copy").out.splitlines()]
    assert [(hit["id"], hit["score"], hit["codes"]) for hit in after] == [
        (hit["id"], hit["score"], hit["codes"]) for hit in before
    ]
    assert indexed("check", "--in", "copy").code == 0
    assert indexed("export", "all.zip").code == 2
    again = indexed("index", pictures, "--to", "copy", "--format", "json")
    assert json.loads(again.out)["added"] == 0  # known by their hashes, not encoded again


def test_help_stats_and_remove_import_no_torch(indexed, tmp_path):
    script = (
        "import sys\n"
        "from genius import cli\n"
        "sys.argv[0] = 'genius'\n"
        "try:\n    cli.main()\n"
        "except SystemExit as ended:\n    code = ended.code or 0\n"
        "heavy = {'torch', 'transformers', 'faiss', 'fastapi'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    verbs = (
        ["--help"],
        ["stats"],
        ["stats", "--codes"],
        ["remove", "red.png"],
        ["check"],
        ["compact"],
        ["export", "x.jsonl"],
        ["index", "--help"],
    )
    for verb in verbs:
        done = subprocess.run(
            [sys.executable, "-c", script, *verb], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_the_shell_completes_verbs(genius, monkeypatch):
    monkeypatch.setenv("_GENIUS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "genius sea")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert genius().out.split() == ["search"]


def test_help_tells_the_exit_code_of_every_error(genius):
    told = " ".join(genius("--help").out.split())
    codes = {kind.exit_code for kind in GeniusError.__subclasses__()}
    assert len(codes) >= 9 and all(f" {code} " in told for code in codes)


def test_stats_for_people_leave_out_what_there_is_not(genius, pictures):
    genius("index", pictures, "--to", "idx")
    told = genius("stats", "--in", "idx").out
    assert "None" not in told and not any(line.startswith("fit") for line in told.splitlines())
    assert json.loads(genius("stats", "--in", "idx", "--format", "json").out)["fit"]["fits"] == 0


def test_check_looks_for_files_that_went(genius, pictures):
    genius("index", pictures, "--to", "idx")
    assert genius("check", "--files", "--in", "idx").out == "10 files, all where they were\n"
    (pictures / "red.png").rename(pictures / "rot.png")
    done = genius("check", "--files", "--in", "idx")
    assert done.code == 2 and done.out.startswith("moved  red.png") and "rot.png" in done.out
    assert "1 of 10 files are not where they were, 1 of them moved" in done.err
    found = genius("search", "red", "--want", "image", "-k", 1, "--in", "idx").out
    assert "(file not found)" in found
    page = genius("search", "red", "--want", "image", "-k", 1, "--in", "idx", "--format", "html").out
    assert "1. red.png, file not found" in page and "file:" not in page


def test_check_looks_for_files_of_a_table(genius, pictures, tmp_path):
    (tmp_path / "shop.csv").write_text("id,image\na,pictures/red.png\nb,pictures/blue.png\n")
    genius("index", "shop.csv", "--to", "idx")
    pictures.rename(tmp_path / "photos")
    (tmp_path / "photos" / "blue.png").unlink()
    done = genius("check", "--files", "--in", "idx")
    assert done.code == 2 and "2 of 2 files are not where they were, 1 of them moved" in done.err
    assert f"-> {tmp_path / 'photos' / 'red.png'}" in done.out and "gone   b" in done.out


def test_duplicates_are_shown_in_groups(genius, pictures):
    shutil.copy(pictures / "red.png", pictures / "rot.png")
    genius("index", pictures, "--to", "idx")
    done = genius("duplicates", "--exact", "--in", "idx")
    assert done.out.splitlines()[0] == "same content" and "1 group, 1 copy;" in done.err
    found = json.loads(genius("duplicates", "--in", "idx", "--at-least", "0.999", "--format", "json").out)
    assert {"ids": ["red.png", "rot.png"], "similarity": 1.0, "exact": True} in found
