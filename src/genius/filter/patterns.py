"""The patterns of `like`: % is any text, _ any character, and after a backslash they are themselves."""

from __future__ import annotations

ESCAPE = "\\"
SPECIAL = ("%", "_", ESCAPE)


def pattern_parts(pattern: str) -> list[list[str | None]]:
    """The characters between one % and the next; None is any character."""
    parts: list[list[str | None]] = [[]]
    characters = iter(range(len(pattern)))
    for at in characters:
        one = pattern[at]
        if one == ESCAPE and pattern[at + 1 : at + 2] in SPECIAL:
            parts[-1].append(pattern[next(characters)])
        elif one == "%":
            parts.append([])
        else:
            parts[-1].append(None if one == "_" else one)
    return parts


def escaped(text: str) -> str:
    """The pattern of exactly this text."""
    return "".join(ESCAPE + one if one in SPECIAL else one for one in text)
