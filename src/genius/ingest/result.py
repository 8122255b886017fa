"""What `add` returns, from `Engine` and `Client` alike; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field

from genius.data.report import Report, Skipped


@dataclass(slots=True)
class AddResult:
    """How many items were added, updated, left alone or skipped."""

    added: int = 0
    updated: int = 0  # known ids whose content, path or metadata had changed
    unchanged: int = 0
    repeated: int = 0  # ids that came again in the same batch: the last one counts
    report: Report = field(default_factory=Report)  # what was skipped, and why

    @property
    def done(self) -> int:
        """Items handled so far."""
        return self.added + self.updated + self.unchanged + self.repeated + self.report.skipped

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The skipped items that the report remembers: name and reason."""
        return tuple(self.report.names)
