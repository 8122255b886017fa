"""Lines of a file with their numbers, one at a time, none of them endless; and JSON objects from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from genius.data.report import printable
from genius.errors import BadData

if TYPE_CHECKING:
    from genius.data.remote import RemotePath

MAX_LINE = 16 * 2**20  # bytes


def numbered_lines(file: Path | RemotePath, max_bytes: int = MAX_LINE) -> Iterator[tuple[int, bytes | None]]:
    """The lines of `file` that are not blank, numbered from 1; one longer than `max_bytes` comes as None."""
    try:
        with file.open("rb") as stream:
            number = 0
            while line := stream.readline(max_bytes):
                number += 1
                whole = line
                while len(line) == max_bytes and not line.endswith(b"\n"):  # too long: pass over the rest
                    line, whole = stream.readline(max_bytes), b""
                if not whole:
                    yield number, None
                elif not whole.isspace():
                    yield number, whole
    except OSError as error:
        raise BadData(f"{printable(file)}: cannot be read ({error.strerror})") from None


def json_object(line: bytes | None) -> dict[str, Any]:
    """The JSON object on `line`; raises ValueError with the reason if there is none."""
    if line is None:
        raise ValueError(f"the line is longer than {MAX_LINE >> 20} MB")
    try:
        value = _JSON.decode(line.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is expected, not {type(value).__name__}")  # noqa: TRY004
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_refuse)
