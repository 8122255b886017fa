"""The log of a training run: one line of JSON per entry in `log.jsonl`, and a progress bar on stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from genius.files import storage_errors


class TrainingLog:
    """`log.jsonl` and the progress bar of one run; `enabled` in the main process only."""

    def __init__(self, name: str, file: Path, *, steps: int, done: int, enabled: bool, quiet: bool) -> None:
        self.name, self.file, self.steps, self.enabled = name, file, steps, enabled
        self.console = Console(stderr=True, quiet=quiet or not enabled)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metrics]}"),
            console=self.console,
            disable=quiet or not (enabled and self.console.is_terminal),
        )
        self.task = self.bar.add_task(name, total=steps, completed=done, metrics="")
        if enabled:
            _truncate(file, done)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of `step` to the log and show them beside the bar."""
        if not self.enabled:
            return
        with storage_errors(self.file), self.file.open("a", encoding="utf-8") as log:
            log.write(json.dumps({"step": step, **metrics}) + "\n")
        self.bar.update(self.task, completed=step, metrics=_format(metrics))

    def print(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print the metrics of `step` on one line."""
        self.console.print(f"{self.name} {step}/{self.steps}  {_format(metrics)}", highlight=False)


def read_log(file: Path) -> list[dict[str, Any]]:
    """All entries of a log; a last line that a crash cut off is left out."""
    entries: list[dict[str, Any]] = []
    if not file.exists():
        return entries
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            break
    return entries


def _truncate(file: Path, step: int) -> None:
    """Drop entries after `step`, the last checkpoint of a killed run: the resumed run logs them again."""
    entries = [json.dumps(entry) + "\n" for entry in read_log(file) if entry["step"] <= step]
    with storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(entries), encoding="utf-8")


def _format(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
