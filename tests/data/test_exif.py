"""photo_facts: date, place and camera of a photo; broken tags tell nothing."""

from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import Image

from genius.data.exif import photo_facts


def photo(format: str = "JPEG", **change: Any) -> bytes:
    exif = Image.Exif()
    exif[0x010F], exif[0x0110] = change.get("make", "Canon\0"), change.get("model", "Canon EOS 5D")
    exif[0x0132] = "2021:01:01 00:00:00"
    exif.get_ifd(0x8769).update({0x9003: change.get("taken", "2019:07:21 18:30:05"), 0x9011: "+02:00"})
    north, west = change.get("place", ((48.0, 51.0, 29.6), (2.0, 17.0, 40.2)))
    exif.get_ifd(0x8825).update({1: "N", 2: north, 3: "W", 4: west})
    stream = io.BytesIO()
    Image.new("RGB", (32, 24), "green").save(stream, format, exif=exif)
    return stream.getvalue()


@pytest.mark.parametrize("format", ["JPEG", "WEBP", "PNG", "AVIF"])
def test_what_a_photo_tells(format: str) -> None:
    assert photo_facts(photo(format)) == {
        "date": "2019-07-21T18:30:05+02:00",
        "camera": "Canon EOS 5D",
        "latitude": 48.858222,
        "longitude": -2.294500,
    }


def test_absent_and_odd_tags() -> None:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "PNG")
    assert photo_facts(stream.getvalue()) == {}
    assert photo_facts(b"no picture") == {}
    assert photo_facts(photo(make="Apple", model="iPhone 12"))["camera"] == "Apple iPhone 12"
    assert "date" not in photo_facts(photo(taken="0000:00:00 00:00:00"))
    assert "latitude" not in photo_facts(photo(place=((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))))
    assert "latitude" not in photo_facts(photo(place=((99.0, 0.0, 0.0), (0.0, 0.0, 0.0))))
    whole = photo()
    for cut in range(20, 400, 7):
        photo_facts(whole[:cut])  # whatever it tells, it does not raise
