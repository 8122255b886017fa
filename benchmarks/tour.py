"""The tour of a user with 2,000 photos, in a fresh clone with the shipped model, and what indexing costs.

    python benchmarks/tour.py                          # benchmarks/results/tour.json
    python benchmarks/tour.py --photos 200 --out -     # a quick look

Index, kill -9 half-way, check, go on, search by text and by image, remove, compact, check, export, import
elsewhere: every step is checked, and the first thing that is not as it should be ends the run. Each step is
written down with its command, its seconds and what it printed. `throughput` is a second, undisturbed pass
over some of the photos in one process, split into reading (file, hash, pixels), encoding, quantizing and
storing. The photos come from the benchmark beside the repository, or from `--source`, a folder or a tar.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _harness import Timer, run

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY.parent / "shared" / "bench" / "images" / "flickr8k.tar"
PICTURES = {".jpg", ".jpeg", ".png", ".webp"}
SHOWN = 6  # lines of output that are kept of a step


def main(photos: int = 2000, source: Path = SOURCE, throughput: int = 512) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        files = unpack(source, folder / "photos", photos)
        tour = Tour(folder, clone(folder / "clone"))
        take(tour, files)
        second = index_rate(files[:throughput], folder / "second")
        return {"photos": len(files), "steps": tour.steps, "throughput": second}


def unpack(source: Path, to: Path, count: int) -> list[Path]:
    """The first `count` photos of a folder or tar, in a folder of their own."""
    to.mkdir()
    if source.is_dir():
        for file in [path for path in sorted(source.rglob("*")) if path.suffix in PICTURES][:count]:
            shutil.copy(file, to / file.name)
    else:
        with tarfile.open(source) as archive:
            members = [member for member in archive if Path(member.name).suffix in PICTURES][:count]
            for member in members:
                stream = archive.extractfile(member)
                assert stream is not None
                (to / Path(member.name).name).write_bytes(stream.read())
    photos = sorted(to.iterdir())
    assert len(photos) == count, f"{source} has {len(photos)} photos, not {count}"
    return photos


def clone(to: Path) -> Path:
    """A fresh clone of the last commit; the packages it needs are those of this environment."""
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(to)], check=True)
    return to


class Tour:
    """Runs `genius` of a clone in a folder and writes down what happens."""

    def __init__(self, folder: Path, repository: Path) -> None:
        self.folder, self.steps = folder, list[dict[str, Any]]()
        self.environment = {**os.environ, "PYTHONPATH": str(repository / "src"), "COLUMNS": "100"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "genius", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, *words: str, note: bool = True) -> str:
        """What a command printed; it must succeed."""
        with Timer() as timer:
            process = self.start(*words)
            out, errors = process.communicate()
        if process.returncode:
            sys.exit(f"genius {' '.join(words)} ended with {process.returncode}: {errors}")
        if note:
            self.note(words, timer.seconds, out)
        return out

    def facts(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("stats", *words, "--format", "json", note=False))
        return found

    def ask(self, *words: str) -> list[dict[str, Any]]:
        hits: list[dict[str, Any]] = json.loads(self.run("search", *words, "--format", "json", note=False))
        return hits

    def note(self, words: Sequence[str], seconds: float, out: str) -> None:
        quoted = [f'"{word}"' if " " in word and word[0] != "#" else word for word in words]
        lines = out.rstrip("\n").split("\n")
        shown = lines if len(lines) <= SHOWN else [*lines[:SHOWN], "…"]
        self.steps.append(
            {"command": f"genius {' '.join(quoted)}", "seconds": round(seconds, 1), "output": shown}
        )


def take(tour: Tour, photos: Sequence[Path]) -> None:
    """Every step of the tour, each checked."""
    count, index = len(photos), ("index", "photos", "--to", "my-index")
    at = ("--in", "my-index")
    began = time.perf_counter()
    process = tour.start(*index)
    while not (tour.folder / "my-index" / "index.sqlite").exists() or tour.facts(*at)["items"] < count // 2:
        assert process.poll() is None, "indexing ended before half of it was seen"
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    half = tour.facts(*at)["items"]
    tour.note(
        [*index, "# kill -9"], time.perf_counter() - began, f"killed with {half} of {count} items there"
    )
    assert count // 2 <= half < count
    assert tour.run("check", *at) == f"{half} items, nothing wrong\n"

    words = dict(line.split() for line in tour.run(*index).splitlines())
    assert (words["added"], words["unchanged"]) == (str(count - half), str(half)), words
    assert (words["skipped"], words["items"]) == ("0", str(count)), words

    tour.run("search", "a dog runs through the snow", "--want", "image", "-k", "5", *at)
    photo = photos[count // 3]
    same = ("--image", f"photos/{photo.name}", "--want", "image", "-k", "5", *at)
    hits = tour.ask(*same)
    assert hits[0]["id"] == photo.name and Path(str(hits[0]["path"])).samefile(photo), hits[0]
    tour.run("search", *same)
    tour.run("stats", *at)

    assert tour.run("remove", photo.name, *at) == "removed 1\n"
    rest = [hit["id"] for hit in tour.ask(*same)]
    assert rest[:4] == [hit["id"] for hit in hits[1:]], rest
    assert tour.run("compact", *at).startswith("generation ")
    assert [hit["id"] for hit in tour.ask(*same)] == rest
    assert tour.run("check", *at) == f"{count - 1} items, nothing wrong\n"

    tour.run("export", "my-index.tar", *at)
    assert tour.run("import", "my-index.tar", "--to", "copy") == f"imported {count - 1}\n"
    elsewhere = (*same[:-1], "copy")
    assert [hit["id"] for hit in tour.ask(*elsewhere)] == rest
    assert tour.run("check", "--in", "copy") == f"{count - 1} items, nothing wrong\n"


def index_rate(photos: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Photos per second of one process, and the share of each part."""
    from genius.engine import Engine, load_model
    from genius.types import Item

    model = Timed(load_model("mini"))
    with Engine.create(folder, model) as engine:
        engine.add([Item("warm", image=photos[0])])
        model.seconds.clear()
        engine.index.add = model.timed("store", engine.index.add)  # type: ignore[method-assign]
        with Timer() as timer:
            engine.add(Item(photo.name, image=photo) for photo in photos)
    spent, whole = model.seconds, timer.seconds
    spent["read"] = whole - sum(spent.values())
    return {
        "photos": len(photos),
        "photos_per_s": round(len(photos) / whole, 1),
        "share": {part: round(spent[part] / whole, 3) for part in ("read", "encode", "quantize", "store")},
        "alone_per_s": {part: round(len(photos) / spent[part]) for part in ("encode", "quantize", "store")},
    }


class Timed:
    """A model that counts the seconds of its parts."""

    def __init__(self, model: Any) -> None:
        self.model, self.seconds = model, dict[str, float]()
        self.embed_items = self.timed("encode", model.embed_items)
        self.codes = self.timed("quantize", model.codes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def ran(*args: Any, **kwargs: Any) -> Any:
            with Timer() as timer:
                result = call(*args, **kwargs)
            self.seconds[part] = self.seconds.get(part, 0.0) + timer.seconds
            return result

        return ran


if __name__ == "__main__":
    run(main)
