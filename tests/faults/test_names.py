"""Faults 18 and 19: odd trees, odd names and odd texts are walked once, printed safely, never fatal."""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genius.data.folder import item_id, read_folder
from genius.data.report import Report, is_printable, printable
from genius.data.tables import read_items
from genius.data.texts import MAX_CHARS, clean_text, read_text
from genius.errors import BadInput

# 18: trees


def found(root: Path, report: Report | None = None) -> list[str]:
    return [item.id for item in read_folder(root, report=report)]


def test_symlink_loops_are_walked_once(tmp_path: Path) -> None:
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "sub" / "deep" / "x.jpg").touch()
    (tmp_path / "sub" / "deep" / "up").symlink_to(tmp_path)
    (tmp_path / "a_link").symlink_to(tmp_path / "sub")
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    report = Report()
    assert found(tmp_path, report) == ["sub/deep/x.jpg"]  # by its real path, though a_link sorts first
    assert sorted(name.rpartition("/")[2] for name, _ in report.names) == ["gone.jpg", "loop.jpg", "self"]


def test_a_linked_folder_outside_is_walked(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "x.jpg").touch()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "one").symlink_to(tmp_path / "photos")
    (tmp_path / "root" / "two").symlink_to(tmp_path / "photos")
    assert found(tmp_path / "root") == ["one/x.jpg"]


