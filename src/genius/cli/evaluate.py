"""`genius eval`: the paper's tables, with our systems beside the published columns."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer


def evaluate(
    data: Annotated[Path, typer.Option(help="Data root in M-BEIR's layout (or Karpathy's).")],
    model: Annotated[str, typer.Option(help="Model: a name or a folder.")] = "mini",
    setting: Annotated[
        Literal["local", "universal"], typer.Option(help="Search each row's own pool, or all pools as one.")
    ] = "universal",
    split: Annotated[str, typer.Option(help="Which queries are asked.")] = "test",
    systems: Annotated[
        str,
        typer.Option(help="Names or sets (ours, faiss, generative, all), by comma; also clip-sf=FOLDER."),
    ] = "ours",
    format_: Annotated[
        Literal["table", "json", "markdown"], typer.Option("--format", help="How results are printed.")
    ] = "table",
    limit: Annotated[int, typer.Option(min=0, help="Ask at most N queries of each row; 0: all.")] = 0,
    datasets: Annotated[str, typer.Option(help="Only these datasets, by comma.")] = "",
    instructions: Annotated[
        Literal["chosen", "all"],
        typer.Option(help="One per query, by a hash of its id; or the mean over all."),
    ] = "chosen",
    intervals: Annotated[bool, typer.Option(help="Show 95 % intervals in tables.")] = False,
    runs: Annotated[Path | None, typer.Option(help="Folder to write TREC run files to.")] = None,
    score: Annotated[
        list[Path] | None, typer.Option(help="Score this TREC run file instead of a model. May be repeated.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Where vectors and answers are kept (default: $GENIUS_CACHE).")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    layout: Annotated[str, typer.Option(help="Layout of the data: mbeir or karpathy.")] = "mbeir",
    train_limit: Annotated[
        int, typer.Option(min=0, help="Train queries per row that learning baselines read; 0: all.")
    ] = 0,
) -> None:
    """Measure systems on a benchmark and print the paper's tables; a run that was stopped goes on."""
    from genius.data.base import open_dataset

    chosen = [name.strip() for name in datasets.split(",") if name.strip()]
    dataset = open_dataset(layout, data, chosen)
    name = data.resolve().name
    if score:
        from genius.evaluate.scoring import score_runs

        results = score_runs(dataset, score, setting=setting, split=split, data=name)
    else:
        from genius.evaluate.measure import Asked, Place, measure, pick_device

        asked = Asked(setting, split, limit, instructions == "all")
        place = Place(cache or cache_folder(), pick_device(device), runs, train_limit)
        with progress() as show:
            results = measure(dataset, name, model, systems, asked, place, say, show)
    _print(results.as_json(), format_, intervals)


def cache_folder() -> Path:
    """Where the bench keeps vectors and answers: $GENIUS_CACHE, else the user's cache folder."""
    if named := os.environ.get("GENIUS_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "genius"


def say(line: str) -> None:
    """A line for people, on stderr."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """A function that shows progress on stderr; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, TaskID

    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what)
            bar.update(tasks[what], completed=done, total=of)

        yield show


def _print(results: dict[str, Any], how: str, intervals: bool) -> None:
    from genius.evaluate.tables import results_table

    if how == "json":
        typer.echo(json.dumps(results))
    elif how == "markdown":
        typer.echo(results_table(results, intervals=intervals).markdown())
    else:
        from rich.console import Console

        wide = None if sys.stdout.isatty() else 200
        Console(width=wide).print(results_table(results, intervals=intervals).rich())
