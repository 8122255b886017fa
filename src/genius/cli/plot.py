"""`genius plot`: pictures of results, as PNG files and one HTML report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genius.cli.evaluate import (
    DEVICE,
    EVAL,
    LAYOUT,
    MODEL,
    Cache,
    Device,
    Layout,
    ModelName,
    Split,
    open_data,
    progress,
    read_json,
    workspace_of,
)
from genius.errors import BadInput

if TYPE_CHECKING:
    from genius.plots.report import Section


def plot(
    to: Annotated[Path, typer.Option(help="Folder for the pictures and report.html.")],
    frontier: Annotated[
        list[Path] | None, typer.Option(help="A file of `genius bench --format json`. May be repeated.")
    ] = None,
    results: Annotated[
        list[Path] | None, typer.Option(help="A file of `genius eval --format json`. May be repeated.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Data root, for pictures of codes and the map.")] = None,
    model: ModelName = MODEL,
    compare: Annotated[
        list[str] | None, typer.Option(help="Another model to show on the map. May be repeated.")
    ] = None,
    levels: Annotated[str, typer.Option(help="Levels whose codes are shown, comma-separated.")] = "1,2,3",
    split: Split = EVAL.split,
    cache: Cache = None,
    device: Device = DEVICE,
    layout: Layout = LAYOUT,
) -> None:
    """Plot results: hit rate, speed by pool size, beams, codes, a map."""
    from genius.files import storage_errors, write_file
    from genius.plots.report import report

    sections = [_results_section(read_json(file)) for file in results or []]
    sections += [_frontier_section(read_json(file)) for file in frontier or []]
    if data is not None:
        sections.append(_model_section(data, layout, [model, *(compare or [])], levels, split, cache, device))
    if not sections:
        raise BadInput("nothing to draw: give --frontier, --results or --data")
    with storage_errors(to):
        to.mkdir(parents=True, exist_ok=True)
    for number, section in enumerate(sections):
        for picture in section.pictures:
            name = picture.name if len(sections) == 1 else f"{number + 1}-{picture.name}"
            write_file(to / f"{name}.png", [picture.png])
            typer.echo(str(to / f"{name}.png"))
    write_file(to / "report.html", [report("genius: results", sections).encode()])
    typer.echo(str(to / "report.html"))


def _results_section(found: dict[str, Any]) -> Section:
    from genius.evaluate.report.tables import cutoffs_table, results_table
    from genius.plots.report import Section

    if not {"rows", "mean", "setting"} <= found.keys():
        raise BadInput("--results wants a file of `genius eval --format json`")
    tables = [
        results_table(found, intervals=True),
        *(cutoffs_table(found, system) for system in found["mean"]),
    ]
    return Section(f"Results, {found['setting']} pool", tables)


def _frontier_section(found: dict[str, Any]) -> Section:
    from genius.evaluate.report.studies import frontier_table
    from genius.plots import frontier as pictures
    from genius.plots.report import Picture, Section
    from genius.plots.style import png

    if not {"points", "crossovers", "machine"} <= found.keys():
        raise BadInput("--frontier wants a file of `genius bench --format json`")
    where = found["machine"]["device"]
    drawn = [
        Picture(name, f"{caption} ({where}).", png(draw(found)))
        for name, (caption, draw) in pictures.figures(found).items()
    ]
    return Section(f"Frontier on {where}", [frontier_table(found)], drawn)


def _model_section(
    data: Path, layout: str, models: list[str], levels: str, split: str, cache: Path | None, device: str
) -> Section:
    from genius.evaluate import run
    from genius.plots.collect import code_pictures, map_picture
    from genius.plots.report import Section

    try:
        wanted = [int(level) for level in levels.split(",") if level.strip()]
    except ValueError:
        raise BadInput(f"--levels {levels!r}: write whole numbers with commas between them") from None
    dataset, workspace = open_data(data, layout), workspace_of(cache, device)
    with progress() as show:
        loaded = [(name, run.load_model(name, workspace.device)) for name in models]
        pictures = code_pictures(dataset, loaded[0][1], split, workspace, wanted, show)
        pictures.append(map_picture(dataset, loaded, split, workspace, show))
    return Section("Codes and embeddings", pictures=pictures)
