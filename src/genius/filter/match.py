"""Words that must be in an item's text or in its id, as a filter. The id of a file is its path."""

from __future__ import annotations

import shlex

from genius.errors import BadInput
from genius.filter.grammar import parse_filter
from genius.filter.patterns import escaped


def with_match(where: str | None, words: str | None) -> str | None:
    """The filter `where`, and that every word is there; words in double quotes are one phrase.

    Case does not count, and a part of a longer word will do.
    """
    if words is None:
        return where
    if where is not None:
        parse_filter(where)  # a mistake in it is shown as it was written
    lexer = shlex.shlex(words, posix=True, punctuation_chars=False)
    lexer.quotes, lexer.escape, lexer.commenters, lexer.whitespace_split = '"', "", "", True
    try:
        phrases = list(lexer)
    except ValueError:
        raise BadInput(f"a quote is not closed in {words!r}: close it, or leave it out") from None
    if not any(phrase.strip() for phrase in phrases):
        raise BadInput("no words that must be there: give some, or leave `match` out")
    tests = [f"(text like {_like(phrase)} or id like {_like(phrase)})" for phrase in phrases]
    return " and ".join([*([] if where is None else [f"({where})"]), *tests])


def _like(phrase: str) -> str:
    return "'%" + escaped(phrase).replace("'", "''") + "%'"
