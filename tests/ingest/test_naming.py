"""Ids of files: nothing is lost when two folders have the same names; ids stay what they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from genius.ingest.naming import possible_ids


def test_more_and_more_of_the_path_stands_before_a_name() -> None:
    assert possible_ids("x.jpg", "/home/ann/B") == ["x.jpg", "B/x.jpg", "ann/B/x.jpg", "home/ann/B/x.jpg"]
    assert possible_ids("x.jpg", "s3://shop/B")[1] == "B/x.jpg"
    assert possible_ids("x.jpg", "/odd\n")[1] == "odd\\n/x.jpg"
    assert all(len(name) <= 1000 for name in possible_ids("x" * 990, "/a/" + "b" * 20))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders with other pictures of the same name, and other notes."""
    for name, colour in (("A", "red"), ("B", "blue")):
        (tmp_path / name / "sub").mkdir(parents=True)
        Image.new("RGB", (32, 32), colour).save(tmp_path / name / "sub" / "x.png")
        (tmp_path / name / "note.txt").write_text(f"about {colour}")
    return tmp_path / "A", tmp_path / "B"


def ids(engine) -> dict[str, str | None]:
    """Every id, with the path of its file."""
    rows = engine.index.truth.records(engine.index.truth.rows().tolist())
    return {record.id: record.path for record in rows.values()}


def test_two_folders_with_the_same_names(make_engine, folders) -> None:
    engine, (one, other) = make_engine(), folders
    for _ in range(2):  # the second time, nothing is new
        for folder in folders:
            result = engine.add_from(folder)
        assert ids(engine) == {
            "note.txt": None,
            "sub/x.png": str(one / "sub" / "x.png"),
            "B/note.txt": None,
            "B/sub/x.png": str(other / "sub" / "x.png"),
        }
    assert (result.unchanged, result.updated, result.added) == (2, 0, 0)


def test_an_id_stays_when_the_other_folder_is_gone(make_engine, folders) -> None:
    engine, (one, other) = make_engine(), folders
    for folder in folders:
        engine.add_from(folder)
    engine.remove(["note.txt", "sub/x.png"])
    shutil.rmtree(one)
    assert engine.add_from(other, prune=True).unchanged == 2
    assert set(ids(engine)) == {"B/note.txt", "B/sub/x.png"}


def test_a_folder_that_was_moved_keeps_its_ids(make_engine, folders) -> None:
    engine, (one, other) = make_engine(), folders
    engine.add_from(one)
    moved = one.rename(one.with_name("C"))
    result = engine.add_from(moved)
    assert ids(engine) == {"note.txt": None, "sub/x.png": str(moved / "sub" / "x.png")}
    assert (result.added, result.updated) == (0, 2)  # their paths; nothing is encoded again
    assert set(ids(engine)) == {"note.txt", "sub/x.png"}
    shutil.rmtree(moved)  # a disk that is not there: others of that name are other pictures
    engine.add_from(other)
    assert set(ids(engine)) == {"note.txt", "sub/x.png", "B/note.txt", "B/sub/x.png"}


def test_pruning_one_folder_spares_the_other(make_engine, folders) -> None:
    engine, (_, other) = make_engine(), folders
    for folder in folders:
        engine.add_from(folder)
    (other / "note.txt").write_text("")  # is skipped, but still there
    assert engine.add_from(other, prune=True).removed == 0
    (other / "sub" / "x.png").unlink()
    assert engine.add_from(other, prune=True).removed == 1
    assert set(ids(engine)) == {"note.txt", "B/note.txt", "sub/x.png"}


def test_a_file_does_not_replace_a_row_of_a_table(make_engine, folders, tmp_path) -> None:
    engine, (one, _) = make_engine(), folders
    table = tmp_path / "items.jsonl"
    table.write_text('{"id": "note.txt", "text": "a row"}')
    engine.add_from(table)
    engine.add_from(one)
    assert engine.get("note.txt").text == "a row"
    assert engine.get("A/note.txt").text == "about red"


def test_single_files_of_one_name(make_engine, folders) -> None:
    engine, (one, other) = make_engine(), folders
    for folder in (one, other, one):
        engine.add_from(folder / "sub" / "x.png")
    assert set(ids(engine)) == {"x.png", "sub/x.png"}


def test_repeated_ids_of_a_table_are_counted_and_named(make_engine, tmp_path) -> None:
    engine, table = make_engine(), tmp_path / "items.jsonl"
    lines = [f'{{"id": "{number % 70}", "text": "row {number}"}}' for number in range(100)]
    table.write_text("\n".join([*lines, '{"id": "near", "text": "a"}', '{"id": "near", "text": "b"}']))
    result = engine.add_from(table)
    assert (result.added, result.updated, result.repeated, result.done) == (71, 0, 31, 102)
    assert result.repeats[0] in {"near", "0"} and len(result.repeats) == 10
    assert engine.get("3").text == "row 73" and engine.get("near").text == "b"
    again = engine.add_from(table)
    assert (again.added, again.repeated, again.done) == (0, 31, 102)
