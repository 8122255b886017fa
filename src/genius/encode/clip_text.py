"""How OpenAI's CLIP cleans a text before its tokenizer: ftfy's repairs, HTML entities, blanks.

Of ftfy's repairs those of single characters are made: curly quotes, ligatures, full-width letters, control
characters. Texts that were decoded in a wrong encoding (mojibake) stay as they are, and so do entities in
capitals (`&NTILDE;`).
"""

from __future__ import annotations

import html
import re
import unicodedata

_ENTITY = re.compile(r"&#?[0-9A-Za-z]{1,24};")
_LIGATURES = "ĲĳŉǄǅǆǇǈǉǊǋǌǱǲǳﬀﬁﬂﬃﬄﬅﬆ"  # of Latin letters
_WIDE = "".join(map(chr, (0x3000, *range(0xFF01, 0xFFF0))))  # full and half width
_REMOVED = (
    *range(0x09),
    0x0B,
    *range(0x0E, 0x20),
    0x7F,
    *range(0x206A, 0x2070),
    0xFEFF,
    *range(0xFFF9, 0xFFFD),
)
_WINDOWS = {byte: bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in range(0x80, 0xA0)}
_CHARACTERS: dict[int, str | None] = {
    **{ord(character): unicodedata.normalize("NFKC", character) for character in _LIGATURES + _WIDE},
    ord("ﬅ"): "ſt",
    **_WINDOWS,
    **dict.fromkeys(_REMOVED),
}
_QUOTES = {**dict.fromkeys([0x2BC, *range(0x2018, 0x201C)], "'"), **dict.fromkeys(range(0x201C, 0x2020), '"')}


def clean_clip_text(text: str) -> str:
    """`text` as CLIP's tokenizer gets it; upper case is the tokenizer's own business."""
    if "<" not in text:  # else it may be HTML, whose entities stand for themselves until quotes are mended
        while (plain := _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)) != text:
            text = plain
    text = unicodedata.normalize("NFC", text.translate(_CHARACTERS).translate(_QUOTES))
    return " ".join(html.unescape(html.unescape(text)).split())
