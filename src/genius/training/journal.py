"""What a run tells: a line of JSON per figure in its folder, a progress bar on stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from genius.errors import StorageError


class Journal:
    """The log of one run (`log.jsonl`) and its progress bar; a process that is not the main one is silent."""

    def __init__(self, name: str, file: Path, *, steps: int, done: int, speaks: bool, shows: bool) -> None:
        self.name, self.file, self.steps, self.speaks = name, file, steps, speaks
        self.console = Console(stderr=True, quiet=not (speaks and shows))
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self.console,
            disable=not (speaks and shows and self.console.is_terminal),
        )
        self.task = self.bar.add_task(name, total=steps, completed=done, figures="")
        if speaks:
            _keep_until(file, done)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Append the figures of `step` to the log and show them beside the bar."""
        if not self.speaks:
            return
        try:
            with self.file.open("a", encoding="utf-8") as log:
                log.write(json.dumps({"step": step, **figures}) + "\n")
        except OSError as error:
            raise StorageError(
                f"cannot write {self.file}: {error}; free some room or choose another folder"
            ) from None
        self.bar.update(self.task, completed=step, figures=_short(figures))

    def say(self, step: int, figures: Mapping[str, float]) -> None:
        """Print one line about a validation."""
        self.console.print(f"{self.name} {step}/{self.steps}  {_short(figures)}", highlight=False)


def read_log(file: Path) -> list[dict[str, Any]]:
    """All lines of a log; a last line that a crash cut off is left out."""
    lines: list[dict[str, Any]] = []
    if not file.exists():
        return lines
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines


def _keep_until(file: Path, step: int) -> None:
    """Drop what a killed run logged after its last checkpoint: the resumed run says it again."""
    kept = [json.dumps(line) + "\n" for line in read_log(file) if line["step"] <= step]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(kept), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error}; choose another folder") from None


def _short(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
