"""Parquet, tar shards and URIs as items: what a row or a name means, and what is refused."""

from __future__ import annotations

import io
import json
import tarfile
from datetime import date
from pathlib import Path

import pytest

from genius.data.remote import RemotePath, expanded, fetched, is_uri, location
from genius.data.report import Report
from genius.data.tables import read_items
from genius.errors import BadData, BadImage, BadInput
from genius.types import Item


def tar(file: Path, *members: tuple[str, bytes], link: bool = False) -> Path:
    with tarfile.open(file, "w") as shard:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            shard.addfile(member, io.BytesIO(data))
        if link:
            member = tarfile.TarInfo("evil.jpg")
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            shard.addfile(member)
    return file


def test_members_of_one_name_are_one_item(tmp_path):
    fields = {"text": "from the fields", "id": "own", "meta": {"a": 1}, "b": 2}
    shard = tar(
        tmp_path / "s.tar",
        ("x/1.jpg", b"one"),
        ("x/1.txt", b"a caption"),
        ("x/2.json", json.dumps(fields).encode()),
        ("x/2.png", b"two"),
        ("x/3.txt", b"only text"),
        ("x/4.cls", b"7"),
        ("x/5.json", b"{}"),
        ("x/6.json", b"no JSON"),
        link=True,
    )
    report = Report()
    assert list(read_items(shard, report=report)) == [
        Item("x/1", b"one", "a caption"),
        Item("own", b"two", "from the fields", {"a": 1, "b": 2}),
        Item("x/3", None, "only text"),
    ]
    assert (report.read, report.skipped, report.ignored) == (3, 2, {".cls": 1})
    assert dict(report.names)[f"{shard}:x/5"] == "neither image nor text"


def test_a_tar_that_is_none_is_refused(tmp_path):
    (tmp_path / "s.tar").write_bytes(b"x" * 2000)
    with pytest.raises(BadData, match=r"s\.tar: cannot be read"):
        list(read_items(tmp_path / "s.tar"))


def test_rows_of_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    (tmp_path / "cat.jpg").write_bytes(b"not opened")
    rows = [
        {"id": "a", "text": "words", "image": None, "made": date(2025, 1, 2), "price": float("nan")},
        {"id": None, "text": None, "image": {"bytes": b"inside", "path": None}, "made": None, "price": 1.5},
        {"id": None, "text": None, "image": {"bytes": None, "path": "cat.jpg"}, "made": None, "price": None},
        {"id": "d", "text": None, "image": {"bytes": None, "path": "dog.jpg"}, "made": None, "price": None},
        {"id": "e", "text": None, "image": None, "made": None, "price": None},
    ]
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    report = Report()
    assert list(read_items(str(file), report=report)) == [
        Item("a", None, "words", {"made": "2025-01-02"}),
        Item("rows.parquet/2", b"inside", None, {"price": 1.5}),
        Item("cat.jpg", tmp_path / "cat.jpg", None),
    ]
    assert [name for name, _ in report.names] == [f"{file}:4", f"{file}:5"]
    pq.write_table(pa.table({"name": ["x"]}), file)
    with pytest.raises(BadData, match="no column is called image, path, text or vector"):
        list(read_items(file))
    file.write_bytes(b"PAR1 no more")
    with pytest.raises(BadData, match="cannot be read"):
        list(read_items(file))


def test_names_of_places():
    assert is_uri("s3://bucket/x.jpg") and is_uri("gs://b/x")
    assert not is_uri("https://example.org/x.jpg") and not is_uri("C:/x") and not is_uri(Path("s3:/x"))
    assert location("file:///a/b") == Path("/a/b")
    assert location("a/b") == Path("a/b")
    with pytest.raises(BadInput, match="give a path, or a URI of s3"):
        location("https://example.org/x.jsonl")
    place = RemotePath("s3://bucket/folder/x.jsonl")
    assert (place.name, place.suffix, str(place.parent)) == ("x.jsonl", ".jsonl", "s3://bucket/folder")
    assert str(place.parent / "a/b.jpg") == "s3://bucket/folder/a/b.jpg"
    assert str(place.parent / "gs://other/c.jpg") == "gs://other/c.jpg"


@pytest.fixture
def store(tmp_path):
    """A folder, seen as an object store."""
    pytest.importorskip("pyarrow")
    (tmp_path / "store" / "pictures").mkdir(parents=True)
    (tmp_path / "store" / "pictures" / "cat.jpg").write_bytes(b"a cat")
    (tmp_path / "store" / "pictures" / "cat.txt").write_text("the cat")
    (tmp_path / "store" / ".hidden.jpg").write_bytes(b"")
    return f"local://{tmp_path}/store"


def test_files_behind_uris(store, tmp_path):
    (item,) = read_items(store)
    assert item == Item("pictures/cat.jpg", f"{store}/pictures/cat.jpg", "the cat")
    full = fetched(item)
    assert (full.image, full.meta) == (b"a cat", {"uri": f"{store}/pictures/cat.jpg"})
    lines = tmp_path / "store" / "items.jsonl"
    lines.write_text('{"id": "x", "image": "pictures/cat.jpg"}\n{"id": "y", "image": "gone.jpg"}\n')
    x, y = read_items(f"{store}/items.jsonl")
    assert fetched(x).image == b"a cat"
    with pytest.raises(BadImage, match=r"no image at .*gone\.jpg"):
        fetched(y)
    (tmp_path / "store" / "items.csv").write_text("id,text\nz,words\n")
    assert list(read_items(f"{store}/items.csv")) == [Item("z", None, "words")]
    assert list(read_items(store, exclude=["pictures", "*.jsonl", "*.csv"])) == []
    with pytest.raises(BadInput, match="no folder or file"):
        list(read_items(f"{store}/nothing"))


def test_a_star_names_all_that_match(store):
    assert expanded(f"{store}/pictures/*.jpg") == [f"{store}/pictures/cat.jpg"]
    assert expanded("shards/*.tar") == ["shards/*.tar"]  # the shell's business
    with pytest.raises(BadInput, match="nothing matches"):
        expanded(f"{store}/pictures/*.tar")
