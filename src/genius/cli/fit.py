"""`genius fit`: fits the codes of an index to its items."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from genius.cli.output import (
    DEFAULT_INDEX,
    Device,
    IndexFolder,
    SummaryFormat,
    progress,
    say,
    say_report,
    summary_lines,
)

if TYPE_CHECKING:
    from genius.engine import Engine
    from genius.fitting.run import FitResult


def fit(
    folder: IndexFolder = DEFAULT_INDEX,
    item_bytes: Annotated[
        int | None,
        typer.Option(
            "--bytes", min=2, max=256, help="Size of an item's codes in bytes (default: as before, first 15)."
        ),
    ] = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='JSONL of {"query", "id"} to learn from, or `captions` of pairs as queries for them.',
        ),
    ] = None,
    decoder: Annotated[
        bool, typer.Option("--decoder", help="Also train a decoder; kept if it finds more than lookup.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Random seed of the sample and of k-means.")] = 0,
    device: Device = "cpu",
    form: Annotated[
        SummaryFormat, typer.Option("--format", help="How the summary is printed.")
    ] = SummaryFormat.TABLE,
) -> None:
    """Fit the codes to the items as they are now.

    Uses the stored vectors alone; searches go on meanwhile.
    """
    from genius.engine import Engine

    with Engine.open(folder, device=device) as engine:
        result = report_fit(engine, item_bytes, pairs, decoder, seed)
    facts = {
        "items": result.items,
        "bytes_per_item": result.bytes_per_item,
        "sizes": list(result.sizes),
        "distortion": round(result.distortion, 4),
    }
    if result.distortion_before is not None:
        facts["distortion_before"] = round(result.distortion_before, 4)
    if result.hints is not None:
        facts |= {"learned_from": result.hints.queries, "held_out": result.hints.held_out}
        facts |= {"hit_rates": {name: dict(rates) for name, rates in result.hints.hit_rates.items()}}
        for sentence in result.hints.why:
            say(sentence)
    for line in summary_lines(facts, form):
        print(line)


def report_fit(
    engine: Engine,
    item_bytes: int | None = None,
    pairs: str | None = None,
    decoder: bool = False,
    seed: int = 0,
) -> FitResult:
    """Fit with a progress bar."""
    from genius.data.report import Report

    report = Report()
    try:
        with ExitStack() as bar:
            done: Callable[[int], None] | None = None

            def tell(what: str, items: int) -> None:
                nonlocal done
                if what != "coding items":  # takes a minute or more, whatever the number of items
                    say(f"{what}: {items:,}")
                    return
                if done is None:
                    done = bar.enter_context(progress(engine.stats()["items"], "coding items"))
                done(items)

            return engine.fit(
                item_bytes=item_bytes, pairs=pairs, decoder=decoder, seed=seed, report=report, progress=tell
            )
    finally:
        say_report(report)  # also where too few pairs are left: it says why
