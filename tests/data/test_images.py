"""open_image: whatever the source, an upright RGB picture."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from genius.data.images import open_image
from genius.errors import BadImage


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def gradient(width: int = 64, height: int = 48) -> Image.Image:
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, 255 - x], axis=-1).astype(np.uint8))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_every_allowed_format_gives_the_picture(format: str) -> None:
    decoded = open_image(encoded(gradient(), format))
    assert decoded.mode == "RGB"
    difference = np.abs(np.asarray(decoded, dtype=int) - np.asarray(gradient(), dtype=int))
    assert difference.mean() < 12  # lossy formats and GIF's palette come close, lossless ones are equal
    if format in {"PNG", "BMP", "TIFF"}:
        assert difference.max() == 0


def test_path_string_bytes_and_pil_image_are_the_same_picture(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(encoded(gradient(), "PNG"))
    pictures = [open_image(source) for source in (file, str(file), file.read_bytes(), Image.open(file))]
    for picture in pictures:
        assert picture.mode == "RGB"
        assert picture.tobytes() == gradient().tobytes()


def test_a_pil_image_is_not_changed() -> None:
    image = Image.new("RGBA", (3, 2), (255, 0, 0, 0))
    assert open_image(image).getpixel((0, 0)) == (255, 255, 255)
    assert image.mode == "RGBA"
    plain = Image.new("RGB", (3, 2))
    open_image(plain).putpixel((0, 0), (9, 9, 9))
    assert plain.getpixel((0, 0)) == (0, 0, 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    upright = Image.new("RGB", (40, 20), "white")
    upright.paste("red", (0, 0, 16, 8))  # top left corner
    how = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(how[orientation]) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = open_image(encoded(stored, "PNG", exif=exif.tobytes()))
    assert decoded.tobytes() == upright.tobytes()


def test_a_large_jpeg_is_decoded_smaller_but_never_too_small() -> None:
    data = encoded(gradient(1600, 1200), "JPEG")
    reduced = open_image(data, at_least=224)
    assert reduced.size == (400, 300)
    full = np.asarray(open_image(data).resize(reduced.size, Image.Resampling.BOX), dtype=int)
    assert np.abs(np.asarray(reduced, dtype=int) - full).mean() < 2
    assert open_image(data, at_least=1000).size == (1600, 1200)
    assert open_image(encoded(gradient(100, 80), "JPEG"), at_least=224).size == (100, 80)
    assert open_image(encoded(gradient(1600, 1200), "PNG"), at_least=224).size == (1600, 1200)


def test_the_reason_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "no\nsuch.jpg"
    with pytest.raises(BadImage, match=r"no\\nsuch\.jpg: no such file"):
        open_image(file)
    with pytest.raises(BadImage, match="not a regular file"):
        open_image(tmp_path)


def test_a_url_is_not_fetched() -> None:
    with pytest.raises(BadImage, match="no such file"):
        open_image("http://127.0.0.1:9/picture.png")
