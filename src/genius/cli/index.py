"""`genius index`: adds files to an index; run again, it resumes and applies changes."""

from __future__ import annotations

import sys
from collections import Counter
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genius.cli.fit import report_fit
from genius.cli.indexing import (
    count_in,
    index_all_on_cluster,
    index_source,
    new_summary,
    print_summary,
    would_index,
)
from genius.cli.output import (
    DEFAULT_INDEX,
    Device,
    SummaryFormat,
    TargetFolder,
    say,
)
from genius.errors import BadInput
from genius.types import DEFAULT_MODEL

if TYPE_CHECKING:
    from genius.data.rows import TableOptions
    from genius.engine import Engine
    from genius.ingest.source import ItemSource


FIRST_VECTORS = 100  # whose widths decide that of a new index


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
        FitWhen, typer.Option(help="Refit the codes when the collection has outgrown them, or never.")
    ] = FitWhen.AUTO,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove items whose files or rows are gone.")
    ] = False,
    update: Annotated[bool, typer.Option("--update", help="Rows change parts of stored items.")] = False,
    columns: Annotated[
        str | None, typer.Option(help="Map columns: id=sku,text=title,description,image=photo.")
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="Delimiter of a CSV (default: guessed).")] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of a table, such as cp1252 (default: guessed).")
    ] = None,
    decimal: Annotated[
        str | None, typer.Option(help="Decimal separator of a CSV: . or , (default: guessed).")
    ] = None,
    allow_urls: Annotated[
        bool, typer.Option("--allow-urls", help="Fetch images of tables from the web.")
    ] = False,
    exif: Annotated[
        bool, typer.Option("--exif/--no-exif", help="Store date, place and camera of photos.")
    ] = True,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Skip files that match, such as `*.gif`. May be repeated.")
    ] = None,
    vectors: Annotated[
        bool | None,
        typer.Option("--vectors/--no-vectors", help="Store vectors (default), or codes only."),
    ] = None,
    split_texts: Annotated[
        bool | None,
        typer.Option("--split-texts", help="Index texts longer than the encoder reads in passages."),
    ] = None,
    device: Device = "cpu",
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Encode on Ray: `local`, `auto` or host:port."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Models on the cluster (default: one per GPU or CPU).")
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Where unfinished work is kept (default: index)."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what would change; change nothing.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep running, and index again when files change.")
    ] = False,
    form: Annotated[
        SummaryFormat, typer.Option("--format", help="How the summary is printed.")
    ] = SummaryFormat.TABLE,
) -> None:
    """Add files to an index, or bring it up to date.

    Run it again after an interruption to resume.
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
    tables = TableOptions(parse_columns(columns) if columns else {}, delimiter, encoding, allow_urls, decimal)
    alone = {"--update": update, "--columns": columns, "--delimiter": delimiter, "--encoding": encoding}
    alone |= {
        "--decimal": decimal,
        "--allow-urls": allow_urls,
        "--no-exif": not exif,
        "--dry-run": dry_run,
        "--watch": watch,
    }
    refused = [name for name, given in alone.items() if given]
    if cluster is not None and refused:
        raise BadInput(f"{' and '.join(refused)} cannot be used with --cluster: leave one of them out")
    if dry_run:
        would = would_index(sources, to, exclude or [], prune, update, tables, exif)
        print_summary(would, form, paths)
        say("this was a dry run: nothing has changed")
        return
    watched = [source.place for source in sources if isinstance(source.place, Path)]
    if watch and len(watched) < len(sources):
        raise BadInput("--watch watches files of this machine, not object stores")

    def run() -> dict[str, Any]:
        summary = new_summary()
        with (
            Engine.open_or_create(
                to,
                model,
                encoder=encoder,
                dim=_width(encoder, to, sources, tables),
                vectors=vectors,
                split_texts=split_texts,
                device=device,
            ) as engine,
            engine.index.writing(),
        ):
            try:
                if cluster is None:
                    for source in sources:
                        added = index_source(engine, source, exclude or [], prune, update, tables, exif)
                        count_in(summary, source, added)
                else:
                    index_all_on_cluster(
                        engine, sources, exclude or [], prune, summary, cluster, workers, parts
                    )
            except (KeyboardInterrupt, SystemExit):
                count = engine.stats()["items"]
                say(f"stopped; {count} items are stored in {to}. Run the same command to resume")
                raise
            _fit_if_due(engine, fit)
            if engine.stats()["fresh"] and not engine.stats()["generation"]:
                engine.compact()  # the next search starts from finished arrays
            summary["items"] = engine.stats()["items"]
        return summary

    state = state_of(watched, to) if watch else b""
    summary = run()
    print_summary(summary, form, paths)
    if watch:
        say(f"watching {', '.join(paths)}; Ctrl-C ends it")
    while watch:
        sys.stdout.flush()
        state = wait_for_change(watched, to, state)
        summary = run()
        if any(summary[name] for name in ("added", "updated", "removed")):
            print_summary(summary, form, paths)
    if summary["skipped"] and not any(summary[name] for name in ("added", "updated", "unchanged")):
        raise BadInput("none of the files could be used: the reasons are above")


def _width(encoder: str | None, to: Path, sources: list[ItemSource], tables: TableOptions) -> int | None:
    """The width of vectors that were made elsewhere: that of most of the first; None for other encoders."""
    from genius.data.report import Report
    from genius.data.tables import read_items
    from genius.store.connection import INDEX_FILE

    if encoder != "vectors" or (to / INDEX_FILE).exists():
        return None
    report = Report()
    items = chain.from_iterable(read_items(one.place, report=report, options=tables) for one in sources)
    vectors = (item.vector for item in items if item.vector is not None)
    widths = Counter(len(vector) for vector in islice(vectors, FIRST_VECTORS))
    if widths:
        return widths.most_common(1)[0][0]
    first = f" ({report.names[0].name}: {report.names[0].reason})" if report.names else ""
    raise BadInput(
        f"--encoder vectors, but no vectors came with the items{first}: give a Parquet, JSONL or CSV file "
        "with a column `vector`, an .npy or a .safetensors file"
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
