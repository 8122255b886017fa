"""Which items can match a `like` pattern at all, by the index of trigrams."""

from __future__ import annotations

from genius.filter.patterns import pattern_parts

MOST = 32  # trigrams that are asked for


def trigram_query(pattern: str) -> str | None:
    """What to ask FTS5 for the items that may match; None without three fixed characters in a row.

    Letters outside ASCII that have a case are left out: not everybody folds them alike.
    """
    found: dict[str, None] = {}
    for part in pattern_parts(pattern):
        for at in range(len(part) - 2):
            three = part[at : at + 3]
            if all(one is not None and (one.isascii() or one.lower() == one.upper()) for one in three):
                found["".join(map(str, three))] = None
    quoted = ['"' + three.replace('"', '""') + '"' for three in list(found)[:MOST] if "\0" not in three]
    return " AND ".join(quoted) or None
