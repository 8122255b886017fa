"""Fault 42: one bad item of any kind, through every door: that item is named, the others are in."""

from __future__ import annotations

import csv
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageFile

from genius import Item
from genius.data.report import Report
from genius.data.tables import read_items
from genius.engine import Engine
from genius.errors import BadData

AFTER_2262 = 2**63 + 10**9  # nanoseconds


@pytest.fixture
def engine(tmp_path, fake):
    with Engine.create(tmp_path / "index", fake.FakeModel()) as opened:
        yield opened


def jpeg(side: int = 64) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((side, side), 90).save(buffer, "JPEG")
    return buffer.getvalue()


def nested(depth: int) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    for _ in range(depth):
        meta = {"a": meta}
    return meta


def dated(folder: Path) -> Path:
    """A picture whose date no 64-bit count of nanoseconds can hold."""
    file = folder / "dated.jpg"
    file.write_bytes(jpeg())
    os.utime(file, ns=(AFTER_2262, AFTER_2262))
    if file.stat().st_mtime_ns <= 2**63:
        pytest.skip("this file system has no such dates")
    return file


@pytest.fixture
def closed(monkeypatch, tmp_path) -> Path:
    """A picture that may not be read; root may read everything, so the refusal is played."""
    file = tmp_path / "closed" / "closed.jpg"
    file.parent.mkdir()
    file.write_bytes(jpeg())
    own_bytes, own_open = Path.read_bytes, Path.open

    def refuse(self: Path) -> None:
        if self.name == file.name:
            raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", lambda self: refuse(self) or own_bytes(self))
    monkeypatch.setattr(Path, "open", lambda self, *a, **k: refuse(self) or own_open(self, *a, **k))
    return file


class Hostile:
    def __str__(self) -> str:
        raise ValueError("no name")


BAD: dict[str, Any] = {
    "an absent file": lambda tmp, closed: Item("bad", image=tmp / "nowhere.jpg"),
    "an unreadable file": lambda tmp, closed: Item("bad", image=closed),
    "a file dated after 2262": lambda tmp, closed: Item("bad", image=dated(tmp)),
    "a folder": lambda tmp, closed: Item("bad", image=tmp),
    "a truncated picture": lambda tmp, closed: Item("bad", image=jpeg()[:300]),
    "a truncated PIL image": lambda tmp, closed: Item("bad", image=Image.open(io.BytesIO(jpeg()[:-300]))),
    "no picture at all": lambda tmp, closed: Item("bad", image=object()),  # type: ignore[arg-type]
    "a list as id": lambda tmp, closed: Item(["bad"], text="red"),  # type: ignore[arg-type]
    "a number as id": lambda tmp, closed: Item(17, text="red"),  # type: ignore[arg-type]
    "no id": lambda tmp, closed: Item(None, text="red"),  # type: ignore[arg-type]
    "an id that cannot be shown": lambda tmp, closed: Item(Hostile(), text="red"),  # type: ignore[arg-type]
    "an id of a megabyte": lambda tmp, closed: Item("b" * 2**20, text="red"),
    "an id with half a character": lambda tmp, closed: Item("bad\ud800", text="red"),
    "a text that is no string": lambda tmp, closed: Item("bad", text=5),  # type: ignore[arg-type]
    "a text of bytes": lambda tmp, closed: Item("bad", text=b"red"),  # type: ignore[arg-type]
    "no meta": lambda tmp, closed: Item("bad", text="red", meta=None),  # type: ignore[arg-type]
    "a list as meta": lambda tmp, closed: Item("bad", text="red", meta=[1]),  # type: ignore[arg-type]
    "meta of depth 1,000": lambda tmp, closed: Item("bad", text="red", meta=nested(1000)),
    "meta of depth 100,000": lambda tmp, closed: Item("bad", text="red", meta=nested(100_000)),
    "meta with half a character": lambda tmp, closed: Item("bad", text="red", meta={"a": "\ud800"}),
    "a name with half a character": lambda tmp, closed: Item("bad", text="red", meta={"\udfff": 1}),
    "meta with NaN": lambda tmp, closed: Item("bad", text="red", meta={"a": float("nan")}),
    "meta with a set": lambda tmp, closed: Item("bad", text="red", meta={"a": {1, 2}}),
    "no item": lambda tmp, closed: {"id": "bad", "text": "red"},
    "nothing": lambda tmp, closed: None,
}


