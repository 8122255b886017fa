"""Export and import: everything comes back; archives that reach outside are refused (fault 33)."""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import replace
from hashlib import blake2b

import pytest

from genius import files
from genius.data.report import Report
from genius.errors import BadData, BadInput, IndexMismatch
from genius.store.check import check
from genius.store.exporting import end_mark, export_lines, export_tar
from genius.store.importing import import_file
from genius.store.index import Index
from genius.store.records import Stamp

JPEG = b"\xff\xd8\xff small"


@pytest.fixture
def filled(index, record, tmp_path):
    """An index with a file, a strange name, a thumbnail, metadata, a delta and a tombstone."""
    image = tmp_path / "a\udcff\nb.png"
    image.write_bytes(b"pixels")
    read = Stamp.of(image.stat())
    index.add([record(n) for n in range(5)])
    index.add(
        [replace(record(5), path=str(image), source=str(tmp_path), stamp=read, meta='{"k": [1, "\\u00e9"]}')]
    )
    index.compact()
    index.add([replace(record(6), thumbnail=JPEG)])
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
        copy.require_model("fake", "f" * 64, (3, 16, 16, 16), 8)
        row, _ = copy.truth.record("item-6")
        assert copy.truth.thumbnail(row) == JPEG
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
    head, *items, end = [json.loads(line) for line in export_lines(filled, vectors=False)]
    assert head["format"] == "genius-items-2" and head["vectors"] is False
    assert head["items"] == end["end"]["items"] == 6
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


def sealed(head, items):
    """An export of these lines with the end mark that it needs."""
    head = json.dumps({**json.loads(head), "items": len(items)}).encode() + b"\n"
    data = b"".join([head, *items])
    return [data, end_mark(len(items), blake2b(data, digest_size=32).digest())]


GOOD = {
    "id": "x",
    "modality": "image",
    "codes": [0, 0, 0, 0],
    "meta": {},
    "hash": "",
    "vector": "AAAAAAAAAAAAAAAAAAAAAA==",
}
BAD = [
    ("not json", "item 2"),
    ([], "item 2"),
    ({}, "item 2"),
    ({"codes": [0, 99, 0, 0]}, "codes"),
    ({"codes": [0.5, 0, 0, 0]}, "codes"),
    ({"codes": [0, 0, 0]}, "codes"),
    ({"modality": "video"}, "video"),
    ({"vector": "AAAA"}, "vector"),
    ({"vector": "AH4AAAAAAAAAAAAAAAAAAA=="}, "NaN"),
    ({"vector": None}, "item 2"),
    ({"id": "\ud800"}, "id"),
    ({"id": "x" * 1_000_000}, "id"),
    ({"id": "a\nb"}, "id"),
    ({"id": ["a"]}, "id"),
    ({"meta": {"a": "\ud800"}}, "meta"),
    ({"meta": None}, "meta"),
    ({"text": 5}, "text"),
    ({"text": "a\0b"}, "text"),
    ({"path": 5}, "path"),
    ({"path": "a\0b"}, "path"),
    ({"source": "\ud800"}, "item 2"),
    ({"hash": "zz"}, "item 2"),
    ({"hash": "00" * 100}, "hash"),
    ({"thumbnail": "PHN2Zz4="}, "thumbnail"),
    ({"file": "files/1.png"}, "not in the archive"),
    ({"file": 5}, "image"),
]


