"""What a photo tells of itself: when and where it was taken, and with which camera."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from io import BytesIO
from typing import Any

from PIL import Image

from genius.data.images import open_header
from genius.data.report import is_printable

DATE, CAMERA, PLACE = "date", "camera", ("latitude", "longitude")
FACTS = (DATE, CAMERA, *PLACE)  # entries of an item's metadata
MAX_CAMERA = 100  # characters
_MAKE, _MODEL, _CHANGED = 0x010F, 0x0110, 0x0132
_EXIF, _GPS = 0x8769, 0x8825
_TAKEN, _DIGITIZED, _OFFSET = 0x9003, 0x9004, 0x9011
_ZONE = re.compile(r"[+-]\d\d:\d\d")


def photo_facts(data: bytes) -> dict[str, Any]:
    """Date (ISO 8601), camera, latitude and longitude of a photo, as far as it tells; never raises."""
    try:
        tags = _tags(data)
        return {**_date(tags), **_camera(tags), **_place(tags.get_ifd(_GPS))}
    except Exception:  # broken tags are no reason to lose the photo
        return {}


def _tags(data: bytes) -> Image.Exif:
    tags = Image.Exif()
    with open_header(BytesIO(data)) as image:
        if "exif" in image.info:
            tags.load(image.info["exif"])
        elif image.format == "TIFF":
            return image.getexif()
    return tags


def _date(tags: Image.Exif) -> dict[str, str]:
    inner = tags.get_ifd(_EXIF)
    written = inner.get(_TAKEN) or inner.get(_DIGITIZED) or tags.get(_CHANGED)
    try:
        taken = datetime.strptime(str(written).strip("\0 ")[:19], "%Y:%m:%d %H:%M:%S")
    except ValueError:
        return {}
    zone = str(inner.get(_OFFSET, "")).strip("\0 ")
    return {DATE: taken.isoformat() + (zone if _ZONE.fullmatch(zone) else "")}


def _camera(tags: Image.Exif) -> dict[str, str]:
    make, model = (" ".join(str(tags.get(tag, "")).replace("\0", " ").split()) for tag in (_MAKE, _MODEL))
    name = model if model.lower().startswith(make.lower()) else f"{make} {model}".strip()
    return {CAMERA: name[:MAX_CAMERA]} if name and is_printable(name) else {}


def _place(gps: Mapping[int, Any]) -> dict[str, float]:
    latitude, longitude = (_degrees(gps.get(tag), gps.get(tag - 1)) for tag in (2, 4))
    if latitude is None or longitude is None or abs(latitude) > 90 or abs(longitude) > 180:
        return {}
    if latitude == longitude == 0:  # what cameras write that do not know
        return {}
    return dict(zip(PLACE, (round(latitude, 6), round(longitude, 6)), strict=True))


def _degrees(parts: Any, side: Any) -> float | None:
    if parts is None or len(parts) != 3:
        return None
    degrees, minutes, seconds = (float(part) for part in parts)
    value = degrees + minutes / 60 + seconds / 3600
    if not math.isfinite(value):
        return None
    return -value if str(side).strip("\0 ").upper() in ("S", "W") else value
