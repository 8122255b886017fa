"""`genius bench`: accuracy, latency and bytes of all systems at growing pool sizes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genius.cli.evaluate import (
    Datasets,
    Device,
    Format,
    Layout,
    ModelName,
    Root,
    Split,
    TrainLimit,
    TrainSteps,
    cache_folder,
    progress,
    read_json,
    save_json,
    say,
    schooling_of,
    typed,
)
from genius.errors import BadInput

if TYPE_CHECKING:
    from genius.evaluate.results import Results


def bench(
    data: Root,
    model: ModelName = "mini",
    systems: Annotated[
        str, typer.Option(help="Names or sets (ours, faiss), by comma; exact is always measured.")
    ] = "ours,faiss",
    sizes: Annotated[
        str, typer.Option(help="Pool sizes, by comma; larger than the data: filled with jittered copies.")
    ] = "2000,5000,16000,50000,400000",
    beams: Annotated[str, typer.Option(help="Beams to compare on the real pool, by comma.")] = "1,5,10,20,50",
    queries: Annotated[int, typer.Option(min=1, help="Queries of each row that are asked.")] = 20,
    build_limit: Annotated[
        int,
        typer.Option(min=0, help="In pools of more items leave out what takes minutes to build (hnsw, pq)."),
    ] = 100_000,
    split: Split = "test",
    datasets: Datasets = "",
    format_: Format = "table",
    cache: Annotated[
        Path | None, typer.Option(help="Where vectors are kept (default: $GENIUS_CACHE).")
    ] = None,
    device: Device = "auto",
    layout: Layout = "mbeir",
    write: Annotated[
        Path | None,
        typer.Option(
            help="Also evaluate all rows in both settings and write a report to this Markdown file."
        ),
    ] = None,
    numbers: Annotated[
        Path | None,
        typer.Option(
            help="With --write: folder for its numbers as JSON. An ablations.json or a frontier of another "
            "device that is there becomes part of the report."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="With --write: at most N queries of each row; 0: all.")
    ] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="With --write: average what starts at random over N seeds.")
    ] = 1,
    processes: Annotated[
        int, typer.Option(min=1, help="With --write: find answers with N processes of one core each.")
    ] = 1,
    train_limit: TrainLimit = 0,
    train_steps: TrainSteps = 0,
) -> None:
    """Measure accuracy, time and bytes of each system, and from which pool size it beats exact search."""
    from genius.data.base import open_dataset
    from genius.evaluate import measure
    from genius.evaluate.benchmark import Plan, benchmark
    from genius.evaluate.parallel import Source, find_answers
    from genius.evaluate.tables import frontier_table

    chosen = [name.strip() for name in datasets.split(",") if name.strip()]
    dataset = open_dataset(layout, data, chosen)
    schooling = schooling_of(train_limit, train_steps)
    place = measure.Place(cache or cache_folder(), measure.pick_device(device), schooling=schooling)
    plan = Plan(
        f"exact,{systems}",
        _numbers(sizes, "--sizes"),
        _numbers(beams, "--beams"),
        queries,
        split,
        build_limit,
    )
    name = data.resolve().name
    with progress() as show:
        loaded = measure.load_model(model, place.device)
        results = []
        if write is not None:
            both = [measure.Asked(setting, split, limit, seeds=seeds) for setting in ("universal", "local")]
            if processes > 1:
                for asked in both:  # vectors and codes: one process writes them
                    measure.measure(dataset, name, loaded, "exact", asked, place, say, show)
                source = Source(layout, data.resolve(), tuple(chosen), model)
                find_answers(source, plan.systems, both, place, processes, say)
            for asked in both:
                results.append(measure.measure(dataset, name, loaded, plan.systems, asked, place, say, show))
        frontier = benchmark(dataset, name, loaded, model, plan, place, say, show)
    if write is not None:
        _write(write, numbers, results, frontier)
    if format_ == "json":
        typer.echo(json.dumps(frontier))
    elif format_ == "markdown":
        typer.echo(frontier_table(frontier).markdown())
    else:
        from rich.console import Console

        Console(width=None if sys.stdout.isatty() else 160).print(frontier_table(frontier).rich())


def _write(file: Path, numbers: Path | None, results: list[Results], frontier: dict[str, Any]) -> None:
    """The report in Markdown with its pictures beside it; nothing of the data itself is in them."""
    from genius.evaluate.frontier_tables import judged_by_all
    from genius.evaluate.writeup import Document, writeup
    from genius.files import write_file

    frontier = judged_by_all(frontier, results[0].as_json())  # of the universal pool
    frontiers, ablations, kept = [frontier], None, {}
    if numbers is not None:
        for each in results:
            kept[each.setting] = numbers / f"results-{each.setting}.json"
            save_json(kept[each.setting], each.as_json())
        save_json(numbers / f"frontier-{frontier['machine']['kind']}.json", frontier)
        frontiers = [read_json(one) for one in sorted(numbers.glob("frontier-*.json"))]
        for one in frontiers:
            machine = one["machine"]
            kept[f"frontier {machine['device']}"] = numbers / f"frontier-{machine.get('kind', 'cpu')}.json"
        if (numbers / "ablations.json").is_file():
            kept["ablations"] = numbers / "ablations.json"
            ablations = read_json(kept["ablations"])
    pictures = {one["machine"]["device"]: _draw(one, file.parent / "pictures") for one in frontiers}
    links = {what: os.path.relpath(path, file.parent) for what, path in kept.items()}
    document = Document(results, frontiers, typed(), pictures, ablations, links)
    write_file(file, [writeup(document).encode()])
    say(f"written: {file}")


def _draw(frontier: dict[str, Any], folder: Path) -> dict[str, str]:
    """Pictures of a frontier in `folder`, times of a CPU as multiples: path beside the report -> caption."""
    from genius.evaluate.frontier_tables import relative
    from genius.files import storage_errors, write_file
    from genius.plots.frontier import all_of
    from genius.plots.style import png

    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    kind = frontier["machine"].get("kind", "cpu")
    shown = relative(frontier) if kind == "cpu" else frontier
    drawn = {}
    for name, (caption, draw) in all_of(shown).items():
        write_file(folder / f"{name}-{kind}.png", [png(draw(shown))])
        drawn[f"{folder.name}/{name}-{kind}.png"] = f"{caption}, {frontier['machine']['device']}"
    return drawn


def _numbers(text: str, option: str) -> list[int]:
    try:
        found = [int(part.replace("_", "")) for part in text.split(",") if part.strip()]
    except ValueError:
        raise BadInput(f"{option} {text!r}: write whole numbers with commas between them") from None
    if any(number < 1 for number in found):
        raise BadInput(f"{option} {text!r}: numbers have to be 1 or more")
    return found
