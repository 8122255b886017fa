"""`genius search`: ask an index with a text, an image or both."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from genius.cli.output import DEFAULT, Folder, Format, hit_lines


class Method(StrEnum):
    """How items are found."""

    GENERATE = "generate"
    LOOKUP = "lookup"
    BOTH = "both"


class Rerank(StrEnum):
    """What the found items are ordered by."""

    NONE = "none"
    CODES = "codes"
    VECTORS = "vectors"


def search(
    text: Annotated[str | None, typer.Argument(help="What to look for.")] = None,
    image: Annotated[Path | None, typer.Option(help="An image to look for, alone or with the text.")] = None,
    want: Annotated[
        str, typer.Option(help="image, text, pair, any, or a sentence that says what is wanted.")
    ] = "any",
    k: Annotated[int, typer.Option("-k", help="How many answers.")] = 10,
    method: Annotated[
        Method | None,
        typer.Option("--search", help="How to find them (default: what served the model best)."),
    ] = None,
    rerank: Annotated[
        Rerank | None, typer.Option(help="What orders them (default: vectors, where the index keeps them).")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="How many prefixes of codes are followed.")] = None,
    folder: Folder = DEFAULT,
    device: Annotated[str, typer.Option(help="Where the model runs: cpu, cuda.")] = "cpu",
    form: Annotated[Format, typer.Option("--format", help="How the answers are printed.")] = Format.TABLE,
) -> None:
    """Find images, texts and pairs with a text, an image or both."""
    from genius.engine import Engine
    from genius.types import Query

    with Engine.open(folder, device=device) as engine:
        hits = engine.search(Query(text=text, image=image), k, want, search=method, rerank=rerank, beam=beam)
        for line in hit_lines(hits, form):
            print(line)
        sys.stdout.flush()  # the answer does not wait for files to be let go of
