"""Waits until files change, by polling their sizes and times."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

INTERVAL_S = 2.0


def wait_for_change(
    places: Sequence[Path], ignored: Path, before: bytes, sleep: Callable[[float], None] = time.sleep
) -> bytes:
    """Wait until `places` differ from the state `before` and have settled; returns the new state."""
    last = before
    while True:
        sleep(INTERVAL_S)
        now = state_of(places, ignored)
        if now == last and now != before:
            return now
        last = now


def state_of(places: Sequence[Path], ignored: Path) -> bytes:
    """A digest of the names, sizes and times of all files in `places`, but those in the folder `ignored`."""
    digest = blake2b(digest_size=16)
    for place in places:
        for path, status in _files(place, ignored.absolute()):
            digest.update(f"{status.st_size} {status.st_mtime_ns} ".encode() + os.fsencode(path) + b"\0")
    return digest.digest()


def _files(place: Path, ignored: Path) -> Iterator[tuple[str, os.stat_result]]:
    if not place.is_dir():
        if place.exists():
            yield str(place), place.stat()
        return
    for folder, inner, names in os.walk(place, followlinks=False):
        inner[:] = sorted(
            name for name in inner if not name.startswith(".") and Path(folder, name).absolute() != ignored
        )
        for name in sorted(names):
            path = os.path.join(folder, name)  # noqa: PTH118 (many of them, of any bytes)
            try:
                yield path, os.stat(path)  # noqa: PTH116
            except OSError:
                continue
