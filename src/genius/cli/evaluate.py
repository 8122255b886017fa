"""`genius eval` and `genius ablate`: the paper's tables and ablations on one's own data."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from genius.errors import BadInput
from genius.evaluate.options import EvalOptions, GenerativeConfig, Workspace

if TYPE_CHECKING:
    from genius.data.base import Dataset
    from genius.evaluate.report.tables import Table
    from genius.evaluate.results import Results

# the options that `eval`, `ablate`, `bench`, `report` and `plot` share; defaults are those of the code
EVAL, GENERATIVE = EvalOptions(), GenerativeConfig()
MODEL, DEVICE, LAYOUT = "mini", "auto", "auto"
Root = Annotated[Path, typer.Option(help="Data root in the layout of M-BEIR, BEIR or Karpathy.")]
ModelName = Annotated[str, typer.Option(help="Model: a name or a folder.")]
Setting = Annotated[
    Literal["local", "universal"], typer.Option(help="Search each row's own pool, or one pool of all.")
]
Split = Annotated[str, typer.Option(help="Split of the queries.")]
Datasets = Annotated[str, typer.Option(help="Only these datasets, comma-separated.")]
Limit = Annotated[int, typer.Option(min=0, help="At most N queries per row; 0: all.")]
Seeds = Annotated[int, typer.Option(min=1, help="Average random systems over N seeds.")]
Format = Annotated[Literal["table", "json", "markdown"], typer.Option("--format", help="Output format.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Layout = Annotated[str, typer.Option(help="Layout of the data: auto, mbeir, beir or karpathy.")]
Cache = Annotated[Path | None, typer.Option(help="Folder of cached embeddings (default: $GENIUS_CACHE).")]
TrainLimit = Annotated[int, typer.Option(min=0, help="Train queries per row of generative baselines.")]
TrainSteps = Annotated[int, typer.Option(min=1, help="Training steps of generative baselines.")]
Save = Annotated[Path | None, typer.Option(help="Also write the results to this JSON file.")]


def evaluate(
    data: Root,
    model: ModelName = MODEL,
    setting: Setting = EVAL.setting,  # type: ignore[assignment]
    split: Split = EVAL.split,
    systems: Annotated[
        str,
        typer.Option(help="Comma-separated names or sets (ours, faiss, generative, all); clip-sf=FOLDER."),
    ] = "ours",
    format_: Format = "table",
    limit: Limit = EVAL.limit,
    datasets: Datasets = "",
    instructions: Annotated[
        Literal["chosen", "all"],
        typer.Option(help="One per query, chosen by its hash; or the mean over all."),
    ] = "chosen",
    intervals: Annotated[bool, typer.Option(help="Show 95 % intervals in tables.")] = False,
    runs: Annotated[Path | None, typer.Option(help="Folder for TREC run files.")] = None,
    score: Annotated[
        list[Path] | None, typer.Option(help="Score this TREC run file instead. May be repeated.")
    ] = None,
    mteb: Annotated[Path | None, typer.Option(help="Folder for result files in MTEB's format.")] = None,
    beam: Annotated[int, typer.Option(min=0, help="Beam of the decoder; 0: the model's.")] = EVAL.beam,
    seeds: Seeds = EVAL.seeds,
    train_limit: TrainLimit = GENERATIVE.queries,
    train_steps: TrainSteps = GENERATIVE.steps,
    save: Save = None,
    cache: Cache = None,
    device: Device = DEVICE,
    layout: Layout = LAYOUT,
) -> None:
    """Evaluate systems on a benchmark, as in the paper's tables. An interrupted run resumes."""
    from genius.evaluate import run
    from genius.evaluate.provenance import commit
    from genius.evaluate.report.tables import results_table

    at = commit()
    dataset, name = open_data(data, layout, datasets), data.resolve().name
    if score:
        results = run.score_runs(dataset, score, setting=setting, split=split, data=name)
    else:
        options = EvalOptions(setting, split, limit, instructions == "all", seeds, beam)
        workspace = workspace_of(cache, device, runs, train_limit, train_steps)
        with progress() as show:
            results = run.evaluate(dataset, name, model, systems, options, workspace, log, show)
    found = results.as_json()
    if mteb is not None:
        from genius.evaluate.mteb import write_mteb

        write_mteb(results, mteb)
    if save is not None:
        save_result(save, found, at)
    print_result(found, results_table(found, intervals=intervals), form=format_)


