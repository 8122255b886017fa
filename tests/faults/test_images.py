"""Faults 15, 16, 17: odd, damaged, huge and disguised images are decoded or refused with a reason."""

import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from genius.data.images import open_image
from genius.errors import BadImage

FORMATS = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def noise(width: int = 80, height: int = 64) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


# 15: decoded


def test_cmyk_red_is_red() -> None:
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    for format in ("JPEG", "TIFF"):
        assert open_image(encoded(red, format)).getpixel((8, 8)) == (255, 0, 0)


def test_16_bit_grey_keeps_its_range() -> None:
    values = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    for format in ("PNG", "TIFF"):
        decoded = np.asarray(open_image(encoded(Image.fromarray(values), format)))[..., 0]
        assert np.array_equal(decoded, values >> 8)


@pytest.mark.parametrize(("dtype", "peak"), [(np.float32, 1.0), (np.float32, 255.0), (np.int32, 65535)])
def test_32_bit_pixels_are_scaled(dtype: type, peak: float) -> None:
    values = np.linspace(0, peak, 256).reshape(16, 16).astype(dtype)
    decoded = np.asarray(open_image(encoded(Image.fromarray(values), "TIFF")))[..., 0]
    assert np.abs(decoded.reshape(-1).astype(int) - np.arange(256)).max() <= 1


def test_floats_that_are_no_numbers_are_black() -> None:
    values = np.full((4, 4), np.nan, dtype=np.float32)
    values[0, 0] = np.inf
    assert np.asarray(open_image(encoded(Image.fromarray(values), "TIFF"))).max() == 0


def test_palette_and_transparency_go_onto_white() -> None:
    clear = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    clear.paste((0, 0, 255, 255), (0, 0, 4, 8))
    for format in ("PNG", "WEBP", "GIF", "TIFF"):
        decoded = open_image(encoded(clear, format, **({"lossless": True} if format == "WEBP" else {})))
        assert decoded.getpixel((1, 1)) == (0, 0, 255)
        assert decoded.getpixel((6, 6)) == (255, 255, 255)
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 10, 200, 30])
    assert open_image(encoded(palette, "PNG")).getpixel((0, 0)) == (10, 200, 30)
    assert open_image(encoded(palette, "PNG", transparency=1)).getpixel((0, 0)) == (255, 255, 255)
    half = Image.new("LA", (2, 2), (0, 128))
    assert open_image(encoded(half, "PNG")).getpixel((0, 0)) == (127, 127, 127)


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_an_animation_the_first_frame_is_taken(format: str) -> None:
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if format == "WEBP" else {}
    data = encoded(frames[0], format, save_all=True, append_images=frames[1:], **options)
    decoded = open_image(data)
    assert decoded.size == (20, 10)
    assert decoded.getpixel((5, 5)) == (255, 0, 0)


def test_a_phone_photo_with_two_frames_is_a_jpeg() -> None:
    data = encoded(noise(), "MPO", save_all=True, append_images=[noise()])
    assert open_image(data).size == (80, 64)


@pytest.mark.parametrize("format", FORMATS)
def test_one_pixel(format: str) -> None:
    assert open_image(encoded(Image.new("RGB", (1, 1), "white"), format)).size == (1, 1)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F"])
def test_every_mode_of_a_pil_image(mode: str) -> None:
    assert open_image(Image.new(mode, (5, 4))).mode == "RGB"


def test_a_wrong_name_does_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "picture.jpg"
    file.write_bytes(encoded(noise(), "PNG"))
    assert open_image(file).tobytes() == noise().tobytes()


def test_a_broken_exif_block_does_not_lose_the_picture() -> None:
    data = encoded(noise(), "PNG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\xff" * 40)
    assert open_image(data).tobytes() == noise().tobytes()


# 15: refused


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.95])
def test_truncated_is_refused(format: str, share: float) -> None:
    data = encoded(noise(), format)
    with pytest.raises(BadImage):
        open_image(data[: int(len(data) * share)])
    with pytest.raises(BadImage):
        open_image(data[: int(len(data) * share)], at_least=16)


def test_empty_file_and_text_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.png"
    empty.touch()
    with pytest.raises(BadImage, match=r"empty\.png: the file is empty"):
        open_image(empty)
    with pytest.raises(BadImage, match="not one of JPEG"):
        open_image(b"this is no picture at all" * 100)


@pytest.mark.parametrize("format", FORMATS)
def test_flipped_bytes_give_a_picture_or_bad_image(format: str) -> None:
    data = bytearray(encoded(noise(), format))
    generator = np.random.default_rng(1)
    for _ in range(60):
        damaged = data.copy()
        for place in generator.integers(0, len(data), 8):
            damaged[place] = generator.integers(256)
        try:
            assert open_image(bytes(damaged), max_pixels=1_000_000).mode == "RGB"
        except BadImage as error:
            assert str(error).startswith("image: ")


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    with pytest.raises(BadImage, match="not a regular file"):
        open_image(pipe)


