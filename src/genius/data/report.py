"""What a reader left out: every skip is counted, the first ones are named."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

# control characters, line separators, direction overrides, surrogates: they break lines, terminals or UTF-8
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_OTHER = "other reasons"


def printable(name: object) -> str:
    """`name` on one line of valid UTF-8: what could break lines, terminals or JSON is escaped."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), str(name))


def is_printable(name: str) -> bool:
    """Whether `printable` leaves `name` as it is."""
    return _UNSAFE.search(name) is None


class Skipped(NamedTuple):
    """A file, line or item that was skipped: its printable name (path, id or file:line) and the reason."""

    name: str
    reason: str


@dataclass
class Report:
    """Counts of what was read and skipped. Memory stays small however many files are bad."""

    keep: int = 100  # names and distinct reasons remembered
    read: int = 0  # items yielded
    ignored: int = 0  # files that are neither image nor text
    skipped: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    names: list[Skipped] = field(default_factory=list)
    ids: set[str] | None = None  # of skipped items, collected only if it is a set: for `--prune`
    unknown: int = 0  # skipped folders and lines that may hold items of ids we do not know

    def skip(self, name: object, reason: object, id: str | None = None) -> None:
        """Count `name` as left out because of `reason`; `id` is that of the item it would have been."""
        if self.ids is not None and id is not None:
            self.ids.add(id)
        why = printable(reason)
        self.skipped += 1
        self.reasons[why if why in self.reasons or len(self.reasons) < self.keep else _OTHER] += 1
        if len(self.names) < self.keep:
            self.names.append(Skipped(printable(name), why))

    def lines(self) -> Iterator[str]:
        """The report for people: a total, then one line per name that is remembered."""
        if not self.skipped:
            return
        yield f"{self.skipped} skipped"
        for name, reason in self.names:
            yield f"  {name}: {reason}"
        if self.skipped > len(self.names):
            yield f"  and {self.skipped - len(self.names)} more"
