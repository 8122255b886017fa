"""What a run will cost, said before it starts: memory, disk and time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Estimate:
    """Counts and costs of an evaluation that has not begun."""

    items: int
    queries: int
    images: int  # still to encode
    texts: int  # still to encode
    memory: int  # bytes held at once, at most
    disk: int  # bytes the cache will grow by
    seconds: float  # for encoding, from a timed sample; searching comes on top

    def line(self) -> str:
        """The estimate for people."""
        encode = "all vectors are cached"
        if self.images or self.texts:
            encode = (
                f"{self.images:,} images and {self.texts:,} texts to encode, about {duration(self.seconds)}, "
                f"{size(self.disk)} of cache"
            )
        return f"{self.items:,} items, {self.queries:,} queries; {encode}; {size(self.memory)} of memory"


def available_memory() -> int:
    """Bytes of memory that a process can still take without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def size(count: float) -> str:
    """`count` bytes for people: 512 B, 3.4 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """`seconds` for people: 40 s, 6 min, 3.5 h."""
    if seconds < 100:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
