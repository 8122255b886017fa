"""`genius bench`: accuracy, latency and bytes of all systems at growing pool sizes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from genius.cli.evaluate import cache_folder, progress, say
from genius.errors import BadInput

if TYPE_CHECKING:
    from genius.evaluate.results import Results


def bench(
    data: Annotated[Path, typer.Option(help="Data root in M-BEIR's layout (or Karpathy's).")],
    model: Annotated[str, typer.Option(help="Model: a name or a folder.")] = "mini",
    systems: Annotated[
        str, typer.Option(help="Names or sets (ours, faiss), by comma; exact is always measured.")
    ] = "ours,faiss",
    sizes: Annotated[
        str, typer.Option(help="Pool sizes, by comma; larger than the data: filled with jittered copies.")
    ] = "2000,5000,16000,50000",
    beams: Annotated[str, typer.Option(help="Beams to compare on the real pool, by comma.")] = "1,5,10,20,50",
    queries: Annotated[int, typer.Option(min=1, help="Queries of each row that are asked.")] = 20,
    split: Annotated[str, typer.Option(help="Which queries are asked.")] = "test",
    datasets: Annotated[str, typer.Option(help="Only these datasets, by comma.")] = "",
    format_: Annotated[
        Literal["table", "json", "markdown"], typer.Option("--format", help="How results are printed.")
    ] = "table",
    cache: Annotated[
        Path | None, typer.Option(help="Where vectors are kept (default: $GENIUS_CACHE).")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    layout: Annotated[str, typer.Option(help="Layout of the data: mbeir or karpathy.")] = "mbeir",
    write: Annotated[
        Path | None,
        typer.Option(
            help="Also evaluate all rows in both settings and write a report to this Markdown file."
        ),
    ] = None,
) -> None:
    """Measure accuracy, time and bytes of each system, and from which pool size it beats exact search."""
    from genius.data.base import open_dataset
    from genius.evaluate import measure
    from genius.evaluate.benchmark import Plan, benchmark
    from genius.evaluate.tables import frontier_table

    chosen = [name.strip() for name in datasets.split(",") if name.strip()]
    dataset = open_dataset(layout, data, chosen)
    place = measure.Place(cache or cache_folder(), measure.pick_device(device))
    plan = Plan(f"exact,{systems}", _numbers(sizes, "--sizes"), _numbers(beams, "--beams"), queries, split)
    name = data.resolve().name
    with progress() as show:
        loaded = measure.load_model(model, place.device)
        results = []
        if write is not None:
            for setting in ("universal", "local"):
                asked = measure.Asked(setting, split)
                results.append(measure.measure(dataset, name, loaded, plan.systems, asked, place, say, show))
        frontier = benchmark(dataset, name, loaded, model, plan, place, say, show)
    if write is not None:
        _write(write, results, frontier)
    if format_ == "json":
        typer.echo(json.dumps(frontier))
    elif format_ == "markdown":
        typer.echo(frontier_table(frontier).markdown())
    else:
        from rich.console import Console

        Console(width=None if sys.stdout.isatty() else 160).print(frontier_table(frontier).rich())


def _write(file: Path, results: list[Results], frontier: dict[str, Any]) -> None:
    """The report in Markdown with its pictures beside it; nothing of the data itself is in them."""
    from genius.evaluate.writeup import writeup
    from genius.plots import frontier as pictures
    from genius.plots.style import png
    from genius.store.atomic import storage_errors, write_file

    drawn = {
        "hit-by-bytes": pictures.by_bytes,
        "hit-by-time": pictures.by_time,
        "latency-by-size": pictures.latency,
        "speed-by-size": pictures.speed,
    }
    if frontier["beams"]:
        drawn["hit-by-beam"] = pictures.beams
    folder = file.parent / "pictures"
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for picture, draw in drawn.items():
        write_file(folder / f"{picture}.png", [png(draw(frontier))])
    command = "genius bench --write " + file.name
    text = writeup(results, [frontier], command, [f"pictures/{picture}.png" for picture in drawn])
    write_file(file, [text.encode()])
    say(f"written: {file}")


def _numbers(text: str, option: str) -> list[int]:
    try:
        found = [int(part.replace("_", "")) for part in text.split(",") if part.strip()]
    except ValueError:
        raise BadInput(f"{option} {text!r}: write whole numbers with commas between them") from None
    if any(number < 1 for number in found):
        raise BadInput(f"{option} {text!r}: numbers have to be 1 or more")
    return found
