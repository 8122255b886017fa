"""Images decoded safely: known formats only, cost checked before decoding, always upright RGB."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, JpegImagePlugin, UnidentifiedImageError

from genius.data.raw import ORIENTATION, RAW_SUFFIXES, is_raw, orientation, preview
from genius.data.report import printable
from genius.errors import BadImage

if TYPE_CHECKING:
    from genius.types import ImageSource

HEIF = "HEIF"  # with the extra heic
HEIF_SUFFIXES = frozenset((".heic", ".heif", ".hif"))
HAS_HEIF = find_spec("pillow_heif") is not None
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", *((HEIF,) if HAS_HEIF else ()))
JPEG = "JPEG"
RAW_TYPE = "application/octet-stream"
JPEG_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".jif")
SUFFIXES = (
    frozenset((*JPEG_SUFFIXES, ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif")) | RAW_SUFFIXES
)
SUFFIXES |= HEIF_SUFFIXES if HAS_HEIF else frozenset()
MAX_PIXELS = 200_000_000  # of a JPEG, which can be decoded at a part of its size
MAX_DECODED = 64_000_000  # pixels that are decoded: of all other formats, and of a reduced JPEG
MAX_BYTES = 512 * 2**20  # some decoders read the whole file first
MAX_WORK = 1_000_000_000  # pixels x scans of a JPEG: about a second
MAX_RLE_PIXELS = 4_000_000  # of a run-length BMP, which Pillow decodes in Python
LARGE = 16_000_000  # pixels; of larger images one is decoded at a time, so that threads share the memory
MAX_RATIO = 200  # long side to short side; scaling a thinner strip up to a square costs too much memory

_BAND = 1 << 20  # pixels converted at a time
_SCAN = b"\xff\xda"  # begins a scan of a JPEG, and cannot occur inside one
_JPEG = b"\xff\xd8\xff"
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_large = threading.Lock()


def open_image(source: ImageSource, max_pixels: int = MAX_PIXELS, at_least: int | None = None) -> Image.Image:
    """`source` (a path, bytes or PIL image) as an upright RGB image; raises BadImage with the reason.

    Transparent areas become white, an animation its first frame, wide pixels are scaled to 8 bits.
    With `at_least`, a large JPEG may be decoded at a half, a quarter or an eighth of its size, as long as no
    side gets shorter than that: several times faster for thumbnails and encoders. A JPEG of more than
    MAX_DECODED pixels always is. Of a camera's raw file the largest preview in it is taken.
    """
    name = _name(source)
    try:
        if isinstance(source, bytes):
            return _read(BytesIO(source), "", max_pixels, at_least)
        if isinstance(source, Image.Image):
            return _convert(source, max_pixels)
        path = Path(source)
        refuse_odd_file(path)
        with path.open("rb") as stream:
            return _marked(_read(stream, path.suffix, max_pixels, at_least), path)
    except BadImage as error:
        raise BadImage(f"{name}: {error}") from None
    except UnidentifiedImageError:
        raise BadImage(f"{name}: not one of {', '.join(FORMATS)}; save it as JPEG or PNG") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, MemoryError):
        raise BadImage(f"{name}: too large to decode; scale it down first") from None
    except FileNotFoundError:
        raise BadImage(f"{name}: no such file") from None
    except (
        Exception
    ) as error:  # decoders fail in many ways on damaged bytes; each means the same to the caller
        raise BadImage(f"{name}: damaged or unreadable ({printable(error)})") from None


def media_type(path: str | Path) -> str:
    """The media type of an image file, such as image/jpeg, by its content; raises BadImage.

    A camera's raw file is RAW_TYPE, which browsers save.
    """
    file = Path(path)
    try:
        refuse_odd_file(file)
        with file.open("rb") as stream:
            if file.suffix.lower() in RAW_SUFFIXES or is_raw(stream):
                return RAW_TYPE
            with open_header(stream) as image:
                return Image.MIME[JPEG if image.format == "MPO" else image.format or ""]
    except Exception as error:  # as in `open_image`
        raise BadImage(f"{_name(path)}: no image that can be read ({printable(error)})") from None


def _name(source: ImageSource) -> str:
    return printable(source) if isinstance(source, str | Path) else "image"


def _marked(image: Image.Image, path: Path) -> Image.Image:
    """`image` with its path noted in it: precomputed vectors are found by that."""
    image.info["source"] = str(path)
    return image


def refuse_odd_file(path: Path) -> None:
    """Stop before opening what would block or never end, such as a pipe or a device."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise BadImage("not a regular file")
    if status.st_size == 0:
        raise BadImage("the file is empty")
    if status.st_size > MAX_BYTES:
        raise BadImage(f"a file of {status.st_size >> 20} MB; the limit is {MAX_BYTES >> 20} MB")


def _read(stream: IO[bytes], suffix: str, max_pixels: int, at_least: int | None) -> Image.Image:
    if suffix.lower() not in RAW_SUFFIXES and not is_raw(stream):
        return _decode(stream, max_pixels, at_least)
    inside = preview(stream)
    if inside is None:
        raise BadImage("a raw file without a JPEG preview in it; develop it to JPEG")
    return _decode(BytesIO(inside), max_pixels, at_least, held=orientation(stream))


