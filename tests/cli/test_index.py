"""`genius index`: files in, a summary out; run again, only changes are taken up."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest
from PIL import Image


def summary(done) -> dict[str, int]:
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_a_folder_is_indexed_and_brought_up_to_date(genius, pictures):
    run = ("index", pictures, "--to", "idx", "--format", "json")
    none = dict.fromkeys(("updated", "unchanged", "repeated", "skipped", "removed", "long_texts"), 0)
    new = {"added": 11, **none, "ignored": {}, "items": 11}
    assert summary(genius(*run)) == new
    assert summary(genius(*run)) == new | {"added": 0, "unchanged": 11}
    Image.new("RGB", (32, 24), "white").save(pictures / "red.png")
    Image.new("RGB", (32, 24), "pink").save(pictures / "pink.png")
    (pictures / "blue.png").unlink()
    changed = summary(genius(*run, "--prune"))
    assert (changed["added"], changed["removed"], changed["items"]) == (1, 1, 11)
    assert (
        json.loads(
            genius("search", "red", "--no-hybrid", "--want", "image", "--in", "idx", "--format", "json").out
        )[0]["id"]
        != "red.png"
    )


def test_pruning_spares_other_sources_and_unreadable_folders(genius, pictures, tmp_path, monkeypatch):
    other = tmp_path / "other"
    shutil.copytree(pictures, other / "sub")
    genius("index", pictures, other, "--to", "idx")
    (pictures / "blue.png").unlink()
    assert summary(genius("index", pictures, "--to", "idx", "--prune", "--format", "json"))["removed"] == 1
    real = os.scandir

    def closed(folder):
        if str(folder).endswith("sub"):
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr(os, "scandir", closed)
    done = genius("index", other, "--to", "idx", "--prune", "--format", "json")
    assert "nothing was pruned" in done.err and json.loads(done.out)["items"] == 21


def test_bad_files_are_skipped_and_named(genius, pictures):
    (pictures / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (pictures / "empty.jpg").write_bytes(b"")
    done = genius("index", pictures, "--to", "idx", "--format", "json")
    assert summary(done)["skipped"] == 2
    assert "broken.png" in done.err and "empty.jpg" in done.err


def test_nothing_usable_is_an_error(genius, tmp_path):
    (tmp_path / "x.png").write_bytes(b"no image")
    done = genius("index", tmp_path / "x.png", "--to", "idx")
    assert done.code == 2 and "none of the files" in done.err


def test_an_empty_folder_is_remarked_on(genius, tmp_path):
    (tmp_path / "empty").mkdir()
    done = genius("index", tmp_path / "empty", "--to", "idx", "--format", "json")
    assert done.code == 0 and json.loads(done.out)["items"] == 0
    assert "nothing to index" in done.err and "empty" in done.err


def test_a_missing_path_is_refused_before_any_work(genius, pictures):
    done = genius("index", pictures, "nowhere", "--to", "idx")
    assert done.code == 2 and "nowhere" in done.err
    assert not (pictures.parent / "idx").exists()


def test_the_index_does_not_index_itself(genius, pictures):
    genius("index", pictures, "--to", pictures / "idx")
    (pictures / "idx" / "files").mkdir()
    shutil.copy(pictures / "red.png", pictures / "idx" / "files" / "own.png")
    assert summary(genius("index", pictures, "--to", pictures / "idx", "--format", "json"))["items"] == 11


def test_excluded_names_and_tables(genius, pictures, tmp_path):
    table = tmp_path / "items.jsonl"
    lines = [{"id": "a", "text": "red"}, {"id": "b", "image": "pictures/blue.png", "price": 3}, {"id": "c"}]
    table.write_text("\n".join(json.dumps(line) for line in lines))
    done = genius("index", pictures, table, "--to", "idx", "--exclude", "*.png", "--format", "json")
    assert summary(done)["skipped"] == 1
    assert summary(done)["items"] == 4  # two texts of the folder, two lines of the table
    assert "items.jsonl:3" in done.err


def test_without_vectors_and_by_environment(genius, pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("GENIUS_INDEX", str(tmp_path / "by-name"))
    assert genius("index", pictures, "--no-vectors").code == 0
    facts = json.loads(genius("stats", "--format", "json").out)
    assert facts["vectors"] is False and facts["items"] == 11 and facts["folder"] == str(tmp_path / "by-name")
    assert genius("search", "red", "--want", "image", "--format", "paths").out.splitlines()[0] == str(
        pictures / "red.png"
    )


def test_vectors_are_decided_when_the_index_is_made(genius, pictures):
    genius("index", pictures, "--to", "idx")
    done = genius("index", pictures, "--to", "idx", "--no-vectors")
    assert done.code == 2 and "with vectors" in done.err


def test_another_model_is_refused_with_the_cure(genius, pictures, fake, monkeypatch):
    genius("index", pictures, "--to", "idx")
    monkeypatch.setattr(
        "genius.engine.opening.load_model", lambda name, device="cpu": fake.FakeModel(str(name), seed=9)
    )
    done = genius("index", pictures, "--to", "idx", "--model", "other")
    assert done.code == 8 and "genius index PATH --to NEW_FOLDER --model other" in done.err


def test_old_files_are_known_by_their_stamp(genius, pictures, fake, monkeypatch):
    past = time.time() - 3600
    for file in pictures.iterdir():
        os.utime(file, (past, past))
    monkeypatch.setattr(
        "genius.store.records.SETTLED_NS", -(10**18)
    )  # their inodes are as young as this test
    genius("index", pictures, "--to", "idx")
    monkeypatch.setattr("genius.ingest.item.open_image", lambda *a, **k: 1 / 0)
    assert summary(genius("index", pictures, "--to", "idx", "--format", "json"))["unchanged"] == 11


def test_rows_change_stored_items(genius, pictures, tmp_path):
    genius("index", pictures, "--to", "idx")
    (tmp_path / "prices.csv").write_text("id,price\nred.png,3\nabsent,4\n")
    done = genius("index", "prices.csv", "--update", "--to", "idx", "--format", "json")
    assert summary(done)["updated"] == 1 and "absent: no item has this id" in done.err
    done = genius("index", pictures, "--update", "--to", "idx")
    assert done.code == 2 and "reads a table" in done.err


def test_repeated_ids_are_said(genius, tmp_path):
    (tmp_path / "items.csv").write_text("id,text\na,one\nb,two\na,three\n")
    done = genius("index", "items.csv", "--to", "idx", "--format", "json")
    assert summary(done)["repeated"] == 1 and summary(done)["items"] == 2
    assert (
        "1 item has an id that came before in items.csv, and the last one of each id was kept: a\n"
        in done.err
    )
    (tmp_path / "items.csv").write_text("id,text\n" + "a,one\n" * 4)
    again = genius("index", "items.csv", "--to", "idx")
    assert "3 items have an id that came before" in again.err and "kept: a\n" in again.err


def test_a_dry_run_says_what_would_be_done(genius, pictures, fake):
    dry = ("index", pictures, "--to", "idx", "--format", "json", "--dry-run", "--prune")
    done = genius(*dry)
    assert summary(done)["added"] == 11 and "dry run" in done.err
    assert not (pictures.parent / "idx").exists()
    genius("index", pictures, "--to", "idx")
    Image.new("RGB", (32, 24), "white").save(pictures / "red.png")
    Image.new("RGB", (32, 24), "pink").save(pictures / "pink.png")
    (pictures / "blue.png").unlink()
    found = summary(genius(*dry))
    counts = {name: found[name] for name in ("added", "updated", "unchanged", "removed")}
    assert counts == {"added": 1, "updated": 1, "unchanged": 9, "removed": 1}
    real = summary(genius("index", pictures, "--to", "idx", "--format", "json", "--prune"))
    assert counts == {name: real[name] for name in counts}


def test_a_dry_run_of_a_table_counts_as_the_run_does(genius, tmp_path):
    """Prices that change, ids that come twice, pictures that are missing."""
    Image.new("RGB", (32, 24), "red").save(tmp_path / "red.png")
    file = tmp_path / "stock.csv"
    file.write_text("id,image,text,price\na,red.png,one,1\nb,gone.png,two,2\nc,,three,3\nc,,three,4\n")
    run = ("index", "stock.csv", "--to", "idx", "--format", "json")
    names = ("added", "updated", "unchanged", "repeated", "skipped")

    def counts(done):
        return {name: summary(done)[name] for name in names}

    for prices in ("1234", "1239", "1239"):
        rows = [line.rsplit(",", 1)[0] for line in file.read_text().splitlines()[1:]]
        lines = [f"{row},{price}" for row, price in zip(rows, prices, strict=True)]
        file.write_text("\n".join(["id,image,text,price", *lines]))
        dry = genius(*run, "--dry-run")
        assert "the last one of each id was kept: c\n" in dry.err and "its text would be kept" in dry.err
        assert counts(dry) == counts(genius(*run))


def test_a_dry_run_of_an_update_counts_as_the_update_does(genius, pictures, tmp_path):
    genius("index", pictures, "--to", "idx")
    (tmp_path / "prices.csv").write_text("id,price\nred.png,3\nblue.png,4\nabsent,5\n")
    run = ("index", "prices.csv", "--update", "--to", "idx", "--format", "json")
    for updated in (2, 0):
        dry = genius(*run, "--dry-run")
        assert "absent: no item has this id" in dry.err and "neither image nor text" not in dry.err
        real = summary(genius(*run))
        assert summary(dry) | {"items": 11} == real and real["updated"] == updated
    for more in (["--prune"], [pictures]):
        done, dry = genius(*run, *more), genius(*run, *more, "--dry-run")
        assert done.code == dry.code == 2 and dry.err.splitlines()[-1] == done.err.splitlines()[-1]


def test_watching_indexes_again_when_files_change(genius, pictures, monkeypatch):
    steps = iter(["add", "rest", "none", "remove", "rest", "stop"])

    def sleep(_: float) -> None:
        step = next(steps)
        if step == "add":
            Image.new("RGB", (32, 24), "pink").save(pictures / "pink.png")
        elif step == "remove":
            (pictures / "blue.png").unlink()
        elif step == "stop":
            raise KeyboardInterrupt

    monkeypatch.setattr("genius.ingest.watching.wait_for_change.__defaults__", (sleep,))
    done = genius("index", pictures, "--to", "idx", "--watch", "--prune")
    assert done.code == 130 and f"watching {pictures}; Ctrl-C ends it" in done.err
    assert [line.split() for line in done.out.splitlines() if line.startswith("items")] == [
        ["items", "11"],
        ["items", "12"],
        ["items", "11"],
    ]


def test_progress_is_told_without_a_terminal(genius, pictures, monkeypatch):
    monkeypatch.setattr("genius.cli.output.LINE_EVERY_S", 0.0)
    done = genius("index", pictures, "--to", "idx")
    assert "index pictures: 11 of 10, " in done.err or "index pictures: 11" in done.err


def test_long_texts_are_said_or_split(genius, tmp_path, fake, monkeypatch):
    class Limited(fake.FakeModel):
        max_tokens = 6
        text_limit = property(lambda self: self)

        def count_tokens(self, texts):
            return [2 + len(text.split()) for text in texts]

    monkeypatch.setattr("genius.engine.opening.load_model", lambda name, device="cpu": Limited(str(name)))
    file = tmp_path / "notes.jsonl"
    file.write_text(json.dumps({"id": "long", "text": "Red apples here. Green grass there. Blue sky above."}))
    done = genius("index", file, "--to", "whole")
    assert "1 text is longer than the encoder reads" in done.err and "--split-texts" in done.err
    done = genius("index", file, "--to", "split", "--split-texts", "--format", "json")
    assert "longer" not in done.err and json.loads(done.out)["long_texts"] == 0
    found = genius("search", "green", "--in", "split")
    assert "Green grass there." in found.out and "Red" not in found.out
    (hit,) = json.loads(genius("search", "green", "--in", "split", "--format", "json").out)
    assert hit["text"][slice(*hit["span"])] == "Green grass there."
    assert "Green grass there." in genius("search", "green", "--in", "split", "--format", "html").out
    refused = genius("index", file, "--to", "whole", "--split-texts")
    assert refused.code == 2 and "made without --split-texts" in refused.err


@pytest.mark.parametrize(
    "option",
    [
        ["--update"],
        ["--columns", "id=sku"],
        ["--delimiter", ";"],
        ["--encoding", "cp1252"],
        ["--decimal", ","],
        ["--allow-urls"],
        ["--no-exif"],
        ["--dry-run"],
        ["--watch"],
    ],
)
def test_what_a_cluster_cannot_do_is_refused(genius, pictures, option):
    done = genius("index", pictures, "--cluster", "local", *option)
    assert done.code == 2 and f"{option[0]} cannot be used with --cluster" in done.err
