"""One item on its way in: checked, and read if it is new or has changed."""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genius.data.exif import FACTS, photo_facts
from genius.data.images import open_image, refuse_odd_file
from genius.data.isolated import open_in_time
from genius.data.report import printable
from genius.data.texts import UserText, clean_text
from genius.data.validate import unit_vector, valid_id, valid_meta
from genius.errors import BadImage, BadInput, MissingImage
from genius.store.records import Amendment, Known, Stamp
from genius.types import Item, Modality

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    from genius.types import ImageSource

ENCODER_SIDE = 448  # pixels of the shorter side: enough for every encoder
THUMBNAIL = 256  # pixels of the longer side
_DIGEST = 16
NO_IMAGE = bytes(_DIGEST)  # stands for its hash
_LATEST_NS = 2**63 - 1  # what SQLite can store: a moment of the year 2262


@dataclass(frozen=True, slots=True)
class PendingItem:
    """An item that has to be encoded."""

    id: str
    image: Image | None
    text: str | None
    path: str | None
    source: str | None
    meta: str  # JSON object
    hash: bytes
    stamp: Stamp
    thumbnail: bytes | None
    modality: Modality
    vector: NDArray[np.float32] | None = None  # an embedding that came with the item, unit length
    spans: tuple[tuple[int, int], ...] = ()  # start and end of the passages of a long text


def read_item(
    item: Item, known: Known | None, source: str | None = None, *, exif: bool = False
) -> PendingItem | Amendment | None:
    """The item to encode; or an amendment if only its path, source, metadata or stamp changed; or None.

    A file is read again only if its stamp does not prove it unchanged, and encoded again only if its hash or
    the text has changed. With `exif`, the EXIF data of a photo become metadata, unless the item has an entry
    of the same name. Raises BadInput with the reason if the item cannot be used.
    """
    valid_id(item.id)
    text = _clean(item.text)
    own = {**item.meta, "text_flags": list(text.flags)} if text.flags else item.meta
    meta = valid_meta(own)
    if item.vector is not None:
        return _read_embedded(item, text, meta, known, source)
    if item.image is None and not text.text:
        raise BadInput("neither image nor text: give at least one of them")
    text_hash = digest(text.text.encode())
    path, stamp = None, Stamp()
    if isinstance(item.image, str | Path):
        path = os.path.abspath(item.image)  # noqa: PTH100 (links are kept: the name is what the user knows)
        stamp = _stamp(path)
    same_text = known is not None and known.hash[_DIGEST:] == text_hash  # one with a vector has a longer hash
    if (
        known is not None
        and same_text
        and path is not None
        and known.path == path
        and known.stamp.vouches_for(stamp)
    ):
        if exif:
            before = json.loads(known.meta)
            meta = valid_meta({**{name: before[name] for name in FACTS if name in before}, **own})
        unchanged = (known.meta, known.source) == (meta, source)
        return None if unchanged else Amendment(known.row, path, source, meta, known.stamp)
    # what was a file and is bytes now needs a thumbnail of its own, so it is read and stored again
    keeps_picture = known is not None and (path is not None or known.path is None)
    expected = known.hash[:_DIGEST] if known is not None and same_text and keeps_picture else None
    image_hash, image, facts = _read(item, path, expected, exif)
    if facts:
        meta = valid_meta({**facts, **own})
    if known is not None and known.hash == image_hash + text_hash and (image is None or keeps_picture):
        unchanged = (known.meta, known.source, known.path) == (meta, source, path)
        if unchanged and known.stamp == stamp:
            return None
        return Amendment(known.row, path, source, meta, stamp, only_stamp=unchanged)
    return PendingItem(
        item.id,
        image,
        text.text or None,
        path,
        source,
        meta,
        image_hash + text_hash,
        stamp,
        thumbnail(image) if image is not None and path is None else None,
        Modality.of(image=image is not None, text=bool(text.text)),
    )


