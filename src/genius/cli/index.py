"""`genius index`: adds files to an index; run again, it resumes and applies changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genius.cli.fit import report_fit
from genius.cli.output import (
    DEFAULT_INDEX,
    Device,
    SummaryFormat,
    TargetFolder,
    progress,
    say,
    say_report,
    summary_lines,
)
from genius.errors import BadInput
from genius.types import DEFAULT_MODEL

if TYPE_CHECKING:
    from genius.data.remote import RemotePath
    from genius.data.report import Report
    from genius.engine import Engine
    from genius.ingest.result import AddResult
    from genius.types import Item


class FitWhen(StrEnum):
    """When `genius index` fits the codes."""

    AUTO = "auto"
    NEVER = "never"


def index(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="Folders, images, texts, tables (JSONL, CSV, Parquet) or tars.",
        ),
    ],
    to: TargetFolder = DEFAULT_INDEX,
    model: Annotated[
        str | None, typer.Option(help=f"Name or folder (default: the index's, or {DEFAULT_MODEL}).")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Encoder without trained codes: a hub name, a folder, or `vectors`; codes are fitted.",
        ),
    ] = None,
    fit: Annotated[
        FitWhen, typer.Option(help="Fit the codes when the collection has outgrown them, or never.")
    ] = FitWhen.AUTO,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove items that the paths no longer have.")
    ] = False,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Leave out what matches, as `*.gif`; repeatable.")
    ] = None,
    vectors: Annotated[
        bool | None,
        typer.Option("--vectors/--no-vectors", help="Keep vectors (default), or nothing but codes."),
    ] = None,
    device: Device = "cpu",
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Encode on Ray: `local`, `auto` or host:port."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Models on the cluster (default: per GPU or CPU).")
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Where unfinished work is kept (default: index)."),
    ] = None,
    form: Annotated[
        SummaryFormat, typer.Option("--format", help="How the summary is printed.")
    ] = SummaryFormat.TABLE,
) -> None:
    """Add files to an index, or bring it up to date.

    Stopped and run again, it goes on where it was.
    """
    from genius.data.remote import expanded, location
    from genius.engine import Engine

    places = [location(name) for path in paths for name in expanded(path)]
    for place in places:
        if isinstance(place, Path) and not place.exists():
            raise BadInput(f"no folder or file at {place}: check the spelling")
    with (
        Engine.open_or_create(
            to, model, encoder=encoder, dim=_width(encoder, to, places), vectors=vectors, device=device
        ) as engine,
        engine.index.writing(),
    ):
        summary: dict[str, Any] = {"added": 0, "updated": 0, "unchanged": 0, "skipped": 0, "removed": 0}
        try:
            if cluster is None:
                for place in places:
                    _count_in(summary, *_index_path(engine, place, exclude or [], prune))
            else:
                _index_on_cluster(engine, places, exclude or [], prune, summary, cluster, workers, parts)
        except (KeyboardInterrupt, SystemExit):
            say(f"stopped; {engine.stats()['items']} items are safe in {to}. Run the same command to go on")
            raise
        _fit_if_due(engine, fit)
        if engine.stats()["fresh"] and not engine.stats()["generation"]:
            engine.compact()  # the next search starts from finished arrays
        summary["items"] = engine.stats()["items"]
    for line in summary_lines(summary, form):
        print(line)
    if not any(summary[name] for name in ("added", "updated", "unchanged", "skipped")):
        say(f"there was nothing to index in {', '.join(paths)}: no images, texts or tables")
    if summary["skipped"] and not any(summary[name] for name in ("added", "updated", "unchanged")):
        raise BadInput("none of the files could be used: the reasons are above")


def _width(encoder: str | None, to: Path, places: list[Path | RemotePath]) -> int | None:
    """The width of vectors that were made elsewhere: that of the first one; None for other encoders."""
    from genius.data.tables import read_items
    from genius.store.connection import INDEX_FILE

    if encoder != "vectors" or (to / INDEX_FILE).exists():
        return None
    for place in places:
        for item in read_items(place):
            if item.vector is not None:
                return len(item.vector)
    raise BadInput(
        "--encoder vectors, but no vectors came with the items: give a Parquet, JSONL or CSV file with a "
        "column `vector`, an .npy or a .safetensors file"
    )


def _fit_if_due(engine: Engine, when: FitWhen) -> None:
    """Fit the codes if that is worth it, or say so."""
    reason = engine.fit_is_due()
    if reason is None:
        return
    if when is FitWhen.NEVER or not engine.index.settings.get("fit"):
        say(f"{reason}: `genius fit --in {engine.index.folder}` fits the codes to the collection")
        return
    say(reason)
    report_fit(engine)


def _count_in(summary: dict[str, Any], added: AddResult, removed: int) -> None:
    summary["added"] += added.added
    summary["updated"] += added.updated
    summary["unchanged"] += added.unchanged
    summary["skipped"] += added.report.skipped
    summary["removed"] += removed


def _index_on_cluster(
    engine: Engine,
    places: list[Path | RemotePath],
    exclude: list[str],
    prune: bool,
    summary: dict[str, Any],
    cluster: str,
    workers: int | None,
    parts: str | None,
) -> None:
    """All paths at once, on Ray."""
    from genius.cluster.session import ray_module

    ray_module()  # or a line that says what to install
    from genius.cluster.indexing import ClusterRun, index_on_cluster

    sources = [
        (os.path.abspath(place) if isinstance(place, Path) else str(place), _resolved(place),  # noqa: PTH100
         _patterns(engine, place, exclude))
        for place in places
    ]  # fmt: skip
    total = sum(_count(place) or 0 for place in places) or None

    with progress(total, f"index on {cluster}") as done:

        def update(outcome: ClusterRun) -> None:
            done(outcome.added.done)

        outcome = index_on_cluster(
            engine.index,
            sources,
            address=cluster,
            workers=workers,
            parts=parts,
            note_ids=prune,
            progress=update,
        )
    say_report(outcome.added.report)
    for name, share in sorted(outcome.workers.items()):
        say(f"worker {name}: {share.items} items, {share.encoded} encoded, {share.rate:.1f} items/s")
    removed = 0
    for (_, source, _), seen in zip(sources, outcome.seen, strict=False):
        removed += _prune(engine, source, seen, outcome.added.report)
    _count_in(summary, outcome.added, removed)


def _resolved(place: Path | RemotePath) -> str:
    return str(place.resolve()) if isinstance(place, Path) else str(place)


def _patterns(engine: Engine, place: Path | RemotePath, exclude: list[str]) -> list[str]:
    """What to leave out: never the index itself."""
    if not isinstance(place, Path):
        return exclude
    own = os.path.relpath(engine.index.folder, place)
    return exclude if own.startswith("..") else [*exclude, Path(own).as_posix()]


def _index_path(
    engine: Engine, path: Path | RemotePath, exclude: list[str], prune: bool
) -> tuple[AddResult, int]:
    from genius.data.report import Report
    from genius.data.tables import read_items

    seen: set[str] = set()
    report = Report(ids=seen if prune else None)  # what is skipped may still be there
    source = _resolved(path)
    items = _collect_ids(read_items(path, _patterns(engine, path, exclude), report), seen if prune else None)
    with progress(_count(path), f"index {path.name}") as done:
        added = engine.add(
            items, source=source, report=report, progress=lambda so_far: done(so_far.done), fit="never"
        )
    say_report(report)
    return added, _prune(engine, source, seen, report) if prune else 0


def _prune(engine: Engine, source: str, seen: set[str], report: Report) -> int:
    """Remove items of `source` that are gone; nothing, unless all of the source could be listed."""
    if report.unknown:
        say(
            f"nothing was pruned: {report.unknown} folders or lines could not be read, and what they hold "
            "may still be there; make them readable, or leave them out with --exclude"
        )
        return 0
    return engine.prune(source, seen)


def _collect_ids(items: Iterator[Item], seen: set[str] | None) -> Iterator[Item]:
    """The items as they come; their ids go to `seen`."""
    for item in items:
        if seen is not None:
            seen.add(item.id)
        yield item


def _count(path: Path | RemotePath) -> int | None:
    """About how many items there are, for the remaining time; unknown for a stream."""
    from genius.data.images import SUFFIXES

    if not isinstance(path, Path):
        return None
    if path.is_dir():
        walk = (name for _, _, names in os.walk(path) for name in names)
        return sum(Path(name).suffix.lower() in SUFFIXES for name in walk) or None
    if path.suffix.lower() in (".jsonl", ".ndjson", ".csv", ".tsv") and path.is_file():
        with path.open("rb") as stream:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(1 << 20), b""))
    return None