@pytest.mark.parametrize("kind", BAD)
def test_python(engine, tmp_path, closed, kind):
    bad = BAD[kind](tmp_path, closed)
    result = engine.add([Item("first", text="red"), bad, Item("last", image=jpeg(), text="blue")])
    assert (result.added, result.report.skipped) == (2, 1)
    ((name, reason),) = result.skipped
    assert reason and len(name) <= 200 and len(reason) < 1000
    name.encode(), reason.encode()
    assert {hit.id for hit in engine.search("red", k=10)} == {"first", "last"}
    assert engine.stats()["items"] == 2


def test_truncated_pictures_are_not_taken_where_pillow_would_fill_them_up(engine, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
    assert engine.add([Item("bad", image=jpeg()[:300])]).report.skipped == 1


def add_from(engine: Engine, path: Path) -> tuple[set[str], Report]:
    report = Report()
    engine.add(read_items(path, report=report), report=report)
    return {record.id for record in engine.index.truth.records(engine.index.truth.rows()).values()}, report


def test_a_folder(engine, tmp_path, closed):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "good.jpg").write_bytes(jpeg())
    (folder / "note.txt").write_text("a note")
    (folder / "cut.jpg").write_bytes(jpeg()[:300])
    closed.rename(folder / "closed.jpg")
    (folder / "closed.txt").symlink_to(folder / "closed.jpg")
    dated(folder)
    os.mkfifo(folder / "pipe.png")
    ids, report = add_from(engine, folder)
    assert ids == {"good.jpg", "note.txt"}
    named = {name.rpartition("/")[2] for name, _ in report.names}
    assert {"cut.jpg", "closed.jpg", "dated.jpg", "pipe.png"} <= named


