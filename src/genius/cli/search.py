"""`genius search`: searches an index with a text, an image or both."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from genius.cli.answers import Answer, open_page, print_answers, print_paths
from genius.cli.facets import FacetOption, WhereOption, say_nothing_passes
from genius.cli.output import DEFAULT_INDEX, Device, HitFormat, IndexFolder
from genius.cli.query_file import read_query_file
from genius.types import ANY


class Method(StrEnum):
    """How items are found."""

    GENERATE = "generate"
    LOOKUP = "lookup"
    BOTH = "both"


class Rerank(StrEnum):
    """What found items are re-ranked by."""

    NONE = "none"
    CODES = "codes"
    VECTORS = "vectors"


def search(
    text: Annotated[str | None, typer.Argument(help="What to search for.")] = None,
    image: Annotated[Path | None, typer.Option(help="An image, alone or with the text.")] = None,
    vector: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An embedding made elsewhere: .npy, or JSON (`-`: from stdin)."),
    ] = None,
    like: Annotated[
        str | None, typer.Option(metavar="ID", help="A stored item; the text says what should differ.")
    ] = None,
    want: Annotated[str, typer.Option(help="image, text, pair, any, or a sentence.")] = "any",
    instruction: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A sentence that says what kind of result is wanted.")
    ] = None,
    no_instruction: Annotated[
        bool, typer.Option("--no-instruction", help="Use no instruction (the default for images).")
    ] = False,
    where: WhereOption = None,
    match: Annotated[
        str | None, typer.Option(metavar="WORDS", help="Words that must occur in the text or file name.")
    ] = None,
    hybrid: Annotated[
        bool | None,
        typer.Option("--hybrid/--no-hybrid", help="Also rank by the query's words (default for texts)."),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--limit", help="How many hits.")] = 10,
    offset: Annotated[int, typer.Option(min=0, help="Skip this many of the best hits.")] = 0,
    facet: FacetOption = None,
    at_least: Annotated[
        float | None, typer.Option(min=0, max=1, help="Leave out hits below this confidence, from 0 to 1.")
    ] = None,
    method: Annotated[
        Method | None,
        typer.Option("--search", help="How items are found (default: the model's)."),
    ] = None,
    rerank: Annotated[
        Rerank | None, typer.Option(help="What re-ranks the candidates (default: vectors).")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="How many prefixes of codes are kept per level.")] = None,
    folder: IndexFolder = DEFAULT_INDEX,
    device: Device = "cpu",
    queries: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Many queries, one per line: texts, or JSON (`-`: from stdin)."),
    ] = None,
    form: Annotated[HitFormat, typer.Option("--format", help="How hits are printed.")] = HitFormat.TABLE,
    null: Annotated[
        bool, typer.Option("-0", "--null", help="Raw paths, each followed by NUL, for `xargs -0`.")
    ] = False,
    pictures: Annotated[
        bool, typer.Option("--pictures", help="Show small pictures in the terminal.")
    ] = False,
    open_: Annotated[
        bool, typer.Option("--open", help="Show the hits as a page of pictures in the browser.")
    ] = False,
) -> None:
    """Find images, texts and pairs with a text, an image or both."""
    from genius.engine import Engine
    from genius.errors import BadInput
    from genius.types import Query

    if instruction is not None and no_instruction:
        raise BadInput("--instruction and --no-instruction: leave one of them out")
    if facet and (form not in (HitFormat.TABLE, HitFormat.JSON) or queries is not None):
        raise BadInput("--facet goes with one query, and with --format table or json")
    options: dict[str, Any] = {
        "instruction": "" if no_instruction else instruction,
        "where": where,
        "match": match,
        "offset": offset,
        "at_least": at_least,
    }
    more: dict[str, Any] = {
        "search": method, "rerank": rerank, "beam": beam, "hybrid": hybrid, "facets": facet or []
    }  # fmt: skip
    single = text is not None or image is not None or vector is not None or like is not None
    with Engine.open(folder, device=device) as engine:
        if queries is not None:
            if single:
                raise BadInput("--queries has all queries: leave text, --image, --vector and --like out")
            asked = read_query_file(queries)
            wanted = None if want == ANY else want
            results = engine.results(asked, k, wanted, **options, **more)
        elif like is None:
            asked = [Query(text=text, image=image, vector=None if vector is None else _vector(vector))]
            results = engine.results(asked, k, want, **options, **more)
        elif image is not None or vector is not None or hybrid:
            raise BadInput("--like goes with a text: leave --image, --vector and --hybrid out")
        else:
            asked = [Query(text=" ".join(filter(None, (f"like {like}", text))))]
            more["hybrid"] = False  # the words of its text are not the user's
            results = [engine.like_result(like, text, k, want, **options, **more)]
        if (where or match) and not any(result.pool for result in results):
            say_nothing_passes(engine, where)
        answers = [Answer(*one) for one in zip(asked, results, strict=True)]
        if open_:
            open_page(answers, engine.thumbnail)
        elif null:
            print_paths(answers)
        else:
            print_answers(answers, form, engine.thumbnail if pictures else None, engine.thumbnail)
        sys.stdout.flush()  # before files are closed, which takes a moment


def _vector(file: Path) -> list[float]:
    """The one vector in a file."""
    import numpy as np

    from genius.errors import BadInput

    try:
        if file.suffix == ".npy":
            found = np.load(file, allow_pickle=False)
        else:
            text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
            found = np.asarray(json.loads(text), dtype=np.float64)
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"{file} holds no vector ({error}): give .npy, or JSON as [0.1, 0.2, …]") from None
    if found.dtype.kind not in "fiu":
        raise BadInput(
            f"{file} holds no vector ({found.dtype}): give .npy of float32, or JSON as [0.1, 0.2, …]"
        )
    if found.squeeze().ndim != 1:
        raise BadInput(f"{file} has the shape {found.shape}: a query is one vector")
    return [float(number) for number in found.squeeze()]
