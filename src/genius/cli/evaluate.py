"""`genius eval`: the paper's tables, with our systems beside the published columns."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from genius.errors import BadInput

if TYPE_CHECKING:
    from genius.data.base import Dataset
    from genius.evaluate.baselines.schooling import Schooling
    from genius.evaluate.measure import Asked, Place
    from genius.evaluate.tables import Table

# what `genius eval` and `genius bench` have in common
Root = Annotated[Path, typer.Option(help="Data root in M-BEIR's layout (or Karpathy's).")]
ModelName = Annotated[str, typer.Option(help="Model: a name or a folder.")]
Split = Annotated[str, typer.Option(help="Which queries are asked.")]
Datasets = Annotated[str, typer.Option(help="Only these datasets, by comma.")]
Format = Annotated[
    Literal["table", "json", "markdown"], typer.Option("--format", help="How results are printed.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Layout = Annotated[str, typer.Option(help="Layout of the data: mbeir or karpathy.")]
TrainLimit = Annotated[
    int, typer.Option(min=0, help="Train queries per row that learning baselines read; 0: all.")
]
TrainSteps = Annotated[
    int, typer.Option(min=0, help="Steps that learning baselines train; 0: about a minute's.")
]


def evaluate(
    data: Root,
    model: ModelName = "mini",
    setting: Annotated[
        Literal["local", "universal"], typer.Option(help="Search each row's own pool, or all pools as one.")
    ] = "universal",
    split: Split = "test",
    systems: Annotated[
        str,
        typer.Option(help="Names or sets (ours, faiss, generative, all), by comma; also clip-sf=FOLDER."),
    ] = "ours",
    format_: Format = "table",
    limit: Annotated[int, typer.Option(min=0, help="Ask at most N queries of each row; 0: all.")] = 0,
    datasets: Datasets = "",
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
    device: Device = "auto",
    layout: Layout = "mbeir",
    beam: Annotated[
        int, typer.Option(min=0, help="Beam of searches by the decoder; 0: the model's, or the paper's.")
    ] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="Average what starts at random (baselines, ablations) over N seeds.")
    ] = 1,
    train_limit: TrainLimit = 0,
    train_steps: TrainSteps = 0,
    save: Annotated[Path | None, typer.Option(help="Also write the results to this JSON file.")] = None,
    ablations: Annotated[
        Path | None, typer.Option(help="Train and compare the paper's ablations of this recipe instead.")
    ] = None,
    variants: Annotated[
        str, typer.Option(help="Which ablations, by comma: names, how they begin, or all (default: most).")
    ] = "",
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
        asked = Asked(setting, split, limit, seeds=seeds)
        outcome = _ablations(dataset, name, ablations, values, variants, to, asked, place, save)
        if format_ == "json":
            typer.echo(json.dumps(outcome))
        else:
            from genius.evaluate.ablation_tables import ablation_table

            _print_table(ablation_table(outcome), format_)
        return
    if score:
        from genius.evaluate.scoring import score_runs

        results = score_runs(dataset, score, setting=setting, split=split, data=name)
    else:
        from genius.evaluate.measure import Asked, Place, measure, pick_device

        asked = Asked(setting, split, limit, instructions == "all", seeds, beam)
        schooling = schooling_of(train_limit, train_steps)
        place = Place(cache or cache_folder(), pick_device(device), runs, schooling)
        with progress() as show:
            results = measure(dataset, name, model, systems, asked, place, say, show)
    found = results.as_json()
    if save is not None:
        save_json(save, found)
    _print(found, format_, intervals)


def schooling_of(queries: int, steps: int) -> Schooling:
    """How baselines that learn are trained: their own values where 0 is given."""
    from genius.evaluate.baselines.schooling import Schooling

    usual = Schooling()
    return replace(usual, queries=queries, steps=steps or usual.steps)


def typed() -> str:
    """What was typed, with BENCH in place of the data's folder and without the cache's."""
    shown: list[str] = []
    before = ""
    for word in ["genius", *sys.argv[1:]]:
        if before == "--data" or word.startswith("--data="):
            shown.append("BENCH" if before == "--data" else "--data=BENCH")
        elif before != "--cache" and not word.startswith("--cache"):
            shown.append(word)
        before = word
    return " ".join(shown)


def save_json(file: Path, found: Mapping[str, Any]) -> None:
    """`found` as a file that is whole at every moment."""
    from genius.files import storage_errors, write_file

    with storage_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, [json.dumps(found, indent=1).encode(), b"\n"])


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


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file of ours; raises BadInput naming the file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(f"{file} is no output of `genius eval` or `genius bench`")
    return found


def _ablations(
    dataset: Dataset,
    name: str,
    recipe: Path,
    values: list[str],
    variants: str,
    to: Path,
    asked: Asked,
    place: Place,
    save: Path | None,
) -> dict[str, Any]:
    from genius.config import load_recipe
    from genius.evaluate.ablations import SYSTEMS, Work, run_ablations
    from genius.evaluate.catalog import DECODER_BEAM
    from genius.evaluate.measure import measure
    from genius.evaluate.results import Results
    from genius.evaluate.variants import chosen_variants, variants_of
    from genius.pipeline.stages import train_stages

    def evaluated(model: Path, beam: int) -> Results:
        systems = ",".join(SYSTEMS)
        return measure(dataset, name, str(model), systems, replace(asked, beam=beam), place, say)

    def keep(outcome: Mapping[str, Any]) -> None:
        if save is not None:
            save_json(save, {"command": typed(), **outcome})

    wanted = chosen_variants(variants, variants_of(load_recipe(recipe, values), DECODER_BEAM))
    work = Work(train_stages, evaluated, say, keep)
    return run_ablations(recipe, values, wanted, to, asked.seeds, work)


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
