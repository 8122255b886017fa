"""Where the time goes when photos are indexed by one process: reading, encoding, quantizing, storing.

    python benchmarks/ingest.py                          # benchmarks/results/ingest.json
    python benchmarks/ingest.py --photos 64 --out -      # a quick look

Reading is all that the other parts leave: file, hash, pixels. The photos come from the benchmark beside the
repository, or from `--source`, a tar.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _harness import Timer, run

from genius.engine import Engine
from genius.engine.opening import load_model
from genius.types import Item

SOURCE = Path(__file__).resolve().parents[2] / "shared" / "bench" / "images" / "flickr8k.tar"
PARTS = ("read", "encode", "quantize", "store")


def main(photos: int = 512, source: Path = SOURCE) -> dict[str, Any]:
    model = TimedModel(load_model("mini"))
    with tempfile.TemporaryDirectory() as home:
        files = unpack(source, Path(home), photos)
        with Engine.create(Path(home) / "index", model) as engine:
            engine.add([Item("warm", image=files[0])])
            model.seconds.clear()
            engine.index.add = model.timed("store", engine.index.add)  # type: ignore[method-assign]
            with Timer() as timer:
                engine.add(Item(file.name, image=file) for file in files)
    spent = model.seconds
    spent["read"] = timer.seconds - sum(spent.values())
    return {
        "photos": photos,
        "photos_per_s": round(photos / timer.seconds, 1),
        "share": {part: round(spent[part] / timer.seconds, 3) for part in PARTS},
        "alone_per_s": {part: round(photos / spent[part]) for part in PARTS[1:]},
    }


def unpack(source: Path, to: Path, count: int) -> list[Path]:
    """The first `count` photos of a tar, as files."""
    files: list[Path] = []
    with tarfile.open(source) as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is not None and len(files) < count:
                files.append(to / Path(member.name).name)
                files[-1].write_bytes(stream.read())
    assert len(files) == count, f"{source} has {len(files)} photos, not {count}"
    return files


class TimedModel:
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