def test_an_unreadable_folder_is_reported_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("closed", "open"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jpg").touch()
    scandir = os.scandir

    def guarded(path: Any) -> Any:  # root may read everything, so the refusal is played
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    report = Report()
    assert found(tmp_path, report) == ["open/x.jpg"]
    assert report.names == [(str(tmp_path / "closed"), "folder cannot be read: Permission denied")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_closed_folder_and_file(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    (tmp_path / "closed.txt").write_text("secret")
    (tmp_path / "closed.txt").chmod(0)
    (tmp_path / "x.jpg").touch()
    report = Report()
    assert found(tmp_path, report) == ["x.jpg"]
    assert report.skipped == 2


def test_pipes_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    os.mkfifo(tmp_path / "pipe.jpg")
    report = Report()
    assert found(tmp_path, report) == []
    assert report.skipped == 2


# 18: names


ODD = [
    b"new\nline.jpg",
    b"esc\x1b[31mred.jpg",
    b"bad\xff\xfeutf8.jpg",
    b"tab\t.jpg",
    "rtl\u202egpj.jpg".encode(),
    b"back\\slash.jpg",
]


def test_odd_names_give_safe_ids_and_files_that_open(tmp_path: Path) -> None:
    for name in ODD:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"x")
    items = list(read_folder(tmp_path))
    assert len({item.id for item in items}) == len(ODD)
    database = sqlite3.connect(":memory:")
    for item in items:
        assert is_printable(item.id)
        assert "\n" not in item.id
        assert "\x1b" not in item.id
        line = json.dumps({"id": item.id}, ensure_ascii=False)
        assert json.loads(line.encode().decode())["id"] == item.id
        assert database.execute("select ?", (item.id,)).fetchone() == (item.id,)
        assert isinstance(item.image, Path)
        assert item.image.read_bytes() == b"x"
    database.close()


def test_two_names_never_share_an_id(tmp_path: Path) -> None:
    for name in (b"\xff.jpg", b"\\udcff.jpg", b"\\\\udcff.jpg"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).touch()
    assert len(set(found(tmp_path))) == 3


@given(st.text(st.characters()), st.text(st.characters()))
def test_ids_are_printable_and_as_different_as_the_paths(one: str, two: str) -> None:
    assert is_printable(item_id(one))
    item_id(one).encode()
    assert (item_id(one) == item_id(two)) == (one == two)


def test_reports_are_one_safe_line_for_each_name() -> None:
    report = Report()
    report.skip(Path("a\nb\x1b[2J\udcff.jpg"), "bad\rreason")
    assert list(report.lines()) == ["1 skipped", r"  a\nb\x1b[2J\udcff.jpg: bad\rreason"]
    assert printable("naïve café 写真 👩‍🚀") == "naïve café 写真 👩‍🚀"


def test_the_report_stays_small() -> None:
    report = Report(keep=10)
    for number in range(5000):
        report.skip(f"file {number}", f"reason {number}")
    assert report.skipped == 5000
    assert sum(report.reasons.values()) == 5000
    assert len(report.reasons) == 11
    assert len(report.names) == 10
    assert list(report.lines())[-1] == "  and 4990 more"


# 19: texts


@pytest.mark.parametrize(
    ("text", "clean", "flags"),
    [
        ("  plain\n", "plain", ()),
        ("", "", ()),
        (" \n\t ", "", ()),
        ("🐶🐱", "🐶🐱", ()),
        ("one\0two", "one two", ("replaced",)),
        ("half \ud83d here", "half \ufffd here", ("replaced",)),
        ("\0\0", "", ("replaced",)),
        ("x" * 1_000_000, "x" * MAX_CHARS, ("cut",)),
        ("\0" + "x" * 1_000_000, "x" * (MAX_CHARS - 1), ("cut", "replaced")),
        (" " * 1_000_000 + "end", "end", ()),
    ],
)
def test_texts_are_cleaned_cut_and_flagged(text: str, clean: str, flags: tuple[str, ...]) -> None:
    assert clean_text(text) == (clean, flags)


@given(st.text(st.characters(), max_size=60), st.integers(1, 40))
def test_a_clean_text_is_short_and_storable(text: str, limit: int) -> None:
    cleaned, flags = clean_text(text, limit)
    assert len(cleaned) <= limit
    assert "\0" not in cleaned
    cleaned.encode()
    assert clean_text(cleaned, limit) == (cleaned, ())
    if not flags:
        assert cleaned == text.strip()


def test_text_files(tmp_path: Path) -> None:
    def written(data: bytes) -> Path:
        file = tmp_path / "a.txt"
        file.write_bytes(data)
        return file

    assert read_text(written(b"\xef\xbb\xbfwith a mark")) == ("with a mark", ())
    assert read_text(written("größe".encode("utf-16"))) == ("größe", ())
    assert read_text(written("größe".encode("latin-1"))) == ("gr\ufffd\ufffde", ("replaced",))
    assert read_text(written("日本".encode() * 100_000)) == (("日本" * MAX_CHARS)[:MAX_CHARS], ("cut",))
    assert read_text(written(b"abc" + b" " * 1_000_000)) == ("abc", ("cut",))
    with pytest.raises(BadInput, match="no text"):
        read_text(written(b"PK\x03\x04\0\0\0\0"))
    with pytest.raises(BadInput, match="cannot be read"):
        read_text(tmp_path / "absent.txt")


def test_a_folder_of_odd_texts(tmp_path: Path) -> None:
    texts = {"empty": b"", "blank": b" \n ", "nul": b"a\0b", "long": b"x" * 1_000_000, "emoji": "🎉".encode()}
    for name, data in texts.items():
        (tmp_path / f"{name}.txt").write_bytes(data)
    (tmp_path / "empty.jpg").touch()
    report = Report()
    items = {item.id: item for item in read_folder(tmp_path, report=report)}
    assert set(items) == {"empty.jpg", "emoji.txt", "long.txt"}
    assert items["empty.jpg"].text is None  # the image stands alone
    assert items["long.txt"].meta == {"text_flags": ["cut"]}
    assert items["emoji.txt"].meta == {}
    assert {name.rpartition("/")[2]: reason for name, reason in report.names} == {
        "empty.txt": "empty text",
        "blank.txt": "empty text",
        "nul.txt": "is no text: it has NUL bytes",
    }


def test_tables_of_odd_texts(tmp_path: Path) -> None:
    lines = ['{"id": 1, "text": ""}', '{"id": 2, "text": "a\\u0000b \\ud800"}', '{"id": 3, "text": "🎉"}']
    lines += [json.dumps({"id": 4, "text": "x" * 1_000_000}), '{"id": "new\\nline", "text": "x"}']
    lines += ['{"id": 6, "text": "fine", "extra": "\\udfff"}']
    file = tmp_path / "odd.jsonl"
    file.write_text("\n".join(lines))
    report = Report()
    items = {item.id: item for item in read_items(file, report=report)}
    assert set(items) == {"2", "3", "4"}
    assert items["2"].text == "a b \ufffd"
    assert items["2"].meta == {"text_flags": ["replaced"]}
    assert items["4"].meta == {"text_flags": ["cut"]}
    assert [name.rpartition(":")[2] for name, _ in report.names] == ["1", "5", "6"]