def keep_image(item: Item, known: Known, source: str | None) -> Amendment | None:
    """What changes of a stored item whose image, at a URL, and text are known to be the same."""
    flags = _clean(item.text).flags
    meta = valid_meta({"uri": str(item.image), **item.meta, **({"text_flags": list(flags)} if flags else {})})
    unchanged = (known.meta, known.source) == (meta, source)
    return None if unchanged else Amendment(known.row, known.path, source, meta, known.stamp)


def _read_embedded(
    item: Item, text: UserText, meta: str, known: Known | None, source: str | None
) -> PendingItem | Amendment | None:
    """The same for an item that comes with its embedding: an image file is not opened, and need not exist."""
    vector = unit_vector(item.vector)
    path, stamp, small = None, Stamp(), None
    if isinstance(item.image, str | Path):
        path = os.path.abspath(item.image)  # noqa: PTH100
        with suppress(BadImage):
            stamp = _stamp(path)
    elif item.image is not None:
        small = thumbnail(open_image(item.image, at_least=ENCODER_SIDE))
    hash = (
        digest(os.fsencode(path or "") + (small or b""))
        + digest(text.text.encode())
        + digest(vector.tobytes())
    )
    if known is not None and known.hash == hash:
        unchanged = (known.meta, known.source, known.path) == (meta, source, path)
        return None if unchanged else Amendment(known.row, path, source, meta, stamp)
    kind = item.modality if text.text or item.image is not None else Modality.TEXT
    return PendingItem(item.id, None, text.text or None, path, source, meta, hash, stamp, small, kind, vector)


def thumbnail(image: Image, side: int = THUMBNAIL) -> bytes:
    """A small JPEG of the image, its longer side at most `side`."""
    small = image.copy()
    small.thumbnail((side, side))
    buffer = BytesIO()
    small.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def _clean(text: object) -> UserText:
    if text is not None and not isinstance(text, str):
        raise BadInput(f"the text must be a string, not {type(text).__name__}")
    return clean_text(text or "")


def _stamp(path: str) -> Stamp:
    try:
        status = Path(path).stat()
        stamp = Stamp.of(status)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise MissingImage(f"no image at {printable(path)}") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise MissingImage(f"no image at {printable(path)}") from None
        raise BadImage(f"cannot be read: {printable(error)}") from None
    if stat.S_ISDIR(status.st_mode):
        raise MissingImage(f"no image at {printable(path)}: it is a folder")
    if max(abs(stamp.mtime_ns), abs(stamp.ctime_ns)) > _LATEST_NS:
        raise BadImage("the date of the file is after the year 2262 or before 1678: `touch` it")
    return stamp


def _read(
    item: Item, path: str | None, expected: bytes | None, exif: bool
) -> tuple[bytes, Image | None, dict[str, Any]]:
    """Hash of the image's bytes, the image unless its hash is the expected one, and what a photo tells."""
    source = item.image
    if source is None:
        return NO_IMAGE, None, {}
    if path is not None:
        refuse_odd_file(Path(path))
        source = Path(path).read_bytes()
    if isinstance(source, bytes):
        hash = digest(source)
    else:
        assert not isinstance(source, str | Path)
        hash = digest(f"{source.mode} {source.size}".encode() + source.tobytes())
    facts = photo_facts(source) if exif and isinstance(source, bytes) else {}
    if hash == expected:
        return hash, None, facts
    image = _open(source)
    if path is not None:
        image.info["source"] = path
    return hash, image, facts


def _open(source: ImageSource) -> Image:
    """A file's bytes within a limit of time; a PIL image is decoded, or nearly so."""
    if isinstance(source, bytes):
        return open_in_time(source, ENCODER_SIDE)
    return open_image(source, at_least=ENCODER_SIDE)


def digest(data: bytes) -> bytes:
    """The hash that tells one content from another."""
    return blake2b(data, digest_size=_DIGEST).digest()
