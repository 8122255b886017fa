"""What the verbs print, results on stdout, progress and reports on stderr; and the options they share."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from genius.data.report import Report
    from genius.types import Hit


class HitFormat(StrEnum):
    """How hits are printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    PATHS = "paths"
    TREC = "trec"
    HTML = "html"


class SummaryFormat(StrEnum):
    """How named values are printed."""

    TABLE = "table"
    JSON = "json"


DEFAULT_INDEX = Path("genius-index")
LINE_EVERY_S = 10.0  # a line about progress where there is no terminal


def _index_option(*names: str) -> Any:
    return typer.Option(
        *names, envvar="GENIUS_INDEX", help="Folder of the index.", show_default=f"./{DEFAULT_INDEX}"
    )


IndexFolder = Annotated[Path, _index_option("--in")]  # of an index that is read
TargetFolder = Annotated[Path, _index_option("--to", "--in")]  # of one that is made or added to
Device = Annotated[str, typer.Option(help="Where the model runs: cpu, cuda.")]


def hit_fields(hit: Hit) -> dict[str, Any]:
    """A hit as plain values; absent parts are left out, names are made printable."""
    from genius.data.report import printable

    fields: dict[str, Any] = {
        "id": hit.id,
        "score": hit.score,
        **({} if hit.confidence is None else {"confidence": round(hit.confidence, 4)}),
        "rank": hit.rank,
        "modality": hit.modality.value,
        "codes": list(hit.codes),
    }
    if hit.text is not None:
        fields["text"] = hit.text
    if hit.span is not None:
        fields["span"] = list(hit.span)
    if hit.path is not None:
        fields["path"] = printable(hit.path)
    if hit.missing:
        fields["missing"] = True
    return fields | {"meta": dict(hit.meta)}


def hit_lines(hits: Sequence[Hit], form: HitFormat, query: str = "1") -> Iterator[str]:
    """The lines to print for the hits of one query."""
    from genius.data.report import printable

    if form is HitFormat.JSON:
        yield json.dumps([hit_fields(hit) for hit in hits], indent=2)
    elif form is HitFormat.JSONL:
        yield from (json.dumps(hit_fields(hit)) for hit in hits)
    elif form is HitFormat.PATHS:
        yield from (printable(hit.path) for hit in hits if hit.path is not None)
    elif form is HitFormat.TREC:
        # a blank would end the column, so it is written as in a URL
        names = ["%20".join(printable(hit.id).split()) for hit in hits]
        scores = [hit.score for hit in hits]
        if scores != sorted(scores, reverse=True):  # words count, too; evaluators sort by this column
            scores = [1 / hit.rank for hit in hits]
        yield from (
            f"{query} Q0 {name} {hit.rank} {score:.6f} genius"
            for name, hit, score in zip(names, hits, scores, strict=True)
        )
    else:
        yield from _table(hits)


def summary_lines(facts: Mapping[str, Any], form: SummaryFormat) -> Iterator[str]:
    """The lines to print for named values."""
    from genius.data.report import printable

    if form is SummaryFormat.JSON:
        yield json.dumps(facts, indent=2)
        return
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{key.replace('_', ' ')} {number}" for key, number in value.items())
        yield f"{name.replace('_', ' '):<{width}}  {printable(value)}"


def counted(count: int, one: str, many: str = "") -> str:
    """A number with its noun, as in "1 group" and "2 groups"."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def say(line: str) -> None:
    """Print a line to stderr, its control characters escaped."""
    from genius.data.report import printable

    print(printable(line), file=sys.stderr)


def say_report(report: Report) -> None:
    """Print what was skipped, and why, to stderr."""
    for line in report.lines():
        print(line, file=sys.stderr)


@contextmanager
def progress(total: int | None, what: str) -> Iterator[Callable[[int], None]]:
    """A bar with rate and remaining time on stderr, or a line now and then where that is no terminal.

    Yields a function to call with how many are done.
    """
    if not sys.stderr.isatty():
        yield _progress_lines(total, what)
        return
    with _progress_bar(total, what) as update:
        yield update


def _progress_lines(total: int | None, what: str) -> Callable[[int], None]:
    """A function that prints a line on stderr, if the last one is LINE_EVERY_S old."""
    began = last = time.monotonic()

    def update(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < LINE_EVERY_S:
            return
        last = now
        rate = done / (now - began)
        left = f", about {(total - done) / rate:.0f} s left" if total and rate and done < total else ""
        say(f"{what}: {done}{f' of {total}' if total else ''}, {rate:.1f}/s{left}")

    return update


@contextmanager
def _progress_bar(total: int | None, what: str) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    from genius.data.report import printable

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{task.speed:.1f}/s" if task.speed else "", style="progress.data.speed")

    columns = (
        TextColumn("{task.description}", markup=False),  # a file may be called [red]
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(what), total=total)
        yield lambda done: bar.update(task, completed=done)


def _table(hits: Sequence[Hit]) -> Iterator[str]:
    from genius.data.report import printable

    if not hits:
        yield "nothing found"
        return
    sure = hits[0].confidence is not None
    rows = [["rank", *(["confidence"] if sure else []), "score", "modality", "id", "text"]]
    for hit in hits:
        text = ("(file not found) " if hit.missing else "") + printable(" ".join((hit.passage or "").split()))
        chance = [] if hit.confidence is None else [f"{hit.confidence:.2f}"]
        numbers = [str(hit.rank), *chance, f"{hit.score:.4f}"]
        rows.append([*numbers, hit.modality.value, printable(hit.id), text])
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    room = shutil.get_terminal_size((120, 24)).columns - sum(widths) - 2 * len(widths)
    for *numbers, modality, name, text in rows:
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths, strict=False)]
        cells += [modality.ljust(widths[-2]), name.ljust(widths[-1])]
        text = text if len(text) <= max(room, 12) else text[: max(room, 12) - 1] + "…"
        yield "  ".join([*cells, text]).rstrip()
