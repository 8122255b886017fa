"""Texts of users: made safe, cut to a length, never a crash."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from genius.errors import BadInput

if TYPE_CHECKING:
    from genius.data.remote import RemotePath

MAX_CHARS = 20_000  # far beyond what any text tower reads
REPLACED = "replaced"  # flag of a text in which characters were replaced
_BYTES_PER_CHAR = 4  # at most, in UTF-8 and UTF-16
_BROKEN = re.compile("[\x00\ud800-\udfff]")


class UserText(NamedTuple):
    """A text that can be stored, encoded and printed as UTF-8, and what was done to it."""

    text: str
    flags: tuple[str, ...] = ()  # "cut": it was longer; "replaced": NULs or halves of characters were


def clean_text(text: str, max_chars: int = MAX_CHARS) -> UserText:
    """`text` without outer blanks, NULs and lone surrogates, at most `max_chars` long; "" if nothing is left.

    The wording is kept; `genius.data.instructions.clean` gives the text the form that encoders read.
    """
    text = text.strip()
    flags = ["cut"] if len(text) > max_chars else []
    text = text[:max_chars]
    whole = _BROKEN.sub(lambda match: " " if match[0] == "\0" else "\ufffd", text)
    if whole != text:
        flags.append(REPLACED)
    return UserText(whole.strip(), tuple(flags))


def read_text(file: Path | RemotePath, max_chars: int = MAX_CHARS) -> UserText:
    """The clean text in `file` (UTF-8, or UTF-16 with its mark); never reads more of it than can be used.

    Raises BadInput if it cannot be read or is no text.
    """
    limit = (max_chars + 1) * _BYTES_PER_CHAR
    try:
        with file.open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}") from None
    longer = len(data) > limit
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = data[:limit].decode("utf-16", errors="replace")
    elif b"\0" in data:
        raise BadInput("is no text: it has NUL bytes")
    else:
        # undecodable bytes become surrogates, which clean_text replaces and reports
        text = data[:limit].decode("utf-8-sig", errors="surrogateescape")
    cleaned = clean_text(text, max_chars)
    if longer and "cut" not in cleaned.flags:
        cleaned = UserText(cleaned.text, ("cut", *cleaned.flags))
    return cleaned
