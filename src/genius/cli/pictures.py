"""Pictures in a terminal: by the protocol of kitty or iTerm, as sixels, else as blocks of two colours.

No terminal is asked what it can: an answer may never come. Its environment variables say enough.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

ROWS = 8  # lines of text that a picture takes
CELL = (9, 18)  # pixels of a character, about
CHUNK = 4096  # bytes that kitty takes at once
COLOURS = 64  # of a sixel picture


def protocol(environ: Mapping[str, str]) -> str:
    """How the terminal with these environment variables shows pictures: kitty, iterm, sixel or blocks."""
    term, program = environ.get("TERM", ""), environ.get("TERM_PROGRAM", "")
    if "KITTY_WINDOW_ID" in environ or "kitty" in term or program == "ghostty":
        return "kitty"
    if program in ("iTerm.app", "WezTerm") or environ.get("LC_TERMINAL") == "iTerm2":
        return "iterm"
    if program == "mlterm" or term.startswith(("foot", "mlterm")) or "sixel" in term:
        return "sixel"
    return "blocks"


def terminal_picture(jpeg: bytes, how: str) -> str:
    """What to print for a picture; the cursor is below it afterwards."""
    from PIL import Image

    image = Image.open(BytesIO(jpeg)).convert("RGB")
    height = ROWS * CELL[1]
    small = image.resize((max(1, round(image.width * height / image.height)), height))
    if how == "kitty":
        return _kitty(small)
    if how == "iterm":
        data = base64.b64encode(jpeg).decode()
        return f"\x1b]1337;File=inline=1;height={ROWS};preserveAspectRatio=1:{data}\a\n"
    return _sixel(small) if how == "sixel" else _blocks(image)


def _kitty(image: Image) -> str:
    buffer = BytesIO()
    image.save(buffer, "PNG")
    data = base64.b64encode(buffer.getvalue()).decode()
    chunks = [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
    head = f"a=T,f=100,r={ROWS},q=2,"
    return (
        "".join(
            f"\x1b_G{head if number == 0 else ''}m={int(number < len(chunks) - 1)};{chunk}\x1b\\"
            for number, chunk in enumerate(chunks)
        )
        + "\n"
    )


def _sixel(image: Image) -> str:
    """Bands of six lines; of each band, for every colour, which of the six pixels of a column have it."""
    import numpy as np

    reduced = image.quantize(COLOURS)
    palette = np.array(reduced.getpalette()).reshape(-1, 3)
    pixels = np.asarray(reduced)
    colours = "".join(
        f"#{n};2;{r * 100 // 255};{g * 100 // 255};{b * 100 // 255}"
        for n, (r, g, b) in enumerate(palette.tolist())
    )
    bands = []
    for top in range(0, len(pixels), 6):
        band = pixels[top : top + 6]
        bits = 1 << np.arange(len(band))[:, None]
        rows = [
            f"#{colour}" + "".join(chr(63 + mask) for mask in ((band == colour) * bits).sum(0).tolist())
            for colour in np.unique(band).tolist()
        ]
        bands.append("$".join(rows))
    return f"\x1bPq{colours}{'-'.join(bands)}\x1b\\\n"


def _blocks(image: Image) -> str:
    """Two pixels above each other in every character: the colour of the letter and that behind it."""
    import numpy as np

    columns = max(1, min(80, round(image.width * 2 * ROWS / image.height)))
    pixels = np.asarray(image.resize((columns, 2 * ROWS))).tolist()
    lines = []
    for above, below in zip(pixels[::2], pixels[1::2], strict=True):
        cells = (
            f"\x1b[38;2;{a[0]};{a[1]};{a[2]};48;2;{b[0]};{b[1]};{b[2]}m▀"
            for a, b in zip(above, below, strict=True)
        )
        lines.append("".join(cells) + "\x1b[0m")
    return "\n".join(lines) + "\n"
