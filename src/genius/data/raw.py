"""The JPEG previews inside camera raw files, found by their markers; the raw pixels are never decoded."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from io import BytesIO
from typing import IO

from PIL import Image

RAW_SUFFIXES = frozenset(
    (".arw", ".cr2", ".cr3", ".dng", ".nef", ".nrw", ".orf", ".pef", ".raf", ".rw2", ".sr2", ".srw")
)
MAX_FOUND = 512  # places that look like the start of a JPEG; a raw file has a few
MAX_SEGMENTS = 100  # of a JPEG's header
ORIENTATION = 0x0112  # EXIF tag
_MAKE, _SUB_IFDS, _DNG_VERSION = 0x010F, 0x014A, 0xC612
_MAKERS = ("NIKON", "SONY", "PENTAX", "RICOH", "SAMSUNG")  # whose raw files are TIFFs by their first bytes
_HEADS = (b"FUJIFILMCCD-RAW", b"IIRO", b"IIRS", b"MMOR", b"IIU\0")
_TIFF = (b"II*\0", b"MM\0*")
_START = b"\xff\xd8\xff"
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # ends the coded pixels of a scan
_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline and progressive; the raw pixels may be a lossless JPEG
_END, _SCAN = 0xD9, 0xDA

Bytes = bytes | mmap.mmap


def is_raw(stream: IO[bytes]) -> bool:
    """Whether a file is a camera's raw file, by its first bytes and tags."""
    head = stream.read(16)
    stream.seek(0)
    if head.startswith(_HEADS) or head[4:11] == b"ftypcrx":
        return True
    if not head.startswith(_TIFF):
        return False
    if head[8:10] == b"CR":
        return True
    tags = _tags(stream)
    maker = str(tags.get(_MAKE, "")).upper()
    return _DNG_VERSION in tags or (_SUB_IFDS in tags and maker.startswith(_MAKERS))


def orientation(stream: IO[bytes]) -> int:
    """How the camera was held, as EXIF says it; 1 (upright) where the file does not tell."""
    held = _tags(stream).get(ORIENTATION, 1)
    return held if held in range(1, 9) else 1


def preview(stream: IO[bytes]) -> bytes | None:
    """The largest JPEG in a raw file; None if there is none."""
    data = _bytes_of(stream)
    try:
        largest = max(_jpegs(data), key=lambda found: found[0], default=None)
        return None if largest is None else bytes(data[largest[1] : largest[2]])
    finally:
        if isinstance(data, mmap.mmap):
            data.close()


def _bytes_of(stream: IO[bytes]) -> Bytes:
    if isinstance(stream, BytesIO):
        return stream.getvalue()
    return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _tags(stream: IO[bytes]) -> Image.Exif:
    tags = Image.Exif()
    try:
        tags.load_from_fp(stream)
    except Exception:  # not the tags of a TIFF, or broken ones
        tags = Image.Exif()
    stream.seek(0)
    return tags


def _jpegs(data: Bytes) -> Iterator[tuple[int, int, int]]:
    """Pixels, start and end of each whole JPEG."""
    start = -1
    for _ in range(MAX_FOUND):
        start = data.find(_START, start + 1)
        if start < 0:
            return
        found = _extent(data, start)
        if found is not None:
            yield found[0], start, found[1]


def _extent(data: Bytes, start: int) -> tuple[int, int] | None:
    """Pixels and end of the JPEG at `start`; None if it is none, not whole, or a lossless one."""
    place, pixels = start + 2, 0
    for _ in range(MAX_SEGMENTS):
        if place + 4 > len(data) or data[place] != 0xFF:
            return None
        kind = data[place + 1]
        if kind == _END:
            return (pixels, place + 2) if pixels else None
        length = int.from_bytes(data[place + 2 : place + 4], "big")
        if kind in _FRAMES:
            height, width = (int.from_bytes(data[place + at : place + at + 2], "big") for at in (5, 7))
            pixels = height * width
        elif 0xC3 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            return None
        place += 2 + length
        if kind == _SCAN:
            marker = _MARKER.search(data, place)
            if marker is None:
                return None
            place = marker.start()
    return None