def _decode(stream: IO[bytes], max_pixels: int, at_least: int | None, held: int = 1) -> Image.Image:
    """The image in `stream`; `held` is the orientation of one that does not tell its own."""
    with open_header(stream) as image:
        _refuse_odd_size(image, max_pixels)
        _refuse_costly(image, stream)
        with _one_at_a_time(image):
            full = image.size
            if at_least is not None:
                image.draft("RGB", (at_least, at_least))
            for part in (2, 4, 8):
                if image.width * image.height > MAX_DECODED:
                    image.draft("RGB", (-(-full[0] // part), -(-full[1] // part)))
            if held != 1 and ORIENTATION not in image.getexif():
                image.getexif()[ORIENTATION] = held
            return _convert(image, MAX_DECODED)


def open_header(stream: IO[bytes]) -> Image.Image:
    """The image, of which only the header was read; Pillow's own limit of pixels does not hold for a JPEG."""
    head = stream.read(12)
    stream.seek(0)
    if head.startswith(_JPEG):
        try:
            return JpegImagePlugin.jpeg_factory(stream)
        except SyntaxError as error:
            raise UnidentifiedImageError(str(error)) from None
    if HAS_HEIF and head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS:
        _register_heif()
        return Image.open(stream, formats=(HEIF, "AVIF"))
    return Image.open(stream, formats=[name for name in FORMATS if name != HEIF])


@cache
def _register_heif() -> None:
    import pillow_heif

    pillow_heif.register_heif_opener(thumbnails=False, decode_threads=1)


@contextmanager
def _one_at_a_time(image: Image.Image) -> Iterator[None]:
    if image.width * image.height <= LARGE:
        yield
        return
    with _large:
        yield


def _refuse_costly(image: Image.Image, stream: IO[bytes]) -> None:
    """Stop before decoding what takes far longer than its size tells."""
    pixels = image.width * image.height
    if image.format == "BMP" and image.tile and image.tile[0][0] == "bmp_rle" and pixels > MAX_RLE_PIXELS:  # type: ignore[attr-defined]
        raise BadImage(f"a run-length BMP of more than {MAX_RLE_PIXELS:,} pixels; save it as PNG")
    if image.format in ("JPEG", "MPO", "TIFF"):  # a TIFF may hold JPEGs
        scans = _scans(stream)
        if scans * pixels > MAX_WORK and (image.format != "TIFF" or image.info.get("compression") == "jpeg"):
            raise BadImage(
                f"a JPEG of {scans} scans; with {pixels:,} pixels the limit is {MAX_WORK // pixels}, "
                "save it again with fewer"
            )


def _scans(stream: IO[bytes]) -> int:
    """How many scans begin in a file; where it is read next is left as it was."""
    place = stream.tell()
    stream.seek(0)
    count, last = 0, b""
    while part := stream.read(1 << 20):
        count += (last + part).count(_SCAN)
        last = part[-1:]
    stream.seek(place)
    return count


def _refuse_odd_size(image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise BadImage(f"{width} x {height} pixels; the limit is {max_pixels:,} in all, scale it down first")
    if image.format not in ("JPEG", "MPO") and width * height > MAX_DECODED:
        raise BadImage(
            f"{width} x {height} pixels; the limit is {MAX_DECODED:,} in all, {MAX_PIXELS:,} in a JPEG: "
            "scale it down first, or save it as JPEG"
        )
    if min(width, height) < 1:
        raise BadImage("it has no pixels")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise BadImage(f"{width} x {height} is too thin a strip; crop it to {MAX_RATIO}:1 or less")


def _convert(image: Image.Image, max_pixels: int) -> Image.Image:
    """`image`, opened but perhaps not yet decoded, as upright RGB; the original is left as it is."""
    if image.format is not None and image.format not in (*FORMATS, "MPO"):
        raise BadImage(f"{image.format} is not one of {', '.join(FORMATS)}; save it as JPEG or PNG")
    _refuse_odd_size(image, max_pixels)
    image.load()
    upright = _upright(image)
    if upright.mode.startswith(("I", "F")):
        upright = _to_8_bits(upright)
    if upright.has_transparency_data:
        return _on_white(upright)
    if upright.mode != "RGB":
        return upright.convert("RGB")
    return upright.copy() if upright is image else upright


def _upright(image: Image.Image) -> Image.Image:
    """`image`, or a copy that is turned as its EXIF orientation says."""
    try:
        if image.getexif().get(ORIENTATION, 1) in range(2, 9):
            return ImageOps.exif_transpose(image)
    except Exception:  # a broken EXIF block is no reason to lose the picture
        return image
    return image


def _on_white(image: Image.Image) -> Image.Image:
    """`image` as RGB over white; in bands, since whole copies of a large image are many times its file."""
    flat = Image.new("RGB", image.size)
    rows = max(1, _BAND // image.width)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height))).convert("RGBA")
        white = Image.new("RGBA", band.size, "white")
        white.alpha_composite(band)
        flat.paste(white.convert("RGB"), (0, top))
    return flat


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Grey values of 16 or 32 bits or of floats as 0 to 255, by the range they are customarily written in."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    values = np.array(image, dtype=np.float32)  # changed in place: an image may be large
    np.nan_to_num(values, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    peak = float(values.max())
    usual = (1.0, 255.0, 65_535.0) if image.mode == "F" else (255.0, 65_535.0)
    full = next((limit for limit in usual if peak <= limit), peak)
    values *= 255.0 / full
    np.clip(values, 0, 255, out=values)
    return Image.fromarray(values.astype(np.uint8))
