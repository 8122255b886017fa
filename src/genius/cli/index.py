"""`genius index`: adds files to an index; run again, it resumes and applies changes."""

from __future__ import annotations

import os
import sys
from collections import Counter
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
    from genius.data.rows import TableOptions
    from genius.engine import Engine
    from genius.ingest.result import AddResult
    from genius.ingest.source import ItemSource


COUNTS = ("added", "updated", "unchanged", "repeated", "skipped", "removed")
RARE = ("repeated", "ignored")  # shown where there are any


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
    update: Annotated[
        bool, typer.Option("--update", help="Rows change stored items; what they do not name stays.")
    ] = False,
    columns: Annotated[
        str | None, typer.Option(help="Which columns are what: id=sku,text=title,description,image=photo.")
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Between the cells of a CSV (default: guessed).")
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="Of a table, as cp1252 (default: guessed).")] = None,
    allow_urls: Annotated[
        bool, typer.Option("--allow-urls", help="Fetch images of tables from the web.")
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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay, and index again whenever files change (Ctrl-C ends it).")
    ] = False,
    form: Annotated[
        SummaryFormat, typer.Option("--format", help="How the summary is printed.")
    ] = SummaryFormat.TABLE,
) -> None:
    """Add files to an index, or bring it up to date.

    Stopped and run again, it goes on where it was.
    """
    from genius.data.columns import parse_columns
    from genius.data.remote import expanded
    from genius.data.rows import TableOptions
    from genius.engine import Engine
    from genius.ingest.source import ItemSource
    from genius.ingest.watching import state_of, wait_for_change

    sources = [ItemSource.of(name) for path in paths for name in expanded(path)]
    for place in (source.place for source in sources):
        if isinstance(place, Path) and not place.exists():
            raise BadInput(f"no folder or file at {place}: check the spelling")
    tables = TableOptions(parse_columns(columns) if columns else {}, delimiter, encoding, allow_urls)
    if cluster is not None and (update or tables != TableOptions()):
        raise BadInput("--update, --columns, --delimiter, --encoding and --allow-urls work without --cluster")
    if cluster is not None and (dry_run or watch):
        raise BadInput("--dry-run and --watch work without --cluster")
    if dry_run:
        _print_summary(_dry_run(sources, to, exclude or [], prune, tables), form, paths)
        say("this was a dry run: nothing has changed")
        return
    watched = [source.place for source in sources if isinstance(source.place, Path)]
    if watch and len(watched) < len(sources):
        raise BadInput("--watch watches files of this machine, not object stores")

    def run() -> dict[str, Any]:
        summary: dict[str, Any] = dict.fromkeys(COUNTS, 0) | {"ignored": Counter()}
        with (
            Engine.open_or_create(
                to,
                model,
                encoder=encoder,
                dim=_width(encoder, to, sources, tables),
                vectors=vectors,
                device=device,
            ) as engine,
            engine.index.writing(),
        ):
            try:
                if cluster is None:
                    for source in sources:
                        added = _index_source(engine, source, exclude or [], prune, update, tables)
                        _count_in(summary, source, added)
                else:
                    _index_on_cluster(engine, sources, exclude or [], prune, summary, cluster, workers, parts)
            except (KeyboardInterrupt, SystemExit):
                count = engine.stats()["items"]
                say(f"stopped; {count} items are safe in {to}. Run the same command to go on")
                raise
            _fit_if_due(engine, fit)
            if engine.stats()["fresh"] and not engine.stats()["generation"]:
                engine.compact()  # the next search starts from finished arrays
            summary["items"] = engine.stats()["items"]
        return summary

    state = state_of(watched, to) if watch else b""
    summary = run()
    _print_summary(summary, form, paths)
    while watch:
        sys.stdout.flush()
        state = wait_for_change(watched, to, state)
        summary = run()
        if any(summary[name] for name in ("added", "updated", "removed")):
            _print_summary(summary, form, paths)
    if summary["skipped"] and not any(summary[name] for name in ("added", "updated", "unchanged")):
        raise BadInput("none of the files could be used: the reasons are above")


