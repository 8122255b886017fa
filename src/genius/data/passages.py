"""Passages of a text that is longer than an encoder reads: cut between sentences, else between words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

WORD = re.compile(r"\S{1,16}\s*")  # what has no blanks, as in Chinese, is cut, too
SENTENCE_END = re.compile(r"""(?:[.!?…]["'”’)\]]*\s+|[。！？]|\n\s*)$""")
OVERLAP = 8  # a passage begins up to an eighth of its length before the end of the one before
LEAST = 8  # tokens of a passage

Span = tuple[int, int]  # start and end in the text
CountTokens = Callable[[Sequence[str]], list[int]]


def passages(text: str, count_tokens: CountTokens, max_tokens: int, size: int | None = None) -> list[Span]:
    """Spans that cover the text, in order; a single one if it has at most `max_tokens`.

    Otherwise each has at most `size` tokens (default: `max_tokens`). `count_tokens` says how many tokens
    texts have, with those that every text has.
    """
    if not is_longer(text, count_tokens, max_tokens):
        return [(0, len(text))]
    ends = [match.end() for match in WORD.finditer(text)]
    words = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    always, *counts = count_tokens(["", *words])
    lengths = np.maximum(np.array(counts, dtype=np.int64) - always, 0)
    most = min(size or max_tokens, max_tokens)
    room, starts = max(1, most - always), [0, *ends]
    while True:
        spans = _cut(words, lengths, room)
        found = [(starts[first], starts[last - 1] + len(words[last - 1].rstrip())) for first, last in spans]
        longest = max(count_tokens([text[start:end] for start, end in found]))
        if longest <= most or room <= LEAST:
            return found
        room = max(LEAST, min(room - 1, room * most // longest))  # words differ in a sentence


def is_longer(text: str, count_tokens: CountTokens, max_tokens: int) -> bool:
    """Whether a text has more tokens than that."""
    few = len(text.encode("utf-8", "replace")) <= max_tokens // 2  # a token has at least a byte
    return not few and count_tokens([text])[0] > max_tokens


def _cut(words: Sequence[str], lengths: NDArray[np.int64], room: int) -> list[Span]:
    """Ranges of words of at most `room` tokens; they end where a sentence does, if one ends late in them."""
    before = np.concatenate([[0], np.cumsum(lengths)])  # tokens before each word
    found: list[Span] = []
    start = 0
    while True:
        end = max(start + 1, int(np.searchsorted(before, before[start] + room, "right")) - 1)
        if end >= len(words):
            return [*found, (start, len(words))]
        middle = int(np.searchsorted(before, before[start] + room // 2))
        end = next((at for at in range(end, middle, -1) if SENTENCE_END.search(words[at - 1])), end)
        found.append((start, end))
        start = max(start + 1, _begin(words, before, end, room))


def _begin(words: Sequence[str], before: NDArray[np.int64], end: int, room: int) -> int:
    """Where the next passage begins: with a short sentence before `end`, or in the one that was cut."""
    first = int(np.searchsorted(before, before[end] - room // OVERLAP))
    return next((at for at in range(first, end + 1) if at and SENTENCE_END.search(words[at - 1])), first)
