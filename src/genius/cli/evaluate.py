"""`genius eval`: the paper's tables, with our systems beside the published columns."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from genius.data.base import Dataset
    from genius.evaluate.measure import Asked, Place
    from genius.evaluate.tables import Table


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
    ablations: Annotated[
        Path | None, typer.Option(help="Train and compare the paper's ablations of this recipe instead.")
    ] = None,
    variants: Annotated[str, typer.Option(help="Which ablations, by comma (default: all).")] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a value of that recipe: a.b=value.")
    ] = None,
    to: Annotated[Path, typer.Option(help="Folder for the models that ablations train.")] = Path(
        "runs/ablations"
    ),
) -> None:
    """Measure systems on a benchmark and print the paper's tables; a run that was stopped goes on."""
    from genius.data.base import open_dataset

    chosen = [name.strip() for name in datasets.split(",") if name.strip()]
    dataset = open_dataset(layout, data, chosen)
    name = data.resolve().name
    if ablations is not None:
        from genius.evaluate.measure import Asked, Place, pick_device

        place = Place(cache or cache_folder(), pick_device(device))
        values = [f"data.root={data}", f"device={device}", *(set_ or [])]
        table = _ablations(
            dataset, name, ablations, values, variants, to, Asked(setting, split, limit), place
        )
        _print_table(table, format_)
        return
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
            bar.update(tasks[what], completed=done, total=of or None)

        yield show


def _ablations(
    dataset: Dataset,
    name: str,
    recipe: Path,
    values: list[str],
    variants: str,
    to: Path,
    asked: Asked,
    place: Place,
) -> Table:
    from genius.config import Recipe
    from genius.evaluate.ablations import SYSTEMS, ablation_table, chosen_variants, run_ablations
    from genius.evaluate.measure import measure
    from genius.evaluate.results import Results

    def train(changed: Recipe, folder: Path) -> Path:
        from genius.pipeline.stages import train_stages

        if not (folder / "model" / "decoder.safetensors").exists():
            train_stages(changed, "all", folder)
        return folder / "model"

    def evaluated(model: Path) -> Results:
        return measure(dataset, name, str(model), ",".join(SYSTEMS), asked, place, say)

    return ablation_table(
        *run_ablations(recipe, values, chosen_variants(variants), to, train, evaluated, say)
    )


def _print(results: dict[str, Any], how: str, intervals: bool) -> None:
    from genius.evaluate.tables import results_table

    if how == "json":
        typer.echo(json.dumps(results))
    else:
        _print_table(results_table(results, intervals=intervals), how)


def _print_table(table: Table, how: str) -> None:
    if how == "json":
        typer.echo(json.dumps([dict(zip(table.header, line, strict=True)) for line in table.lines]))
    elif how == "markdown":
        typer.echo(table.markdown())
    else:
        from rich.console import Console

        Console(width=None if sys.stdout.isatty() else 200).print(table.rich())
