"""The tour of a user: index, be killed half-way, go on, search, remove, compact, check, export, import."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
from contextlib import closing
from pathlib import Path

import pytest
from PIL import Image

REPOSITORY = Path(__file__).parents[2]
BENCH = REPOSITORY.parent / "shared" / "bench" / "images" / "ikea.tar"
COUNT = 300


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """A few hundred real pictures of the benchmark, or generated ones where it is absent."""
    folder = tmp_path_factory.mktemp("photos")
    if BENCH.exists():
        with tarfile.open(BENCH) as archive:
            members = [member for member in archive if member.isfile()][:COUNT]
            for member in members:
                stream = archive.extractfile(member)
                assert stream is not None
                (folder / Path(member.name).name).write_bytes(stream.read())
    else:
        chance = random.Random(5)
        for number in range(COUNT):
            pixels = bytes(chance.randrange(256) for _ in range(8 * 8 * 3))
            Image.frombytes("RGB", (8, 8), pixels).resize((160, 120)).save(folder / f"{number:03d}.jpg")
    return folder


def committed(index: Path) -> int:
    """How many items the index has; 0 before it is there."""
    try:
        with closing(sqlite3.connect(f"file:{index / 'index.sqlite'}?mode=ro", uri=True)) as truth:
            return int(truth.execute("SELECT count(*) FROM items").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def test_the_tour(genius, fake, fake_loaded, photos, tmp_path, monkeypatch):
    """The process that is killed is one of its own; the other commands run in this one."""
    index = tmp_path / "idx"
    monkeypatch.setenv("GENIUS_INDEX", str(index))

    def ask(*arguments) -> list[dict[str, object]]:
        done = genius("search", *arguments, "--format", "json")
        assert done.code == 0, done.err
        return json.loads(done.out)

    def facts() -> dict[str, object]:
        return json.loads(genius("stats", "--format", "json").out)

    count = len(list(photos.iterdir()))
    assert count >= 200

    # indexed, and killed half-way
    process = subprocess.Popen(
        [sys.executable, fake.__file__, "index", str(photos)],
        env={**os.environ, "FAKE_MODEL_SECONDS": "0.5"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not committed(index):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    half = facts()["items"]
    assert 0 < half < count
    assert genius("check").code == 0

    # gone on
    done = genius("index", photos, "--format", "json")
    summary = json.loads(done.out)
    assert summary["items"] == count and summary["added"] == count - half, done.err

    # searched: a picture finds itself, and its neighbours are the exact ones
    picture = sorted(photos.iterdir())[17]
    hits = ask("--image", picture, "--want", "image", "-k", "5")
    assert hits[0]["id"] == picture.name and hits[0]["path"] == str(picture) and len(hits) == 5
    text = genius("search", "something blue", "--want", "image", "--format", "paths").out.splitlines()
    assert len(text) == 10 and all(Path(line).exists() for line in text)

    # removed, compacted, checked
    assert genius("remove", picture.name).out == "removed 1\n"
    rest = ask("--image", picture, "--want", "image", "-k", "4")
    assert [hit["id"] for hit in rest] == [hit["id"] for hit in hits[1:]]
    generation = facts()["generation"]
    assert genius("compact").out == f"generation {generation + 1}\n"
    assert facts()["removed"] == 0
    assert [hit["id"] for hit in ask("--image", picture, "--want", "image", "-k", "4")] == [
        h["id"] for h in rest
    ]
    assert genius("check").out == f"{count - 1} items, nothing wrong\n"

    # exported, imported elsewhere with its images
    assert genius("export", tmp_path / "all.tar").code == 0
    assert genius("import", tmp_path / "all.tar", "--to", tmp_path / "copy").out == f"imported {count - 1}\n"
    copied = ask("--image", picture, "--want", "image", "-k", "4", "--in", tmp_path / "copy")
    assert [(hit["id"], hit["score"]) for hit in copied] == [(hit["id"], hit["score"]) for hit in rest]
    assert Path(copied[0]["path"]).is_relative_to(tmp_path / "copy")
    assert genius("check", "--in", tmp_path / "copy").code == 0
