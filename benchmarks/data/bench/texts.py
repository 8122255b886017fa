"""How texts are tidied and compared."""

from __future__ import annotations

import re
from collections.abc import Sequence


def one_line(text: str) -> str:
    """The text with single blanks between its words."""
    return re.sub(r"\s+", " ", text).strip()


def comparison_key(text: str) -> str:
    """Letters and digits only: texts with the same key count as the same text."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def enumeration(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