def test_a_thin_strip_is_refused() -> None:
    with pytest.raises(BadImage, match="too thin a strip"):
        open_image(Image.new("L", (100_000, 1)))


# 16: bombs


def zeros_png(side: int) -> bytes:
    """A PNG of side x side black 1-bit pixels, made without ever holding them."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    packer = zlib.compressobj(9)
    row = bytes(1 + (side + 7) // 8)
    packed = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def webp_header(side: int) -> bytes:
    """The start of an extended WebP that claims side x side pixels."""
    canvas = bytes(4) + (side - 1).to_bytes(3, "little") * 2
    body = b"WEBPVP8X" + struct.pack("<I", len(canvas)) + canvas
    return b"RIFF" + struct.pack("<I", len(body)) + body


PEAK = """
import sys
from pathlib import Path
from genius.data.images import open_image
from genius.errors import BadImage

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024

open_image(sys.argv[1])  # decoders loaded, buffers warm
before = peak()
try:
    open_image(sys.argv[2])
except BadImage as error:
    print(peak() - before, peak(), error)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("side", [9_000, 12_000, 30_000])
def test_a_bomb_is_refused_from_its_header(tmp_path: Path, side: int) -> None:
    small, bomb = tmp_path / "small.png", tmp_path / "bomb.png"
    small.write_bytes(encoded(noise(), "PNG"))
    bomb.write_bytes(zeros_png(side))
    if side == 9_000:
        assert bomb.stat().st_size < 12_000
    run = subprocess.run(
        [sys.executable, "-c", PEAK, small, bomb], capture_output=True, text=True, check=True, timeout=60
    )
    grown, whole, reason = run.stdout.split(maxsplit=2)
    assert int(grown) < 5  # MB; the pixels alone would be 10 to 900
    assert int(whole) < 60  # the interpreter, Pillow and NumPy included
    assert "scale it down" in reason


def test_the_cap_counts_pixels_in_all() -> None:
    data = encoded(Image.new("L", (200, 100)), "PNG")
    assert open_image(data, max_pixels=20_000).size == (200, 100)
    with pytest.raises(BadImage, match="200 x 100 pixels; the limit is 19,999"):
        open_image(data, max_pixels=19_999)
    with pytest.raises(BadImage, match="the limit is 19,999"):  # as stored, not as decoded
        open_image(encoded(Image.new("L", (200, 100)), "JPEG"), max_pixels=19_999, at_least=10)
    with pytest.raises(BadImage, match="the limit is 19,999"):
        open_image(Image.new("L", (200, 100)), max_pixels=19_999)


@pytest.mark.parametrize("format", ["GIF", "BMP", "TIFF"])
def test_a_header_that_lies_is_refused(format: str) -> None:
    data = bytearray(encoded(Image.new("L", (7, 5)), format))
    if format == "GIF":
        data[6:10] = struct.pack("<HH", 60_000, 60_000)
    elif format == "BMP":
        data[18:26] = struct.pack("<ii", 60_000, 60_000)
    else:
        for tag in (256, 257):
            place = data.index(struct.pack("<HH", tag, 4)) if struct.pack("<HH", tag, 4) in data else -1
            place = place if place >= 0 else data.index(struct.pack("<HH", tag, 3))
            data[place + 2 : place + 12] = struct.pack("<HII", 4, 1, 60_000)
    with pytest.raises(BadImage):
        open_image(bytes(data))
    with pytest.raises(BadImage):
        open_image(webp_header(16_000))


def test_compressed_text_inside_a_png_is_no_bomb() -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    plain = encoded(noise(), "PNG")
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(80_000_000), 9))
    with pytest.raises(BadImage):
        open_image(plain[:33] + text + plain[33:])  # after the header chunk


# 17: disguises


DISGUISES = {
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(ls) system\n%%EOF\n",
    "svg": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>',
    "pdf": b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\n%%EOF\n",
    "fits": b"SIMPLE  =                    T".ljust(80)
    + b"BITPIX  =                    8".ljust(80)
    + b"END".ljust(80),
    "ppm": b"P6 2 2 255\n" + bytes(12),
    "xbm": b"#define a_width 8\n#define a_height 1\nstatic char a_bits[] = {\n0xff };\n",
}


@pytest.mark.parametrize("kind", DISGUISES)
def test_other_formats_posing_as_png_are_refused(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(DISGUISES[kind] + b"\n" * 3000)
    with pytest.raises(BadImage, match=r"picture\.png: not one of JPEG"):
        open_image(file)


@pytest.mark.parametrize("kind", ["eps", "ppm"])
def test_an_opened_image_of_another_format_is_refused_before_decoding(kind: str) -> None:
    with Image.open(io.BytesIO(DISGUISES[kind])) as image, pytest.raises(BadImage, match="is not one of"):
        open_image(image)
