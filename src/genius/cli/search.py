"""`genius search`: searches an index with a text, an image or both."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from genius.cli.facets import FacetOption, WhereOption, facet_lines, facet_values
from genius.cli.output import DEFAULT_INDEX, Device, HitFormat, IndexFolder, hit_fields, hit_lines, say

NOTHING_CLOSE = "nothing close was found: lower --at-least, or leave it out"


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
        str | None, typer.Option(metavar="ID", help="A stored item; the text says what is to differ.")
    ] = None,
    want: Annotated[str, typer.Option(help="image, text, pair, any, or a sentence.")] = "any",
    instruction: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A sentence that says what is wanted.")
    ] = None,
    no_instruction: Annotated[
        bool, typer.Option("--no-instruction", help="Ask without a sentence, as images do by default.")
    ] = False,
    where: WhereOption = None,
    k: Annotated[int, typer.Option("-k", "--limit", help="How many hits.")] = 10,
    offset: Annotated[int, typer.Option(min=0, help="How many of the best hits are left out.")] = 0,
    facet: FacetOption = None,
    at_least: Annotated[
        float | None, typer.Option(min=0, max=1, help="Leave out hits of less confidence, from 0 to 1.")
    ] = None,
    method: Annotated[
        Method | None,
        typer.Option("--search", help="How items are found (default: by model)."),
    ] = None,
    rerank: Annotated[Rerank | None, typer.Option(help="What orders items (default: vectors).")] = None,
    beam: Annotated[int | None, typer.Option(help="How many prefixes of codes are followed.")] = None,
    folder: IndexFolder = DEFAULT_INDEX,
    device: Device = "cpu",
    form: Annotated[HitFormat, typer.Option("--format", help="How hits are printed.")] = HitFormat.TABLE,
) -> None:
    """Find images, texts and pairs with a text, an image or both."""
    from genius.engine import Engine
    from genius.errors import BadInput
    from genius.types import Query

    if instruction is not None and no_instruction:
        raise BadInput("--instruction and --no-instruction: leave one of them out")
    if facet and form not in (HitFormat.TABLE, HitFormat.JSON):
        raise BadInput("--facet goes with --format table or json")
    sentence = "" if no_instruction else instruction
    with Engine.open(folder, device=device) as engine:
        if like is None:
            query = Query(text=text, image=image, vector=None if vector is None else _vector(vector))
            (result,) = engine.results(
                [query],
                k,
                want,
                search=method,
                rerank=rerank,
                beam=beam,
                instruction=sentence,
                where=where,
                offset=offset,
                facets=facet or [],
                at_least=at_least,
            )
        elif image is not None or vector is not None or method or rerank or beam or facet:
            raise BadInput(
                "--like goes with a text, what is wanted, --where, --offset and -k: leave the others out"
            )
        else:
            result = engine.like_result(
                like, text, k, want, instruction=sentence, where=where, offset=offset, at_least=at_least
            )
        hits, facets = result.hits, result.facets
        if result.nearest:
            say("nothing close was found; the nearest are:" if form is HitFormat.TABLE else NOTHING_CLOSE)
            hits = list(result.nearest) if form is HitFormat.TABLE else []
        if facets and form is HitFormat.JSON:
            print(
                json.dumps(
                    {"hits": [hit_fields(hit) for hit in hits], "facets": facet_values(facets)}, indent=2
                )
            )
        else:
            for line in hit_lines(hits, form):
                print(line)
            for line in facet_lines(facets):
                print(line)
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
    if found.squeeze().ndim != 1:
        raise BadInput(f"{file} has the shape {found.shape}: a query is one vector")
    return [float(number) for number in found.squeeze()]
