"""`genius bench`: hit rate, latency and bytes at growing pool sizes. `genius report`: results as pages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genius.cli.evaluate import (
    DEVICE,
    EVAL,
    GENERATIVE,
    LAYOUT,
    MODEL,
    Cache,
    Datasets,
    Device,
    Format,
    Layout,
    Limit,
    ModelName,
    Root,
    Save,
    Seeds,
    Split,
    TrainLimit,
    TrainSteps,
    log,
    open_data,
    print_result,
    progress,
    read_json,
    save_result,
    workspace_of,
)
from genius.errors import BadInput
from genius.evaluate.options import EvalOptions, FrontierOptions, Workspace

if TYPE_CHECKING:
    from genius.data.base import Dataset
    from genius.model import Model

FRONTIER = FrontierOptions()
Systems = Annotated[
    str, typer.Option(help="Comma-separated names or sets (ours, faiss, generative, all), besides exact.")
]
Sizes = Annotated[
    str, typer.Option(help="Comma-separated pool sizes; beyond the data, noisy copies are added.")
]
Beams = Annotated[str, typer.Option(help="Comma-separated beams to compare on the real pool.")]
Queries = Annotated[int, typer.Option(min=1, help="Timed queries per row.")]
BuildLimit = Annotated[int, typer.Option(min=0, help="Build hnsw and pq only in pools up to this size.")]
SIZES, BEAMS = (",".join(map(str, numbers)) for numbers in (FRONTIER.sizes, FRONTIER.beams))


def bench(
    data: Root,
    model: ModelName = MODEL,
    systems: Systems = FRONTIER.systems,
    sizes: Sizes = SIZES,
    beams: Beams = BEAMS,
    queries: Queries = FRONTIER.queries,
    build_limit: BuildLimit = FRONTIER.build_limit,
    split: Split = FRONTIER.split,
    datasets: Datasets = "",
    format_: Format = "table",
    save: Save = None,
    cache: Cache = None,
    device: Device = DEVICE,
    layout: Layout = LAYOUT,
) -> None:
    """Measure hit rate, time and bytes of systems by pool size.

    Also finds the pool size from which each system beats exact search. If a results-universal.json of the
    same model lies next to the --save file, its hit rates over all queries and the whole pool are included.
    """
    from genius.evaluate import run
    from genius.evaluate.frontier import measure_frontier
    from genius.evaluate.provenance import commit
    from genius.evaluate.report.studies import by_model, frontier_table, with_full_hit_rates

    at = commit()
    dataset, workspace = open_data(data, layout, datasets), workspace_of(cache, device)
    options = _options(systems, sizes, beams, queries, split, build_limit)
    loaded = run.load_model(model, workspace.device)
    with progress() as show:
        name = data.resolve().name
        found = measure_frontier(dataset, name, loaded, model, options, workspace, log, show)
    if save is not None:
        beside = save.parent / "results-universal.json"
        results = read_json(beside) if beside.is_file() else None
        if results is not None and by_model([found], [results])[0]:
            found = with_full_hit_rates(found, results)
        save_result(save, found, at)
    print_result(found, frontier_table(found), form=format_)


def report(
    numbers: Annotated[Path, typer.Option(help="Folder of the JSON files that the pages are made from.")],
    to: Annotated[Path, typer.Option(help="Folder for results.md, appendix/ and pictures/.")],
    data: Annotated[
        Path | None, typer.Option(help="Evaluate and time everything on this data first (M-BEIR's layout).")
    ] = None,
    model: ModelName = MODEL,
    systems: Systems = "all",
    sizes: Sizes = SIZES,
    beams: Beams = BEAMS,
    queries: Queries = FRONTIER.queries,
    build_limit: BuildLimit = FRONTIER.build_limit,
    split: Split = EVAL.split,
    datasets: Datasets = "",
    limit: Limit = EVAL.limit,
    seeds: Seeds = EVAL.seeds,
    processes: Annotated[int, typer.Option(min=1, help="Search with N processes of one core each.")] = 1,
    train_limit: TrainLimit = GENERATIVE.queries,
    train_steps: TrainSteps = GENERATIVE.steps,
    cache: Cache = None,
    device: Device = DEVICE,
    layout: Layout = LAYOUT,
) -> None:
    """Write results as Markdown pages with pictures. They come from JSON; --data measures them first."""
    if data is not None:
        from genius.evaluate import run

        options = _options(systems, sizes, beams, queries, split, build_limit)
        workspace = workspace_of(cache, device, None, train_limit, train_steps)
        both = [EvalOptions(setting, split, limit, seeds=seeds) for setting in ("universal", "local")]
        dataset, name = open_data(data, layout, datasets), data.resolve().name
        loaded = run.load_model(model, workspace.device)
        if processes > 1:
            with progress() as show:  # one process encodes
                for each in both:
                    run.evaluate(dataset, name, loaded, "exact", each, workspace, log, show)
            own = {"data": data, "model": model, "datasets": datasets, "layout": layout, "device": device}
            own |= {"cache": workspace.cache, "train-limit": train_limit, "train-steps": train_steps}
            arguments = [word for key, value in own.items() for word in (f"--{key}", str(value))]
            run.search_in_parallel(f"exact,{systems}", both, arguments, processes, log)
        _measure(dataset, name, loaded, options, both, workspace, numbers, processes > 1)
    _write_pages(numbers, to)


def _measure(
    dataset: Dataset,
    name: str,
    model: Model,
    frontier: FrontierOptions,
    settings: list[EvalOptions],
    workspace: Workspace,
    numbers: Path,
    searched: bool,
) -> None:
    """Evaluate all settings and measure the frontier; write their JSON files.

    `searched`: processes of one thread have searched already, and their answers are read.
    """
    from genius.evaluate import run
    from genius.evaluate.frontier import measure_frontier
    from genius.evaluate.provenance import commit
    from genius.evaluate.report.studies import with_full_hit_rates

    at = commit()
    systems = f"exact,{frontier.systems}"
    with progress() as show:
        with run.one_thread() if searched else nullcontext():
            results = {
                each.setting: run.evaluate(
                    dataset, name, model, systems, each, workspace, log, show
                ).as_json()
                for each in settings
            }
        found = measure_frontier(dataset, name, model, model.name, frontier, workspace, log, show)
    for setting, result in results.items():
        save_result(numbers / f"results-{setting}.json", result, at)
    kind = found["machine"]["kind"]
    save_result(numbers / f"frontier-{kind}.json", with_full_hit_rates(found, results["universal"]), at)


def _write_pages(numbers: Path, to: Path) -> None:
    """The pages and pictures of the JSON files in `numbers`; nothing of the data itself is in them."""
    from genius.evaluate.report.pages import ReportInputs, pages
    from genius.evaluate.report.studies import by_model
    from genius.files import storage_errors, write_file

    results = [numbers / f"results-{setting}.json" for setting in ("universal", "local")]
    found = [read_json(file) for file in results if file.is_file()]
    if not found:
        raise BadInput(f"{numbers} has no results-universal.json or results-local.json: give --data")
    frontiers = [read_json(file) for file in sorted(numbers.glob("frontier-*.json"))]
    ablations, data = numbers / "ablations.json", numbers.parent / "data" / "README.md"
    seeds = [numbers / f"seeds-{each['setting']}.json" for each in found]
    generative = numbers / "generative.json"
    baselines = read_json(generative) if generative.is_file() else {"complete": False}
    inputs = ReportInputs(
        found,
        frontiers,
        read_json(ablations) if ablations.is_file() else None,
        [read_json(file) for file in seeds if file.is_file()],
        baselines if baselines["complete"] else None,
        {each["machine"]["device"]: _draw(each, to / "pictures") for each in by_model(frontiers, found)[0]},
        os.path.relpath(numbers, to),
        os.path.relpath(data, to) if data.is_file() else None,
    )
    for path, text in pages(inputs).items():
        with storage_errors(to):
            (to / path).parent.mkdir(parents=True, exist_ok=True)
        write_file(to / path, [text.encode()])
        typer.echo(str(to / path))


def _draw(frontier: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Pictures of a frontier in `folder`, times of a CPU as multiples: path beside the report -> caption."""
    from genius.evaluate.report.studies import on_cpu, relative
    from genius.files import storage_errors, write_file
    from genius.plots.frontier import figures
    from genius.plots.style import png

    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    kind = frontier["machine"].get("kind", "cpu")
    shown = relative(frontier) if on_cpu(frontier) else frontier
    drawn = {}
    for name, (caption, draw) in figures(shown).items():
        write_file(folder / f"{name}-{kind}.png", [png(draw(shown))])
        drawn[f"{folder.name}/{name}-{kind}.png"] = f"{caption}, {frontier['machine']['device']}"
    return drawn


def _options(
    systems: str, sizes: str, beams: str, queries: int, split: str, build_limit: int
) -> FrontierOptions:
    numbers = _numbers(sizes, "--sizes"), _numbers(beams, "--beams")
    return FrontierOptions(systems, *numbers, queries, split, build_limit)


def _numbers(text: str, option: str) -> list[int]:
    try:
        found = [int(part.replace("_", "")) for part in text.split(",") if part.strip()]
    except ValueError:
        raise BadInput(f"{option} {text!r}: write whole numbers with commas between them") from None
    if any(number < 1 for number in found):
        raise BadInput(f"{option} {text!r}: numbers have to be 1 or more")
    return found
