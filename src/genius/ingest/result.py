"""What `add` returns, from `Engine` and `Client` alike; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from genius.data.report import Report, Skipped
from genius.errors import BadInput
from genius.types import Item

WITHOUT_IMAGE = {"image_missing": True}  # in the metadata of an item whose text alone could be read
NAMED = 10  # repeated ids that are remembered


@dataclass(slots=True)
class AddResult:
    """How many items were added, updated, left alone or skipped."""

    added: int = 0
    updated: int = 0  # known ids whose content, path or metadata had changed
    unchanged: int = 0
    repeated: int = 0  # items whose id came before in the same run: the last one counts
    repeats: list[str] = field(default_factory=list)  # the first of those ids
    long_texts: int = 0  # of those added or updated: only their beginning is read, as texts are not split
    removed: int = 0  # items that their source no longer has, with pruning
    report: Report = field(default_factory=Report)  # what was skipped, and why

    def repeat(self, ids: Iterable[str]) -> None:
        """Note ids that came again."""
        for id in ids:
            if len(self.repeats) < NAMED and id not in self.repeats:
                self.repeats.append(id)

    @property
    def done(self) -> int:
        """Items handled so far."""
        return self.added + self.updated + self.unchanged + self.repeated + self.report.skipped

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The skipped items that the report remembers: name and reason."""
        return tuple(self.report.names)


def require_items(items: object, method: str) -> None:
    """Raise BadInput if a single item, or the name of a file, stands where `method` takes several items."""
    if isinstance(items, Item):
        raise BadInput(f"{method} takes several items: call {method}([item]) for one")
    if isinstance(items, str | bytes | Path):
        raise BadInput(f"{method} takes items, not {type(items).__name__}: Engine.add_from reads files")
