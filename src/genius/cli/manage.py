"""The verbs that maintain an index: remove, stats, check, compact, export, import. None loads the model."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from genius.cli.output import (
    DEFAULT_INDEX,
    IndexFolder,
    SummaryFormat,
    TargetFolder,
    counted,
    say,
    summary_lines,
)
from genius.errors import BadInput, IndexCorrupt

if TYPE_CHECKING:
    from genius.quantize.health import CodeHealth
    from genius.store.index import Index


def remove(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of the items.")],
    ignore_missing: Annotated[
        bool, typer.Option("--ignore-missing", help="Do not fail on unknown ids.")
    ] = False,
    folder: IndexFolder = DEFAULT_INDEX,
) -> None:
    """Remove items; takes effect at once."""
    from genius.engine import Engine

    with Engine.open(folder) as engine, engine.index.writing():
        missing = [id for id in dict.fromkeys(ids) if engine.get(id) is None]
        count = engine.remove(ids)
    print(f"removed {count}")
    if missing and not ignore_missing:
        some = ", ".join(repr(id) for id in missing[:10]) + (", …" if len(missing) > 10 else "")
        ids_are = counted(len(missing), "id is", "ids are")
        raise BadInput(f"{ids_are} not in {folder}: {some}")


def stats(
    folder: IndexFolder = DEFAULT_INDEX,
    codes: Annotated[
        bool, typer.Option("--codes", help="Also show how well the codes tell items apart, level by level.")
    ] = False,
    form: Annotated[
        SummaryFormat, typer.Option("--format", help="How the values are printed.")
    ] = SummaryFormat.TABLE,
) -> None:
    """Show what is in an index, its size and its default search."""
    from genius.engine import Engine

    with Engine.open(folder) as engine:
        facts = engine.stats()
        health = _health(engine.index) if codes and facts["items"] else None
    if form is SummaryFormat.JSON and health is not None:
        facts["health"] = health.as_dict()
    if form is SummaryFormat.TABLE:
        facts["fit"] = {name: value for name, value in facts["fit"].items() if value}
    for line in summary_lines({name: value for name, value in facts.items() if value != {}}, form):
        print(line)
    if form is SummaryFormat.TABLE and codes:
        print("\n" + ("\n".join(_health_lines(health)) if health else "no items yet, so no codes"))


def _health(index: Index) -> CodeHealth:
    from genius.quantize.health import measure
    from genius.store.records import RecordBatch

    every = RecordBatch.join(list(index.truth.batches(index.levels, None)))
    return measure(every.codes, index.settings["sizes"], modality=every.modality)


def _health_lines(health: CodeHealth) -> list[str]:
    """The table without its last column (queries, which it is about, are not in an index), and a legend."""
    summary, *rows = health.lines()
    legend = "buckets: different prefixes up to the level; largest, typical: items that share one"
    return [summary, *(row.rsplit(None, 1)[0] for row in rows), legend]


def check(
    repair: Annotated[
        bool, typer.Option("--repair", help="Save what can be read and rebuild the rest.")
    ] = False,
    files: Annotated[
        bool, typer.Option("--files", help="Look for moved or deleted pictures instead.")
    ] = False,
    folder: IndexFolder = DEFAULT_INDEX,
) -> None:
    """Verify a whole index; exit code 6 if it is damaged."""
    from genius.store import check as checking

    if files:
        _check_files(folder)
        return
    if not repair:
        findings = checking.check(folder)
        for problem in (*findings.truth, *findings.cache, *findings.model):
            say(problem)
        if findings.model and not findings.truth and not findings.cache:
            raise IndexCorrupt(f"{folder} is damaged: `genius fit --in {folder}` repairs it")
        if not findings.clean:
            raise IndexCorrupt(f"{folder} is damaged: `genius check --repair --in {folder}` repairs it")
        print(f"{counted(findings.items, 'item')}, nothing wrong")
        return
    findings, salvage = checking.repair(folder)
    for problem in (*findings.truth, *findings.cache, *findings.model):
        say(problem)
    if findings.truth:
        print(f"saved {salvage.saved} items, lost {len(salvage.lost)}; the damaged file is {salvage.damaged}")
        for name in salvage.lost:
            say(f"lost: {name}")
        for name in salvage.cut:
            say(f"found by the beginning of its text alone; remove it and index it again: {name}")
    elif findings.cache:
        print("rebuilt the cache; nothing is lost")
    else:
        print(f"{counted(findings.items, 'item')}, nothing wrong")


def _check_files(folder: Path) -> None:
    from genius.data.report import printable
    from genius.ingest.missing import missing_files
    from genius.store.index import Index

    with Index.open(folder) as index:
        found = missing_files(index)
    for one in found.missing:
        print(f"gone   {printable(one.id)}  {printable(one.path)}" if one.now is None else
              f"moved  {printable(one.id)}  {printable(one.path)} -> {printable(one.now)}")  # fmt: skip
    if found.missing:
        moved = sum(one.now is not None for one in found.missing)
        raise BadInput(
            f"{len(found.missing)} of {found.files} files are not where they were, {moved} of them moved: "
            "index their folder again with --prune, or `genius remove` them"
        )
    print(f"{counted(found.files, 'file')}, all where they were")


def compact(folder: IndexFolder = DEFAULT_INDEX) -> None:
    """Merge all changes into new arrays, for faster searches."""
    from genius.store.index import Index

    with Index.open(folder) as index:
        print(f"generation {index.compact()}")


def export(
    to: Annotated[
        str, typer.Argument(help="A .jsonl, a .tar (with the images), a URI of either, or - for stdout.")
    ],
    folder: IndexFolder = DEFAULT_INDEX,
    vectors: Annotated[bool, typer.Option(help="Write the vectors, if the index keeps them.")] = True,
) -> None:
    """Write an index into one file: JSONL, or a tar with the images."""
    from genius import files
    from genius.data.remote import RemotePath, location
    from genius.store import exporting
    from genius.store.index import Index

    place = location(to)
    if to != "-" and place.suffix not in (".jsonl", ".tar"):
        raise BadInput(f"cannot tell the form of {to}: end its name in .jsonl or .tar")
    with Index.open(folder) as index:
        if to == "-":
            for line in exporting.export_lines(index, vectors):
                sys.stdout.buffer.write(line)
            sys.stdout.flush()
            return
        chunks = (
            exporting.export_tar(index, vectors)
            if place.suffix == ".tar"
            else exporting.export_lines(index, vectors)
        )
        if isinstance(place, RemotePath):
            with tempfile.TemporaryDirectory() as scratch:  # a transfer that breaks begins again
                files.write_file(Path(scratch) / place.name, chunks)
                place.upload(Path(scratch) / place.name)
        else:
            files.write_file(place, chunks)
    print(to)


def import_(
    file: Annotated[str, typer.Argument(help="A .jsonl or .tar written by `genius export`, or its URI.")],
    to: TargetFolder = DEFAULT_INDEX,
    partial: Annotated[
        bool, typer.Option("--partial", help="Take the good items of an incomplete or damaged export.")
    ] = False,
) -> None:
    """Read an exported file into a new or existing index."""
    from genius.data.remote import RemotePath, location
    from genius.data.report import Report
    from genius.store.importing import import_file

    place, report = location(file), Report()
    with tempfile.TemporaryDirectory() as scratch:
        if isinstance(place, RemotePath):
            place.download(Path(scratch) / place.name)
            place = Path(scratch) / place.name
        count = import_file(place, to, partial=partial, report=report)
    for line in report.lines():
        say(line)
    print(f"imported {count}")