LINES: dict[str, bytes] = {
    "no JSON": b"{",
    "no object": b"[1]",
    "no UTF-8": b'{"id": "bad", "text": "\xff"}',
    "a list as id": b'{"id": ["bad"], "text": "red"}',
    "an absurd number as id": b'{"id": ' + b"9" * 6000 + b', "text": "red"}',
    "a text that is no string": b'{"id": "bad", "text": 5}',
    "a list as meta": b'{"id": "bad", "text": "red", "meta": [1]}',
    "meta of depth 260": b'{"id": "bad", "text": "red", "meta": ' + b'{"a":' * 260 + b"1" + b"}" * 261,
    "a field of depth 1,000": b'{"id": "bad", "text": "red", "field": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    "a field of depth 100,000": b'{"id": "bad", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "half a character in meta": b'{"id": "bad", "text": "red", "meta": {"a": "\\ud800"}}',
    "half a character in the id": b'{"id": "bad\\ud800", "text": "red"}',
    "NaN": b'{"id": "bad", "text": "red", "x": NaN}',
    "no picture there": b'{"id": "bad", "image": "nowhere.jpg"}',
    "a picture of another kind": b'{"id": "bad", "image": 5}',
    "NUL in a path": b'{"id": "bad", "image": "a\\u0000b.jpg"}',
    "half a character in a path": b'{"id": "bad", "image": "\\ud800.jpg"}',
}


@pytest.mark.parametrize("kind", LINES)
def test_jsonl(engine, tmp_path, kind):
    file = tmp_path / "items.jsonl"
    good = [json.dumps({"id": id, "text": f"something {id}"}).encode() for id in ("first", "last")]
    file.write_bytes(b"\n".join([good[0], LINES[kind], good[1]]))
    ids, report = add_from(engine, file)
    assert ids == {"first", "last"} and report.skipped == 1
    assert report.names[0].name == f"{file}:2" and report.names[0].reason


CELLS: dict[str, list[Any]] = {
    "too many cells": ["bad", "red", "", "", "more"],
    "a cell of a megabyte": ["bad", "red" * 400_000, "", ""],
    "meta that is no JSON": ["bad", "red", "{", ""],
    "meta of depth 1,000": ["bad", "red", json.dumps(nested(900)), ""],
    "half a character in meta": ["bad", "red", '{"a": "\\ud800"}', ""],
    "no UTF-8 in the id": ["bad\udcff", "red", "", ""],
    "a control character in the id": ["bad\x07", "red", "", ""],
    "no picture there": ["bad", "", "", "nowhere.jpg"],
    "nothing to see": ["bad", " ", "", ""],
}


@pytest.mark.parametrize("kind", CELLS)
def test_csv(engine, tmp_path, kind):
    file = tmp_path / "items.csv"
    with file.open("w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
        rows = [
            ["id", "text", "meta", "image"],
            [
                "first",
                "röd",
                "",
                "",
            ],  # so it is UTF-8 with broken bytes
            CELLS[kind],
            ["last", "blue", "", ""],
        ]
        csv.writer(stream).writerows(rows)
    ids, report = add_from(engine, file)
    assert ids == {"first", "last"} and report.skipped == 1
    assert report.names[0].name == f"{file}:3" and report.names[0].reason


def parquet_columns(pa: Any) -> Iterator[tuple[str, Any]]:
    texts = ["red", "blue", "green"]
    yield "id of a list", {"id": [["a"], ["bad"], ["b"]], "text": texts}
    broken = pa.StringArray.from_buffers(
        3, pa.array([0, 3, 4, 8], pa.int32()).buffers()[1], pa.py_buffer(b"red\xffblue")
    )
    yield "no UTF-8", {"id": ["first", "bad", "last"], "text": broken}
    yield (
        "a date after the year 9999",
        {
            "id": ["first", "bad", "last"],
            "text": texts,
            "when": pa.array([0, 2**45, 0], pa.int64()).cast(pa.timestamp("s")),
        },
    )
    yield (
        "bytes that are no picture",
        {
            "id": ["first", "bad", "last"],
            "text": ["red", None, "blue"],
            "image": pa.array([None, b"no picture", None], pa.binary()),
        },
    )


@pytest.mark.parametrize("place", range(4))
def test_parquet(engine, tmp_path, place):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    kind, columns = list(parquet_columns(pa))[place]
    file = tmp_path / "items.parquet"
    parquet.write_table(pa.table(columns), file)
    ids, report = add_from(engine, file)
    if kind == "id of a list":
        assert ids == set() and report.skipped == 3
        return
    assert ids == {"first", "last"} and report.skipped == 1
    assert "bad" in report.names[0].name or report.names[0].name == f"{file}:2"


MEMBERS: dict[str, dict[str, bytes]] = {
    "fields that are no JSON": {"bad.json": b"{", "bad.txt": b"red"},
    "fields of depth 1,000": {"bad.json": b'{"a":' * 1000 + b"1" + b"}" * 1000, "bad.txt": b"red"},
    "half a character": {"bad.json": b'{"a": "\\ud800"}', "bad.txt": b"red"},
    "a list as id": {"bad.json": b'{"id": [1]}', "bad.txt": b"red"},
    "no picture": {"bad.jpg": b"no picture"},
}


@pytest.mark.parametrize("kind", MEMBERS)
def test_tar(engine, tmp_path, kind):
    file = tmp_path / "items.tar"
    with tarfile.open(file, "w") as shard:
        for name, data in {"first.txt": b"red", **MEMBERS[kind], "last.txt": b"blue"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            shard.addfile(info, io.BytesIO(data))
    ids, report = add_from(engine, file)
    assert ids == {"first", "last"} and report.skipped == 1
    assert "bad" in report.names[0].name and report.names[0].reason


def test_a_sparse_member_of_a_tar_is_not_read(engine, tmp_path):
    """It takes 2 KB in the file and 400 MB in memory."""
    info = tarfile.TarInfo("GNUSparseFile.0/bad.jpg")
    info.size = 512
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "bad.jpg",
        "GNU.sparse.realsize": str(400 << 20),
    }
    good = tarfile.TarInfo("good.txt")
    good.size = 3
    sparse = info.tobuf(tarfile.PAX_FORMAT) + b"0\n".ljust(512, b"\0")
    file = tmp_path / "items.tar"
    file.write_bytes(sparse + good.tobuf() + b"red".ljust(512, b"\0") + bytes(1024))
    ids, report = add_from(engine, file)
    assert ids == {"good"} and "sparse" in report.names[0].reason


def test_items_before_a_damaged_part_of_a_file_are_in(engine):
    """A reader that cannot go on says so; what it had read is kept."""

    def items():
        yield Item("first", text="red")
        yield Item("second", text="blue")
        raise BadData("items.parquet: cannot be read (page header)")

    with pytest.raises(BadData, match="page header"):
        engine.add(items())
    assert engine.stats()["items"] == 2


def test_bytes_in_the_place_of_a_file_get_a_thumbnail(engine, tmp_path):
    file = tmp_path / "x.jpg"
    file.write_bytes(jpeg())
    engine.add([Item("x", image=file)])
    engine.add([Item("x", image=file.read_bytes())])
    file.unlink()
    small = engine.thumbnail("x")
    assert small is not None and small.startswith(b"\xff\xd8")
    assert engine.add([Item("x", image=jpeg())]).added == 0
