"""read_items: JSONL and CSV, line by line; a bad line is named and the rest goes on."""

import json
from itertools import islice
from pathlib import Path

import pytest

from genius.data.lines import numbered_lines
from genius.data.report import Report
from genius.data.tables import read_items
from genius.errors import BadData, BadInput
from genius.types import Item


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "cat.jpg").write_bytes(b"not opened")
    return tmp_path


def written(folder: Path, name: str, *lines: str) -> Path:
    file = folder / name
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_jsonl_fields(folder: Path) -> None:
    file = written(
        folder,
        "items.jsonl",
        '{"id": "a", "image": "pictures/cat.jpg", "text": "a cat", "price": 3, "meta": {"tags": ["x"]}}',
        '{"path": "pictures/cat.jpg"}',
        "",
        '{"id": 7, "text": "only text", "image": null}',
        json.dumps({"id": "absolute", "image": str(folder / "pictures" / "cat.jpg")}),
    )
    cat = folder / "pictures" / "cat.jpg"
    report = Report()
    assert list(read_items(file, report=report)) == [
        Item("a", cat, "a cat", {"price": 3, "tags": ["x"]}),
        Item("pictures/cat.jpg", cat),
        Item("7", None, "only text"),
        Item("absolute", cat),
    ]
    assert (report.read, report.skipped) == (4, 0)


BAD_JSON = {
    "{": "not JSON",
    "[1, 2]": "a JSON object is expected, not list",
    '{"id": "x"}': "neither image nor text",
    '{"id": "x", "text": "  "}': "empty text and no image",
    '{"text": "no id"}': "no id",
    '{"id": true, "text": "t"}': "no id",
    '{"id": "  ", "text": "t"}': "no id",
    '{"id": "x", "text": 5}': "text: a string is expected, not int",
    '{"id": "x", "image": ["a"]}': "image: a string is expected, not list",
    '{"id": "x", "image": "absent.jpg"}': "no image at",
    '{"id": "x", "image": "nul\\u0000.jpg"}': "no image at",
    '{"id": "x", "image": "pictures"}': "no image at",
    json.dumps({"id": "x", "image": "y" * 5000}): "no image at",
    '{"id": "x", "text": "t", "meta": 3}': "meta: a JSON object is expected",
    '{"id": "x", "text": "t", "score": NaN}': "NaN is not JSON",
    '{"id": "x", "text": "t", "deep": ' + "[" * 100_000 + "}": "nested too deeply",
}


@pytest.mark.parametrize("line", BAD_JSON, ids=range(len(BAD_JSON)))
def test_a_bad_jsonl_line_is_named_and_the_rest_goes_on(folder: Path, line: str) -> None:
    file = written(folder, "items.jsonl", '{"id": 1, "text": "a"}', line, '{"id": 3, "text": "c"}')
    report = Report()
    assert [item.id for item in read_items(file, report=report)] == ["1", "3"]
    assert report.skipped == 1
    assert report.names[0].name == f"{file}:2"
    assert BAD_JSON[line] in report.names[0].reason


def test_bytes_that_are_no_utf8(folder: Path) -> None:
    file = folder / "items.jsonl"
    file.write_bytes(b'{"id": 1, "text": "\xff"}\n{"id": 2, "text": "b"}')
    report = Report()
    assert [item.id for item in read_items(file, report=report)] == ["2"]
    assert report.names[0].reason == "not UTF-8"


def test_csv_fields(folder: Path) -> None:
    file = written(
        folder,
        "items.csv",
        "\ufeffID,image,text,Price,meta",
        'a,pictures/cat.jpg,"a ""fine"" cat, sitting",3,"{""tags"": [1]}"',
        "b,,only text,,",
        "",
        "short,,only text",
    )
    cat = folder / "pictures" / "cat.jpg"
    assert list(read_items(file)) == [
        Item("a", cat, 'a "fine" cat, sitting', {"Price": "3", "tags": [1]}),
        Item("b", None, "only text"),
        Item("short", None, "only text"),
    ]


def test_tsv(folder: Path) -> None:
    assert list(read_items(written(folder, "items.tsv", "id\ttext", "a\tone, two"))) == [
        Item("a", None, "one, two")
    ]


def test_bad_csv_lines_are_named_and_the_rest_goes_on(folder: Path) -> None:
    file = folder / "items.csv"
    huge = b"c," + b"x" * 200_000
    file.write_bytes(b"id,text\na,one\nb,two,three\n" + huge + b"\n,none\nd,\xff\ne,five\n")
    report = Report()
    items = list(read_items(file, report=report))
    assert [(item.id, item.text) for item in items] == [("a", "one"), ("d", "ÿ"), ("e", "five")]
    assert [name.rpartition(":")[2] for name, _ in report.names] == ["3", "4", "5"]


def test_a_csv_without_a_header_is_refused(folder: Path) -> None:
    with pytest.raises(BadData, match="no column is called image, path, text or vector"):
        list(read_items(written(folder, "items.csv", "a,pictures/cat.jpg")))


def test_folders_and_single_files(folder: Path) -> None:
    cat = folder / "pictures" / "cat.jpg"
    assert list(read_items(folder)) == [Item("pictures/cat.jpg", cat)]
    assert list(read_items(str(folder), exclude=["*.jpg"])) == []
    assert list(read_items(cat)) == [Item("cat.jpg", cat)]
    assert list(read_items(written(folder, "a.txt", "hello"))) == [Item("a.txt", None, "hello")]


def test_what_cannot_be_read_says_what_can(folder: Path) -> None:
    with pytest.raises(BadInput, match="no folder or file at"):
        read_items(folder / "absent.jsonl")
    with pytest.raises(BadInput, match=r"ending in \.jsonl"):
        read_items(written(folder, "items.doc", "x"))


def test_lines_are_read_one_at_a_time(folder: Path) -> None:
    file = written(folder, "items.jsonl", *(json.dumps({"id": n, "text": "x" * 1000}) for n in range(2000)))
    items = read_items(file)
    assert [item.id for item in islice(items, 3)] == ["0", "1", "2"]
    with file.open("a") as stream:  # only a reader that streams sees what comes later
        stream.write('{"id": "late", "text": "later"}\n')
    *_, last = items
    assert last.id == "late"


def test_an_endless_line_is_passed_over_without_being_held(tmp_path: Path) -> None:
    file = tmp_path / "long"
    file.write_bytes(b"one\n" + b"x" * 1000 + b"\n\n" + b"y" * 9 + b"\n" + b"z" * 10)
    assert list(numbered_lines(file, max_bytes=10)) == [
        (1, b"one\n"),
        (2, None),
        (4, b"y" * 9 + b"\n"),
        (5, None),
    ]