@pytest.mark.parametrize(("change", "reason"), BAD, ids=lambda value: ascii(value)[:40])
def test_bad_items_are_refused_and_change_nothing(filled, tmp_path, change, reason):
    head, first, *_ = export_lines(filled)
    line = json.dumps({**GOOD, **change} if change and isinstance(change, dict) else change).encode() + b"\n"
    file = write(tmp_path / "bad.jsonl", sealed(head, [first, line]))
    with pytest.raises(BadData, match=reason):
        import_file(file, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    report = Report()
    assert import_file(file, tmp_path / "copy", partial=True, report=report) == 1
    assert report.skipped == 1


def test_meta_of_any_depth_and_lines_of_any_length_are_refused(filled, tmp_path):
    head, first, *_ = export_lines(filled)
    deep = b'{"id": "x", "meta": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001 + b"\n"
    long = b'{"id": "' + b"x" * (20 << 20) + b'"}\n'
    for line, reason in ((deep, "item 2"), (long, "too long")):
        file = write(tmp_path / "bad.jsonl", sealed(head, [first, line, first]))
        with pytest.raises(BadData, match=reason):
            import_file(file, tmp_path / "copy")
        assert not (tmp_path / "copy").exists()


def test_heads_that_are_refused(filled, tmp_path):
    head, *lines = export_lines(filled)
    fields = json.loads(head)
    bad = [b"", b"{}\n", b"[]\n", b'{"format": "genius-items-2", "sizes": "x"}\n']
    changes = [
        {"sizes": [0]},
        {"sizes": []},
        {"sizes": [70_000]},
        {"sizes": [True]},
        {"dim": 0},
        {"dim": 1 << 30},
    ]
    changes += [{"notes": {"a": "\ud800"}}, {"model": "a\nb"}, {"format": "genius-items-9"}, {"vectors": 1}]
    bad += [json.dumps(fields | change).encode() + b"\n" for change in changes]
    for head in bad:
        with pytest.raises(BadData, match=r"head|not an export"):
            import_file(write(tmp_path / "bad.jsonl", [head, *lines]), tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(BadInput, match="no file"):
        import_file(tmp_path / "nowhere.jsonl", tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="no file"):
        import_file(tmp_path / "pipe", tmp_path / "nothing")


@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_an_export_that_was_cut_or_changed_anywhere_is_refused(filled, tmp_path, kind):
    """Fault 41."""
    data = b"".join(export_lines(filled) if kind == "jsonl" else export_tar(filled))
    file = tmp_path / "export"
    step = 1 if kind == "jsonl" else 37
    for size in [*range(0, len(data), step), len(data) - 1]:
        file.write_bytes(data[:size])
        with pytest.raises(BadData):
            import_file(file, tmp_path / "copy")
    for at in range(0, len(data) - (0 if kind == "jsonl" else 3 * 512), 61):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(BadData):
            import_file(file, tmp_path / "copy")
    file.write_bytes(data + b"\n")
    with pytest.raises(BadData):
        import_file(file, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_part_of_an_export_is_taken_knowingly(filled, contents, tmp_path, kind):
    data = b"".join(export_lines(filled) if kind == "jsonl" else export_tar(filled))
    (tmp_path / "export").write_bytes(data[: len(data) * 2 // 3] if kind == "jsonl" else data[:-1024])
    count = import_file(tmp_path / "export", tmp_path / "copy", partial=True)
    assert count == 6 if kind == "tar" else 0 < count < 6
    with Index.open(tmp_path / "copy") as copy:
        assert contents(copy).items() <= contents(filled).items() and len(contents(copy)) == count


def test_an_export_of_an_older_genius_needs_to_be_trusted(filled, contents, tmp_path):
    head, *items, _ = export_lines(filled)
    fields = json.loads(head)
    del fields["items"]
    old = [json.dumps(fields | {"format": "genius-items-1"}).encode() + b"\n", *items]
    file = write(tmp_path / "old.jsonl", old)
    with pytest.raises(BadData, match=r"older genius.*--partial"):
        import_file(file, tmp_path / "copy")
    assert import_file(file, tmp_path / "copy", partial=True) == 6
    with Index.open(tmp_path / "copy") as copy:
        assert contents(copy) == contents(filled)


def test_no_path_of_an_import_is_followed(filled, tmp_path):
    """Neither by the next export nor by a thumbnail, be it a file, a pipe or the index's own folder."""
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"secret content")
    os.mkfifo(tmp_path / "pipe.png")
    copy = tmp_path / "copy"
    paths = [secret, tmp_path / "pipe.png", "/dev/zero", copy / "files" / ".." / ".." / "secret.png"]
    head, first, *_ = export_lines(filled)
    items = [json.dumps({**json.loads(first), "id": f"x{n}", "path": str(p)}) for n, p in enumerate(paths)]
    file = write(tmp_path / "evil.jsonl", sealed(head, [item.encode() + b"\n" for item in items]))
    assert import_file(file, copy) == len(paths)
    with Index.open(copy) as index:
        for number, path in enumerate(paths):
            _, found = index.truth.record(f"x{number}")
            assert found.path == str(path) and index.image_path(found) is None
        assert b"secret content" not in b"".join(export_tar(index))


def test_a_file_that_became_a_pipe_or_too_large_is_left_out(filled, tmp_path, monkeypatch):
    (image,) = tmp_path.glob("*.png")
    assert b"pixels" in b"".join(export_tar(filled))
    monkeypatch.setattr("genius.store.exporting.MAX_BYTES", 5)
    assert b"pixels" not in b"".join(export_tar(filled))
    image.unlink()
    os.mkfifo(image)
    assert b"pixels" not in b"".join(export_tar(filled))


def test_an_import_that_fits_no_model_of_that_name_is_refused(filled, tmp_path):
    head, *_ = export_lines(filled)
    fields = json.loads(head) | {"sizes": [3, 16, 16, 17]}
    file = write(tmp_path / "other.jsonl", sealed(json.dumps(fields), []))
    with pytest.raises(IndexMismatch, match="other sizes"):
        import_file(file, filled.folder)


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
        member("files/sparse.png", kind=tarfile.GNUTYPE_SPARSE),
        member("files/extended.png", kind=tarfile.XHDTYPE),
        member("files/global.png", kind=tarfile.XGLTYPE),
        member("files/000000001.png"),
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


def test_a_sparse_member_is_refused_without_growing(filled, tmp_path):
    """Of 12 KB that claim to be 400 MB."""
    data = b"".join(export_tar(filled))[: -2 * tarfile.BLOCKSIZE]
    info = tarfile.TarInfo("files/000000009.png")
    info.size = 512
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "files/000000009.png",
        "GNU.sparse.realsize": str(400 << 20),
    }
    sparse = info.tobuf(tarfile.PAX_FORMAT) + b"0\n".ljust(512, b"\0")
    (tmp_path / "sparse.tar").write_bytes(data + sparse + bytes(1024))
    for partial in (False, True):
        with pytest.raises(BadData, match="no export has"):
            import_file(tmp_path / "sparse.tar", tmp_path / "copy", partial=partial)
    assert not (tmp_path / "copy").exists()


def test_a_member_larger_than_any_image_is_refused(filled, tmp_path, monkeypatch):
    monkeypatch.setattr("genius.store.export_file.MAX_BYTES", 5)
    (tmp_path / "large.tar").write_bytes(b"".join(export_tar(filled)))
    with pytest.raises(BadData, match="no export has"):
        import_file(tmp_path / "large.tar", tmp_path / "copy")
