"""What a reader left out: every skip is counted, the first ones are named."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

# control characters, line separators, direction overrides, surrogates: they break lines, terminals or UTF-8
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_OTHER = "other reasons"
SHOWN = 8  # endings of ignored files that are named
_OTHER_FILES = "other files"
# what to do about pictures of an ending that is not read
_CURES = {
    'pip install "genius-search[heic]"': (".heic", ".heif", ".hif"),
    "save them as JPEG or PNG": (
        ".svg",
        ".jp2",
        ".j2k",
        ".jpx",
        ".jxl",
        ".psd",
        ".eps",
        ".tga",
        ".ico",
        ".pcx",
    ),
}


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
    ignored: Counter[str] = field(default_factory=Counter)  # files that are not read, by their ending
    skipped: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    names: list[Skipped] = field(default_factory=list)
    ids: set[str] | None = None  # of skipped items, collected only if it is a set: for `--prune`
    said: list[str] = field(default_factory=list)  # how a source was read, where that is not obvious
    noted: int = 0  # items that were read in part
    notes: list[Skipped] = field(default_factory=list)  # the first of them, with what is missing
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

    def ignore(self, name: str) -> None:
        """Count a file that is neither image nor text."""
        ending = printable(PurePosixPath(name).suffix.lower())
        known = ending in self.ignored or len(self.ignored) < self.keep
        self.ignored[ending if known and len(ending) <= 12 else _OTHER_FILES] += 1

    def say(self, line: object) -> None:
        """Tell how a source was read."""
        if len(self.said) < self.keep:
            self.said.append(printable(line))

    def note(self, name: object, what: object) -> None:
        """Count `name` as read in part; `what` says what is missing."""
        self.noted += 1
        if len(self.notes) < self.keep:
            self.notes.append(Skipped(printable(name), printable(what)))

    def lines(self) -> Iterator[str]:
        """The report for people: a total, then one line per name that is remembered."""
        yield from self.said
        yield from _listed(f"{self.skipped} skipped", self.skipped, self.names)
        yield from _listed(f"{self.noted} read in part", self.noted, self.notes)
        yield from _ignored(self.ignored)


def _listed(title: str, count: int, names: list[Skipped]) -> Iterator[str]:
    if not count:
        return
    yield title
    for name, reason in names:
        yield f"  {name}: {reason}"
    if count > len(names):
        yield f"  and {count - len(names)} more"


def _ignored(endings: Counter[str]) -> Iterator[str]:
    """One line for each thing that can be done about ignored pictures, and one for all other files."""
    left = dict(endings.most_common())
    for cure, names in _CURES.items():
        some = [f"{left.pop(name)} {name}" for name in names if name in left]
        if some:
            yield f"ignored: {', '.join(some)}: {cure}"
    if left:
        named = [f"{count} {ending or 'without an ending'}" for ending, count in list(left.items())[:SHOWN]]
        rest = sum(list(left.values())[SHOWN:])
        yield f"ignored: {', '.join([*named, *([f'{rest} others'] if rest else [])])}"
