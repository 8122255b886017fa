"""Pack a training root in M-BEIR's layout into parts of limited size, to carry it to another machine.

    python benchmarks/data/pack.py DATA --to PARTS --side 224 --megabytes 60
    for part in PARTS/*.tar*; do tar -xf $part -C DATA; done          # there

The tables are in `tables.tar.xz`. The pictures that they name are made no larger than `mini` sees them and
saved as WebP under their old names. Pictures that cannot be read are left out and counted. Parts can be
unpacked in any order. Pictures that queries ask with or for come first: where time or space is short, the
last parts can be left out, and training goes on without their pictures.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from PIL import Image

TABLES = ("query", "cand_pool", "qrels", "instructions")
QUALITY = 65
AT_ONCE = 64  # pictures that a process gets at a time
Map = Callable[[Callable[[Path], bytes | None], Iterable[Path]], Iterable[bytes | None]]


def squeeze(file: Path, side: int) -> bytes | None:
    """The picture as WebP, each of its sides at most `side`; None if it cannot be read."""
    try:
        with Image.open(file) as opened:
            opened.draft("RGB", (side, side))
            size = min(side, opened.width), min(side, opened.height)
            small = opened.convert("RGB").resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    out = io.BytesIO()
    small.save(out, "WEBP", quality=QUALITY, method=2)
    return out.getvalue()


class Parts:
    """Tar files part-000.tar, part-001.tar, … of limited size."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        folder.mkdir(parents=True)
        self._folder, self._most = folder, most_bytes
        self._tar: tarfile.TarFile | None = None
        self._free = self.count = 0

    def add(self, name: str, content: bytes) -> None:
        """One more file, in a new part if it does not fit into the last one."""
        size = 512 + -(-len(content) // 512) * 512
        if self._tar is None or size > self._free:
            self.close()
            self._tar = tarfile.open(self._folder / f"part-{self.count:03}.tar", "w")  # noqa: SIM115
            self._free, self.count = self._most - tarfile.RECORDSIZE, self.count + 1
        about = tarfile.TarInfo(name)
        about.size = len(content)
        self._tar.addfile(about, io.BytesIO(content))
        self._free -= size

    def close(self) -> None:
        """End the last part."""
        if self._tar is not None:
            self._tar.close()
            self._tar = None


def files(root: Path) -> Iterator[Path]:
    """All tables of `root`, in order."""
    for name in TABLES:
        yield from sorted(file for file in (root / name).rglob("*") if file.is_file())


def pictures(tables: Iterable[Path]) -> list[str]:
    """The pictures that queries and items name, each once: those of queries and their positives first."""
    asked: set[str] = set()
    items: dict[str, set[str]] = defaultdict(set)  # id to pictures: splits may use an id for different items
    positives: set[str] = set()
    for table in tables:
        if table.suffix == ".jsonl":
            with table.open(encoding="utf-8") as lines:
                for row in map(json.loads, lines):
                    if row.get("img_path"):
                        items[row["did"]].add(row["img_path"])
                    elif row.get("query_img_path"):
                        asked.add(row["query_img_path"])
                    positives.update(row.get("pos_cand_list", ()))
    for number in positives & items.keys():
        asked |= items[number]
    return sorted(asked) + sorted(set().union(*items.values()) - asked)


def pack(root: Path, to: Path, side: int, most_bytes: int, each: Map = map) -> tuple[int, int, int]:
    """Write the parts; how many parts, pictures and unreadable pictures there are."""
    parts, unreadable, tables = Parts(to, most_bytes), 0, list(files(root))
    with tarfile.open(to / "tables.tar.xz", "w:xz") as archive:
        for file in tables:
            archive.add(file, file.relative_to(root).as_posix())
    names = pictures(tables)
    images = [root / name for name in names]
    for name, content in zip(names, each(partial(squeeze, side=side), images), strict=True):
        if content is None:
            unreadable += 1
        else:
            parts.add(name, content)
    parts.close()
    return parts.count, len(names), unreadable


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--to", type=Path, required=True, help="folder of the parts; must not be there yet")
    parser.add_argument("--side", type=int, default=224, help="pixels")
    parser.add_argument("--megabytes", type=int, default=60, help="size of a part")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    with ProcessPoolExecutor(given.processes) as pool:
        each = partial(pool.map, chunksize=AT_ONCE)
        found = pack(given.root, given.to, given.side, given.megabytes * 1_000_000, each)
    print("{} parts of {:,} pictures, {} of them unreadable".format(*found))


if __name__ == "__main__":
    main()