def _dry_run(
    sources: list[ItemSource], to: Path, exclude: list[str], prune: bool, tables: TableOptions
) -> dict[str, Any]:
    """What would be added, updated and removed."""
    from genius.data.report import Report
    from genius.errors import IndexNotFound
    from genius.ingest.dry_run import dry_run
    from genius.ingest.source import noting_ids
    from genius.store.index import Index

    summary: dict[str, Any] = dict.fromkeys(COUNTS, 0) | {"ignored": Counter()}
    try:
        index: Index | None = Index.open(to)
    except IndexNotFound:
        index = None
    try:
        for source in sources:
            report, seen = Report(ids=set()), set[str]()
            items = noting_ids(source.items(index, exclude, report, tables), seen)
            added = dry_run(items, index.truth.known if index is not None else lambda ids: {}, report)
            say_report(report)
            if prune and index is not None and not report.unknown:
                kept = seen | source.kept_ids(report.ids or set())
                added.removed = sum(id not in kept for id in index.truth.ids_from(source.label))
            _count_in(summary, source, added)
    finally:
        if index is not None:
            index.close()
    return summary


def _print_summary(summary: dict[str, Any], form: SummaryFormat, paths: list[str]) -> None:
    shown = summary
    if form is SummaryFormat.TABLE:
        shown = {name: summary[name] for name in summary if summary[name] or name not in RARE}
    for line in summary_lines(shown, form):
        print(line)
    if not any(summary[name] for name in ("added", "updated", "unchanged", "skipped")):
        say(f"there was nothing to index in {', '.join(paths)}: no images, texts or tables")


def _width(encoder: str | None, to: Path, sources: list[ItemSource], tables: TableOptions) -> int | None:
    """The width of vectors that were made elsewhere: that of the first one; None for other encoders."""
    from genius.data.tables import read_items
    from genius.store.connection import INDEX_FILE

    if encoder != "vectors" or (to / INDEX_FILE).exists():
        return None
    for source in sources:
        for item in read_items(source.place, options=tables):
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
    fit = engine.index.settings.get("fit")
    if when is FitWhen.NEVER or not fit or fit.get("from_pairs"):
        say(f"{reason}: `genius fit --in {engine.index.folder}` fits the codes to the collection")
        return
    say(reason)
    report_fit(engine)


def _count_in(summary: dict[str, Any], source: ItemSource | None, added: AddResult) -> None:
    for name in ("added", "updated", "unchanged", "repeated", "removed"):
        summary[name] += getattr(added, name)
    summary["skipped"] += added.report.skipped
    summary["ignored"].update(added.report.ignored)
    if added.repeats:
        where = "" if source is None else f" in {source.place.name}"
        more = ", …" if added.repeated > len(added.repeats) else ""
        say(
            f"{added.repeated} ids came more than once{where}, and the last of each was kept: "
            f"{', '.join(added.repeats)}{more}"
        )


def _index_on_cluster(
    engine: Engine,
    sources: list[ItemSource],
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

    specs = [
        (
            os.path.abspath(source.place) if isinstance(source.place, Path) else str(source.place),  # noqa: PTH100
            source.label,
            source.patterns(engine.index.folder, exclude),
        )
        for source in sources
    ]
    total = sum(_count(source.place) or 0 for source in sources) or None

    with progress(total, f"index on {cluster}") as done:

        def update(outcome: ClusterRun) -> None:
            done(outcome.added.done)

        outcome = index_on_cluster(
            engine.index,
            specs,
            address=cluster,
            workers=workers,
            parts=parts,
            note_ids=prune,
            progress=update,
        )
    say_report(outcome.added.report)
    for name, share in sorted(outcome.workers.items()):
        say(f"worker {name}: {share.items} items, {share.encoded} encoded, {share.rate:.1f} items/s")
    if outcome.added.report.unknown and prune:
        _say_nothing_pruned(outcome.added.report)
    elif prune:
        for source, seen in zip(sources, outcome.seen, strict=True):
            outcome.added.removed += engine.prune(source.label, seen)
    _count_in(summary, None, outcome.added)


def _index_source(
    engine: Engine, source: ItemSource, exclude: list[str], prune: bool, update: bool, tables: TableOptions
) -> AddResult:
    with progress(_count(source.place), f"index {source.place.name}") as done:
        added = engine.add_from(
            source.place,
            exclude=exclude,
            prune=prune,
            update=update,
            tables=tables,
            fit="never",
            progress=lambda so_far: done(so_far.done),
        )
    say_report(added.report)
    if prune and added.report.unknown:
        _say_nothing_pruned(added.report)
    return added


def _say_nothing_pruned(report: Report) -> None:
    say(
        f"nothing was pruned: {report.unknown} folders or lines could not be read, and what they hold "
        "may still be there; make them readable, or leave them out with --exclude"
    )


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