def ablate(
    recipe: Annotated[Path, typer.Argument(help="Recipe whose ablations are trained and compared.")],
    data: Root,
    variants: Annotated[
        str,
        typer.Option(
            help="Comma-separated names, prefixes of names, all or none (default: no large decoders)."
        ),
    ] = "",
    compare: Annotated[
        str, typer.Option(help="Also compare these systems over the seeds of the recipe, e.g. all.")
    ] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a value of the recipe: a.b=value.")
    ] = None,
    to: Annotated[Path, typer.Option(help="Folder for the models.")] = Path("runs/ablations"),
    setting: Setting = EVAL.setting,  # type: ignore[assignment]
    split: Split = EVAL.split,
    limit: Limit = EVAL.limit,
    seeds: Seeds = EVAL.seeds,
    datasets: Datasets = "",
    format_: Format = "table",
    save: Save = None,
    cache: Cache = None,
    device: Device = DEVICE,
    layout: Layout = LAYOUT,
) -> None:
    """Train ablations of a recipe and print their effects. An interrupted run resumes.

    With --variants none --compare all, only the recipe is trained, once for each seed, and its systems are
    compared with exact search and FAISS: a win counts only if it holds under every seed.
    """
    from genius.config import load_recipe
    from genius.evaluate import run
    from genius.evaluate.ablations import AblationRunner, choose_variants, variants_of
    from genius.evaluate.provenance import commit
    from genius.evaluate.report.studies import ablation_tables
    from genius.evaluate.systems import DECODER_BEAM, system_names
    from genius.pipeline.stages import train_stages

    dataset, name = open_data(data, layout, datasets), data.resolve().name
    options = EvalOptions(setting, split, limit, seeds=seeds)
    at = commit()
    workspace = workspace_of(cache, device)

    def evaluated(model: Path, beam: int, systems: Sequence[str]) -> Results:
        chosen = replace(options, beam=beam)
        return run.evaluate(dataset, name, str(model), ",".join(systems), chosen, workspace, log)

    def keep(outcome: Mapping[str, Any]) -> None:
        if save is not None:
            save_result(save, outcome, at)

    values = [f"data.root={data}", f"device={device}", *(set_ or [])]
    wanted = choose_variants(variants, variants_of(load_recipe(recipe, values), DECODER_BEAM))
    command = {"command": command_line(), **at}
    compared = system_names(compare) if compare else []
    runner = AblationRunner(recipe, values, to, seeds, train_stages, evaluated, log, keep, command, compared)
    outcome = runner.run(wanted)
    print_result(outcome, *ablation_tables(outcome), form=format_)


def open_data(root: Path, layout: str, datasets: str = "") -> Dataset:
    """The dataset under `root`, or some datasets of it (by comma)."""
    from genius.data.base import open_dataset

    return open_dataset(layout, root, [name.strip() for name in datasets.split(",") if name.strip()])


def workspace_of(
    cache: Path | None,
    device: str,
    runs: Path | None = None,
    queries: int = GENERATIVE.queries,
    steps: int = GENERATIVE.steps,
) -> Workspace:
    """Where an evaluation works; $GENIUS_CACHE, else the user's cache folder, unless `cache` is given."""
    from genius.evaluate.run import pick_device

    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "genius"
    folder = cache or Path(os.environ.get("GENIUS_CACHE") or user)
    return Workspace(folder, pick_device(device), runs, replace(GENERATIVE, queries=queries, steps=steps))


def command_line() -> str:
    """The command, with BENCH in place of the data's folder and without the cache's."""
    shown: list[str] = []
    before = ""
    for word in ["genius", *sys.argv[1:]]:
        if before == "--data" or word.startswith("--data="):
            shown.append("BENCH" if before == "--data" else "--data=BENCH")
        elif before != "--cache" and not word.startswith("--cache"):
            shown.append(word)
        before = word
    return shlex.join(shown)


def save_result(file: Path, found: Mapping[str, Any], at: Mapping[str, Any]) -> None:
    """Write what was measured to `file` atomically, with the command and the commit (`at`)."""
    from genius.files import storage_errors, write_file

    with storage_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    content = {"command": command_line(), **at, **found}
    write_file(file, [json.dumps(content, indent=1).encode(), b"\n"])


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file of ours; raises BadInput naming the file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(f"{file} is no output of `genius eval` or `genius bench`")
    return found


def print_result(found: Mapping[str, Any], *tables: Table, form: str) -> None:
    """JSON or the tables, on stdout."""
    if form == "json":
        typer.echo(json.dumps(found))
    elif form == "markdown":
        typer.echo("\n".join(table.markdown() for table in tables))
    else:
        from rich.console import Console

        Console(width=None if sys.stdout.isatty() else 200).print(*(table.rich() for table in tables))


def log(line: str) -> None:
    """A line on stderr."""
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

        def show(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(label)
            bar.update(tasks[label], completed=done, total=total or None)

        yield show
