"""Export and import: everything comes back; archives that reach outside are refused (fault 33)."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace

import pytest

from genius import files
from genius.errors import BadData, BadInput, IndexMismatch
from genius.store.check import check
from genius.store.exporting import export_lines, export_tar
from genius.store.importing import import_file
from genius.store.index import Index


@pytest.fixture
def filled(index, record, tmp_path):
    """An index with a file, a strange name, a thumbnail, metadata, a delta and a tombstone."""
    image = tmp_path / "a\udcff\nb.png"
    image.write_bytes(b"pixels")
    index.add([record(n) for n in range(5)])
    index.add([replace(record(5), path=str(image), source=str(tmp_path), meta='{"k": [1, "\\u00e9"]}')])
    index.compact()
    index.add([replace(record(6), thumbnail=b"jpeg")])
    index.remove(["item-1"])
    return index


def write(file, chunks):
    files.write_file(file, chunks)
    return file


@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_everything_comes_back(filled, contents, tmp_path, kind):
    chunks = export_lines(filled) if kind == "jsonl" else export_tar(filled)
    file = write(tmp_path / f"export.{kind}", chunks)
    assert import_file(file, tmp_path / "copy") == 6
    assert import_file(file, tmp_path / "copy") == 6  # again: the same
    with Index.open(tmp_path / "copy") as copy:
        assert contents(copy) == contents(filled)
        copy.require_model("fake", "f" * 64)
        row, _ = copy.truth.record("item-6")
        assert copy.truth.thumbnail(row) == b"jpeg"
        _, five = copy.truth.record("item-5")
        assert json.loads(five.meta) == {"k": [1, "é"]}
        original = filled.truth.record("item-5")[1]
        assert five.hash == original.hash
        if kind == "jsonl":
            assert five.path == original.path
        else:
            (image,) = (tmp_path / "copy" / "files").iterdir()
            assert five.path == str(image) and image.read_bytes() == b"pixels"
    assert check(tmp_path / "copy").clean


def test_lines_are_json_and_name_what_they_hold(filled):
    head, *items = [json.loads(line) for line in export_lines(filled, vectors=False)]
    assert head["format"] == "genius-items-1" and head["vectors"] is False
    assert len(items) == 6 and all("vector" not in item for item in items)
    assert {"id", "modality", "codes", "meta", "hash", "text"} <= items[0].keys()


def test_an_export_without_vectors_makes_an_index_without_them(filled, tmp_path):
    file = write(tmp_path / "export.jsonl", export_lines(filled, vectors=False))
    import_file(file, tmp_path / "copy")
    with Index.open(tmp_path / "copy") as copy:
        assert copy.dim is None
    with pytest.raises(BadInput, match="keeps vectors"):
        import_file(file, filled.folder)


def test_another_model_is_refused(filled, tmp_path):
    file = write(tmp_path / "export.jsonl", export_lines(filled))
    Index.create(tmp_path / "other", model="x", fingerprint="0", sizes=(3, 16, 16, 16), dim=8)
    with pytest.raises(IndexMismatch):
        import_file(file, tmp_path / "other")


def test_broken_exports_are_refused_by_line(filled, tmp_path):
    lines = list(export_lines(filled))
    cases = {
        b"not json\n": "item 2",
        b'{"id": "x", "modality": "image", "codes": [0, 99, 0, 0], "meta": {}, "hash": ""}\n': "codes",
        b'{"id": "x", "modality": "image", "codes": [0.5, 0, 0, 0], "meta": {}, "hash": ""}\n': "codes",
        b'{"id": "x", "modality": "video", "codes": [0, 0, 0, 0], "vector": "AAAA", "meta": {}}\n': "width",
        b'{"id": "\\ud800", "modality": "image"}\n': "codes",
        b"[]\n": "item 2",
    }
    for line, reason in cases.items():
        file = write(tmp_path / "bad.jsonl", [*lines[:2], line])
        with pytest.raises(BadData, match=reason):
            import_file(file, tmp_path / f"copy-{abs(hash(line))}")
    for head in (b"", b"{}\n", b"[]\n", b'{"format": "genius-items-1", "sizes": "x"}\n'):
        with pytest.raises(BadData, match="head"):
            import_file(write(tmp_path / "bad.jsonl", [head, *lines[1:]]), tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(BadInput, match="no file"):
        import_file(tmp_path / "nowhere.jsonl", tmp_path / "nothing")


def member(name, data=b"x", kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    info.type, info.linkname = kind, link
    return info, data


@pytest.mark.parametrize(
    "bad",
    [
        member("../evil.png"),
        member("files/../../evil.png"),
        member("files/.."),
        member("/etc/evil.png"),
        member("files//etc/evil.png"),
        member("files/link.png", kind=tarfile.SYMTYPE, link="/etc/passwd"),
        member("files/hard.png", kind=tarfile.LNKTYPE, link="index.json"),
        member("files/device.png", kind=tarfile.CHRTYPE),
        member("files/pipe.png", kind=tarfile.FIFOTYPE),
        member("files", kind=tarfile.DIRTYPE),
        member("other/evil.png"),
        member("files\\..\\evil.png"),
    ],
    ids=lambda m: f"{m[0].name}-{m[0].type.decode()}",
)
def test_archive_members_that_reach_outside_are_refused(filled, tmp_path, bad):
    data = b"".join(export_tar(filled))[: -2 * tarfile.BLOCKSIZE]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info, content = bad
        archive.addfile(info, io.BytesIO(content))
    file = tmp_path / "evil.tar"
    file.write_bytes(data + buffer.getvalue())
    before = {path for path in tmp_path.rglob("*") if "index" not in path.parts[-1]}
    with pytest.raises(BadData, match="not imported"):
        import_file(file, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert {path for path in tmp_path.rglob("*") if "index" not in path.parts[-1]} == before


def test_a_compressed_or_foreign_tar_is_refused(filled, tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info, content = member("index.json", b"{}")
        archive.addfile(info, io.BytesIO(content))
    (tmp_path / "foreign.tar").write_bytes(buffer.getvalue())
    with pytest.raises(BadData, match="not an export"):
        import_file(tmp_path / "foreign.tar", tmp_path / "copy")
    import gzip

    (tmp_path / "small.tar.gz").write_bytes(gzip.compress(buffer.getvalue()))
    with pytest.raises(BadData):
        import_file(tmp_path / "small.tar.gz", tmp_path / "copy")
