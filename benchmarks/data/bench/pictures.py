"""Pictures of the sources: compared by bytes or by what they show, and written as small WebP files."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

WHITE = (255, 255, 255, 255)


@dataclass(frozen=True, slots=True)
class Size:
    """How a picture is written."""

    longest_side: int  # pixels; smaller pictures keep their size
    quality: int  # of WebP


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of the benchmark and where it comes from."""

    source: str  # path under the folder of sources
    size: Size
    group: str  # see splits.py
    split: str


def content_hash(file: Path) -> str:
    """A hash of the file's bytes: the same picture listed twice."""
    return hashlib.sha1(file.read_bytes()).hexdigest()


def difference_hashes(files: Mapping[str, Path], workers: int) -> dict[str, str]:
    """For each name a hash of what the picture shows: equal where pictures look the same."""
    with ThreadPoolExecutor(workers) as threads:
        return dict(zip(files, threads.map(_difference_hash, files.values()), strict=True))


def write_pictures(pictures: Mapping[str, Picture], sources: Path, root: Path, workers: int) -> None:
    """Write each picture under its path; those that are there already are left alone."""
    for folder in {(root / path).parent for path in pictures}:
        folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(workers) as threads:
        jobs: Iterable[None] = threads.map(
            lambda pair: _write_webp(sources / pair[1].source, root / pair[0], pair[1].size), pictures.items()
        )
        for _ in jobs:  # an error of a thread is raised here
            pass


def _open_rgb(file: Path) -> Image.Image:
    """The picture without transparency: what is transparent becomes white."""
    with Image.open(file) as image:
        if image.mode == "RGB":
            return image.copy()
        layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, WHITE), layer).convert("RGB")


def _difference_hash(file: Path) -> str:
    """256 bits: whether each of 16 x 16 cells is darker than its right neighbour."""
    cells = _open_rgb(file).convert("L").resize((17, 16), Image.Resampling.BOX).tobytes()
    places = (17 * y + x for y in range(16) for x in range(16))
    bits = "".join("1" if cells[place] < cells[place + 1] else "0" for place in places)
    return format(int(bits, 2), "064x")


def _write_webp(source: Path, target: Path, size: Size) -> None:
    if target.exists():
        return
    image = _open_rgb(source)
    if max(image.size) > size.longest_side:
        scale = size.longest_side / max(image.size)
        width, height = (max(1, round(side * scale)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=size.quality, method=6)
    part = target.with_name(f"{target.name}.part")  # a run that is cut off leaves no half a picture
    part.write_bytes(buffer.getvalue())
    part.replace(target)
