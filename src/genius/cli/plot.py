"""`genius plot`: pictures of results, as PNG files and one HTML report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genius.cli.evaluate import cache_folder, progress, read_json
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
    model: Annotated[str, typer.Option(help="Model for those pictures: a name or a folder.")] = "mini",
    compare: Annotated[
        list[str] | None, typer.Option(help="Another model beside it on the map. May be repeated.")
    ] = None,
    levels: Annotated[str, typer.Option(help="Levels to show codes of, by comma.")] = "1,2,3",
    split: Annotated[str, typer.Option(help="Split whose items are shown.")] = "test",
    cache: Annotated[
        Path | None, typer.Option(help="Where vectors are kept (default: $GENIUS_CACHE).")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    layout: Annotated[str, typer.Option(help="Layout of the data: mbeir or karpathy.")] = "mbeir",
) -> None:
    """Draw what was measured: hit rate by bytes and time, speed by pool size, beams, codes, a map."""
    from genius.files import storage_errors, write_file
    from genius.plots.report import report

    sections = [_results_section(read_json(file)) for file in results or []]
    sections += [_frontier_section(read_json(file)) for file in frontier or []]
    if data is not None:
        sections.append(
            _model_section(
                data, layout, [model, *(compare or [])], levels, split, cache or cache_folder(), device
            )
        )
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
    from genius.evaluate.tables import cuts_table, results_table
    from genius.plots.report import Section

    if not {"rows", "mean", "setting"} <= found.keys():
        raise BadInput("--results wants a file of `genius eval --format json`")
    tables = [results_table(found, intervals=True), *(cuts_table(found, system) for system in found["mean"])]
    return Section(f"Results, {found['setting']} pool", tables)


def _frontier_section(found: dict[str, Any]) -> Section:
    from genius.evaluate.tables import frontier_table
    from genius.plots import frontier as pictures
    from genius.plots.report import Picture, Section
    from genius.plots.style import png

    if not {"points", "crossovers", "machine"} <= found.keys():
        raise BadInput("--frontier wants a file of `genius bench --format json`")
    where = found["machine"]["device"]
    drawn = [
        Picture(name, f"{caption} ({where}).", png(draw(found)))
        for name, (caption, draw) in pictures.all_of(found).items()
    ]
    return Section(f"Frontier on {where}", [frontier_table(found)], drawn)


def _model_section(
    data: Path, layout: str, models: list[str], levels: str, split: str, cache: Path, device: str
) -> Section:
    from genius.data.base import open_dataset
    from genius.evaluate import measure
    from genius.plots.collect import code_pictures, map_picture
    from genius.plots.report import Section

    try:
        wanted = [int(level) for level in levels.split(",") if level.strip()]
    except ValueError:
        raise BadInput(f"--levels {levels!r}: write whole numbers with commas between them") from None
    dataset = open_dataset(layout, data)
    place = measure.Place(cache, measure.pick_device(device))
    with progress() as show:
        loaded = [(name, measure.load_model(name, place.device)) for name in models]
        pictures = code_pictures(dataset, loaded[0][1], split, place, wanted, show)
        pictures.append(map_picture(dataset, loaded, split, place, show))
    return Section("Codes and vectors", pictures=pictures)
