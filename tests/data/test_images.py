"""open_image: whatever the source, an upright RGB picture."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from genius.data.images import SUFFIXES, open_image
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


# --- formats of phones and cameras -------------------------------------------------------------------------


def _file(tmp_path: Path, name: str, data: bytes) -> Path:
    (tmp_path / name).write_bytes(data)
    return tmp_path / name


def _jpeg(size: tuple[int, int], colour: str = "green", **options: object) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, "JPEG", **options)
    return stream.getvalue()


def test_avif_and_jfif(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (40, 30), "red").save(stream, "AVIF")
    red = open_image(_file(tmp_path, "x.avif", stream.getvalue())).getpixel((5, 5))
    assert max(abs(a - b) for a, b in zip(red, (255, 0, 0), strict=True)) < 8
    assert open_image(_file(tmp_path, "x.jfif", _jpeg((40, 30)))).size == (40, 30)
    assert {".avif", ".jfif", ".nef"} <= SUFFIXES


def test_heic_with_the_extra(tmp_path: Path) -> None:
    heif = pytest.importorskip("pillow_heif")
    file = tmp_path / "x.heic"
    heif.from_pillow(Image.new("RGB", (64, 48), "blue")).save(file)
    image = open_image(file, at_least=32)
    assert image.size == (64, 48) and image.getpixel((9, 9))[2] > 200
    assert open_image(file.read_bytes()).size == (64, 48)
    with pytest.raises(BadImage):
        open_image(file.read_bytes()[:300])


def _raw(*previews: bytes, make: str = "NIKON CORPORATION", held: int = 1) -> bytes:
    """A TIFF with the tags of a raw file, noise for pixels, and previews in between."""
    tags = ((0x010F, 2, make.encode() + b"\0"), (0x0112, 3, held), (0x014A, 4, 8))
    head, extra = struct.pack("<2sHIH", b"II", 42, 8, len(tags)), b""
    for tag, kind, value in tags:
        if isinstance(value, bytes):
            place = 8 + 2 + 12 * len(tags) + 4
            head += struct.pack("<HHII", tag, kind, len(value), place)
            extra = value
        else:
            head += struct.pack("<HHII", tag, kind, 1, value)
    noise = np.random.default_rng(0).integers(0, 256, 200_000, dtype=np.uint8).tobytes()
    body = head + bytes(4) + extra + noise
    for one in previews:
        body += one + noise
    return body


def test_of_a_raw_file_the_largest_preview_is_read(tmp_path: Path) -> None:
    data = _raw(_jpeg((16, 12), "red"), _jpeg((64, 48), "green"), _jpeg((32, 24), "blue"))
    for source in (_file(tmp_path, "x.nef", data), data):
        assert open_image(source).size == (64, 48)
    assert open_image(_raw(_jpeg((64, 48)), held=6)).size == (48, 64)  # the camera was held upright
    assert open_image(b"FUJIFILMCCD-RAW " + data).size == (64, 48)
    with pytest.raises(BadImage, match="without a JPEG preview"):
        open_image(_file(tmp_path, "y.dng", _raw()))
    with pytest.raises(BadImage, match="without a JPEG preview"):
        open_image(_file(tmp_path, "z.cr2", _raw(_jpeg((64, 48))[:-200])))


def test_a_jpeg_of_200_megapixels_is_decoded_at_an_eighth() -> None:
    stream = io.BytesIO()
    Image.new("L", (16000, 12400), 99).save(stream, "JPEG", quality=10)  # 198 megapixels
    assert open_image(stream.getvalue(), at_least=448).size == (2000, 1550)


def test_beyond_the_limits(tmp_path: Path) -> None:
    flat = Image.new("1", (9000, 9000))  # 81 megapixels
    stream = io.BytesIO()
    flat.save(stream, "PNG")
    with pytest.raises(BadImage, match="save it as JPEG"):
        open_image(stream.getvalue(), at_least=448)
    head = _jpeg((16, 16)).replace(struct.pack(">HH", 16, 16), struct.pack(">HH", 20000, 20000))
    with pytest.raises(BadImage, match="20000 x 20000 pixels; the limit is 200,000,000"):
        open_image(head)
