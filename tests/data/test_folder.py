"""read_folder: images, texts and pairs of a tree, lazily and in a fixed order."""

from pathlib import Path

import pytest

from genius.data.folder import read_folder
from genius.data.report import Report
from genius.errors import BadInput
from genius.types import Item, Modality


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Pairs, single images and texts, hidden and foreign files; the images are never opened."""
    files = {
        "a.jpg": "", "a.txt": "a caption", "b.PNG": "", "notes.TXT": "only a text",
        "sub/c.webp": "", "sub/deep/d.jpeg": "", "sub/deep/d.txt": "d's caption",
        ".hidden.jpg": "", ".git/e.jpg": "", "paper.pdf": "", "drafts/f.gif": "",
    }  # fmt: skip
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def ids(items: list[Item]) -> list[str]:
    return [item.id for item in items]


def test_pairs_images_and_texts(tree: Path) -> None:
    report = Report()
    items = {item.id: item for item in read_folder(tree, report=report)}
    expected = ["a.jpg", "b.PNG", "notes.TXT", "drafts/f.gif", "sub/c.webp", "sub/deep/d.jpeg"]
    assert list(items) == expected
    assert items["a.jpg"] == Item("a.jpg", tree / "a.jpg", "a caption")
    assert items["a.jpg"].modality is Modality.PAIR
    assert items["b.PNG"].modality is Modality.IMAGE
    assert items["notes.TXT"] == Item("notes.TXT", None, "only a text")
    assert items["sub/deep/d.jpeg"].text == "d's caption"
    assert (report.read, report.skipped, report.ignored) == (6, 0, {".pdf": 1})


def test_the_order_is_the_same_every_time(tree: Path) -> None:
    assert ids(list(read_folder(tree))) == ids(list(read_folder(str(tree))))


@pytest.mark.parametrize(
    ("pattern", "gone"),
    [
        ("*.gif", {"drafts/f.gif"}),
        ("drafts", {"drafts/f.gif"}),
        ("drafts/", {"drafts/f.gif"}),
        ("sub/*", {"sub/c.webp", "sub/deep/d.jpeg"}),
        ("deep", {"sub/deep/d.jpeg"}),
        ("nothing", set()),
    ],
)
def test_exclude(tree: Path, pattern: str, gone: set[str]) -> None:
    everything = set(ids(list(read_folder(tree))))
    assert everything - set(ids(list(read_folder(tree, exclude=[pattern])))) == gone


def test_two_images_share_their_text_and_a_second_text_is_reported(tmp_path: Path) -> None:
    for name in ("x.jpg", "x.png"):
        (tmp_path / name).touch()
    (tmp_path / "x.TXT").write_text("upper")
    (tmp_path / "x.txt").write_text("lower")
    report = Report()
    assert {item.id: item.text for item in read_folder(tmp_path, report=report)} == {
        "x.jpg": "upper",
        "x.png": "upper",
    }
    assert [name.rpartition("/")[2] for name, _ in report.names] == ["x.txt"]


def test_folders_are_listed_only_when_their_items_are_asked_for(tmp_path: Path) -> None:
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jpg").touch()
    items = read_folder(tmp_path)
    assert next(items).id == "a/x.jpg"
    (tmp_path / "b" / "late.jpg").touch()
    assert ids(list(items)) == ["b/late.jpg", "b/x.jpg"]


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no folder at"):
        list(read_folder(tmp_path / "absent"))


def test_what_is_not_read_is_counted_by_its_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genius.data.folder.SUFFIXES", {".jpg", ".nef"})
    names = ("a.heic", "b.HEIC", "c.svg", "d.mov", "e.jpg", "e.nef", "f.nef", "README")
    for name in names:
        (tmp_path / name).touch()
    report = Report()
    assert ids(list(read_folder(tmp_path, report=report))) == ["e.jpg", "f.nef"]  # e.nef is e.jpg, too
    assert list(report.lines()) == [
        'ignored: 2 .heic: pip install "genius-search[heic]"',
        "ignored: 1 .svg: save them as JPEG or PNG",
        "ignored: 1 without an ending, 1 .mov, 1 .nef",
    ]
