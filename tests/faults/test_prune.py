"""Fault 43: `--prune` removes nothing that may still be there."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

PROGRAM = Path(__file__).parents[1] / "cli" / "fake_model.py"


@pytest.fixture
def photos(tmp_path, fake) -> Path:
    """Two folders of pictures, and a note."""
    for colour in fake.COLOURS:
        folder = tmp_path / "photos" / ("near" if colour < "g" else "far")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), colour).save(folder / f"{colour}.png")
    (tmp_path / "photos" / "note.txt").write_text("something red")
    return tmp_path / "photos"


def run(tmp_path: Path, *arguments: object, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *map(str, arguments), "--in", str(tmp_path / "idx")]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path, **options
    )


def index(tmp_path: Path, *paths: object, **options) -> tuple[dict[str, int], str]:
    done = run(tmp_path, "index", *paths, "--prune", "--format", "json", **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_what_is_gone_is_pruned(tmp_path, photos):
    index(tmp_path, photos)
    (photos / "near" / "blue.png").unlink()
    summary, _ = index(tmp_path, photos)
    assert (summary["removed"], summary["items"]) == (1, 10)


def test_a_folder_that_cannot_be_listed(tmp_path, photos):
    """Its link leads to a disk that is not mounted."""
    index(tmp_path, photos)
    (photos / "near" / "blue.png").unlink()
    (photos / "far").rename(tmp_path / "elsewhere")
    (photos / "far").symlink_to(tmp_path / "closed" / "far")
    summary, said = index(tmp_path, photos)
    assert (summary["removed"], summary["items"]) == (0, 11)
    assert "nothing was pruned" in said and "--exclude" in said
    (photos / "far").unlink()
    summary, _ = index(tmp_path, photos)
    assert summary["removed"] == 1 + len(list((tmp_path / "elsewhere").iterdir()))


def test_many_reasons_do_not_hide_a_closed_folder(tmp_path, monkeypatch):
    """The report remembers only so many reasons; whether all was listed is not one of them."""
    from genius.data.folder import read_folder
    from genius.data.report import Report

    folder = tmp_path / "photos"
    for number in range(120):
        (folder / f"{number:03}").mkdir(parents=True)
    scandir = os.scandir

    def refuse(path):
        if Path(path) != folder:
            raise PermissionError(13, f"reason {Path(path).name}", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    report = Report()
    assert list(read_folder(folder, report=report)) == [] and report.unknown == 120


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_rows_that_cannot_be_used_keep_their_items(tmp_path, photos, suffix):
    """The picture of a row is away for a while; its item stays until the row goes."""
    file = tmp_path / f"items.{suffix}"
    rows = [{"id": c, "image": f"photos/near/{c}.png"} for c in ("blue", "cyan", "black")]

    def write(rows):
        if suffix == "jsonl":
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            file.write_text("id,image\n" + "".join(f"{row['id']},{row['image']}\n" for row in rows))

    write(rows)
    assert index(tmp_path, file)[0]["items"] == 3
    (photos / "near" / "blue.png").rename(tmp_path / "away.png")
    summary, _ = index(tmp_path, file)
    assert (summary["removed"], summary["items"], summary["skipped"]) == (0, 3, 1)
    write(rows[1:])
    summary, _ = index(tmp_path, file)
    assert (summary["removed"], summary["items"]) == (1, 2)


def test_a_line_whose_id_is_unknown_may_be_any_item(tmp_path):
    file = tmp_path / "items.jsonl"
    file.write_text('{"id": "a", "text": "red"}\n{"id": "b", "text": "blue"}\n')
    index(tmp_path, file)
    file.write_text('{"id": "a", "text": "red"}\n{"id": "b", "te')
    summary, said = index(tmp_path, file)
    assert (summary["removed"], summary["items"]) == (0, 2) and "nothing was pruned" in said


def test_files_that_cannot_be_read_keep_their_items(tmp_path, photos):
    index(tmp_path, photos)
    (photos / "note.txt").write_bytes(b"\0\0\0")  # no text any more
    (photos / "near" / "blue.png").write_bytes(b"no picture")
    (photos / "near" / "cyan.png").rename(tmp_path / "cyan.png")
    (photos / "near" / "cyan.png").symlink_to(tmp_path / "nowhere" / "cyan.png")
    summary, _ = index(tmp_path, photos)
    assert (summary["removed"], summary["items"], summary["skipped"]) == (0, 11, 3)


def test_an_interrupted_walk(tmp_path, photos):
    """Stopped before its end, a run prunes nothing, though it has not seen all files."""
    index(tmp_path, photos)
    for number in range(200):
        Image.new("RGB", (16, 16), (number, 0, 0)).save(photos / f"{number}.png")
    command = [sys.executable, str(PROGRAM), "index", photos, "--in", tmp_path / "idx", "--prune"]
    slow = {**os.environ, "FAKE_MODEL_SECONDS": "0.5"}
    running = subprocess.Popen(list(map(str, command)), env=slow, stderr=subprocess.PIPE, cwd=tmp_path)
    truth = importlib.import_module("genius.store.truth").Truth.open(tmp_path / "idx" / "index.sqlite")
    deadline = time.monotonic() + 60
    while sum(truth.counts().values()) == 11 and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130 and b"items are stored" in said
    truth.close()
    facts = json.loads(run(tmp_path, "stats", "--format", "json").stdout)
    assert 11 < facts["items"] < 211
    summary, _ = index(tmp_path, photos)
    assert (summary["removed"], summary["items"]) == (0, 211)
