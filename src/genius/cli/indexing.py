"""The steps of `genius index`: one source, all of them on a cluster, or a dry run; and what they say."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genius.cli.output import SummaryFormat, counted, progress, say, say_report, summary_lines

if TYPE_CHECKING:
    from genius.data.remote import RemotePath
    from genius.data.report import Report
    from genius.data.rows import TableOptions
    from genius.engine import Engine
    from genius.ingest.result import AddResult
    from genius.ingest.source import ItemSource

COUNTS = ("added", "updated", "unchanged", "repeated", "skipped", "removed", "long_texts")
RARE = ("repeated", "ignored", "long_texts")  # shown where there are any


def new_summary() -> dict[str, Any]:
    """A summary in which nothing was done yet."""
    return dict.fromkeys(COUNTS, 0) | {"ignored": Counter()}


def would_index(
    sources: list[ItemSource],
    to: Path,
    exclude: list[str],
    prune: bool,
    update: bool,
    tables: TableOptions,
    exif: bool,
) -> dict[str, Any]:
    """What would be added, updated and removed."""
    from genius.data.report import Report
    from genius.engine.changing import NO_PRUNING
    from genius.errors import BadInput, IndexNotFound
    from genius.ingest.dry_run import dry_run, dry_update
    from genius.ingest.source import noting_ids
    from genius.store.index import Index

    if update and prune:
        raise BadInput(NO_PRUNING)
    summary = new_summary()
    try:
        index: Index | None = Index.open(to)
    except IndexNotFound:
        index = None
    try:
        for source in sources:
            report, seen = Report(ids=set()), set[str]()
            known = index.truth.known if index is not None else lambda ids: {}
            if update:
                added = dry_update(source.changes(report, tables), known, report)
            else:
                items = noting_ids(source.items(index, exclude, report, tables), seen)
                added = dry_run(items, known, report, exif=exif and source.root is not None)
            say_report(report)
            if prune and index is not None and not report.unknown:
                kept = seen | source.kept_ids(report.ids or set())
                added.removed = sum(id not in kept for id in index.truth.ids_from(source.label))
            count_in(summary, source, added)
    finally:
        if index is not None:
            index.close()
    return summary


def print_summary(summary: dict[str, Any], form: SummaryFormat, paths: list[str]) -> None:
    """Print the counts, and say so if there was nothing."""
    shown = summary
    if form is SummaryFormat.TABLE:
        shown = {name: summary[name] for name in summary if summary[name] or name not in RARE}
    for line in summary_lines(shown, form):
        print(line)
    if not any(summary[name] for name in ("added", "updated", "unchanged", "skipped")):
        say(f"there was nothing to index in {', '.join(paths)}: no images, texts or tables")


def count_in(summary: dict[str, Any], source: ItemSource | None, added: AddResult) -> None:
    """Add what became of a source to the summary; repeated ids are said."""
    from genius.ingest.result import NAMED

    for name in ("added", "updated", "unchanged", "repeated", "removed", "long_texts"):
        summary[name] += getattr(added, name)
    summary["skipped"] += added.report.skipped
    summary["ignored"].update(added.report.ignored)
    if added.long_texts:
        say(
            f"{counted(added.long_texts, 'text is', 'texts are')} longer than the encoder reads: only the "
            "beginning is searched; a new index with --split-texts searches all of it"
        )
    if added.repeats:
        where = "" if source is None else f" in {source.place.name}"
        more = ", …" if len(added.repeats) == NAMED else ""
        say(
            f"{counted(added.repeated, 'item has', 'items have')} an id that came before{where}, and the "
            f"last one of each id was kept: {', '.join(added.repeats)}{more}"
        )


def index_all_on_cluster(
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
    count_in(summary, None, outcome.added)


def index_source(
    engine: Engine,
    source: ItemSource,
    exclude: list[str],
    prune: bool,
    update: bool,
    tables: TableOptions,
    exif: bool,
) -> AddResult:
    """Index one source; what was left out is said."""
    with progress(_count(source.place), f"index {source.place.name}") as done:
        added = engine.add_from(
            source.place,
            exclude=exclude,
            prune=prune,
            update=update,
            tables=tables,
            exif=exif,
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
