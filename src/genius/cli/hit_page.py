"""Hits as a page of pictures in one HTML file, which needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from genius.types import Hit

SIDE = 320  # pixels of a picture
STYLE = """
:root { color-scheme: light dark; font: 16px/1.4 system-ui, sans-serif; }
body { margin: 1rem; }
ol { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); padding: 0; }
li { border: 1px solid #8886; border-radius: .5rem; list-style: none; }
li { overflow: hidden; overflow-wrap: anywhere; }
li > :not(.picture) { margin: .5rem; }
img { display: block; height: 12rem; object-fit: contain; width: 100%; }
small { color: GrayText; display: block; }
"""


class ShownAnswer(NamedTuple):
    """What a page shows of a query."""

    query: str  # in words
    hits: Sequence[Hit]
    note: str = ""  # what is to be said of the hits


def hit_page(answers: Sequence[ShownAnswer], thumbnail: Callable[[str, int], bytes | None]) -> Iterator[str]:
    """The lines of a page with the hits of each query; `thumbnail` gives the picture of an item."""
    title = escape(answers[0].query if len(answers) == 1 else f"{len(answers)} searches")
    yield '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title>\n<style>{STYLE}</style>"
    for query, hits, note in answers:
        yield f"<h1>{escape(query)}</h1>"
        yield f"<p>{escape(note)}</p>\n<ol>" if note else "<ol>"
        for hit in hits:
            yield _card(hit, thumbnail(hit.id, SIDE))
        yield "</ol>" if hits else "</ol>\n<p>Nothing found.</p>"
    yield "</html>"


def _card(hit: Hit, jpeg: bytes | None) -> str:
    name = escape(hit.id)
    parts = []
    if jpeg is not None:
        source = "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
        picture = f'<img src="{source}" alt="{name}" loading="lazy">'
        if hit.path is not None and not hit.missing and Path(hit.path).is_absolute():
            picture = f'<a href="{escape(Path(hit.path).as_uri())}">{picture}</a>'
        parts.append(f'<div class="picture">{picture}</div>')
    if hit.passage:
        parts.append(f"<p>{escape(hit.passage)}</p>")
    about = [f"{hit.rank}. {name}", "file not found"] if hit.missing else [f"{hit.rank}. {name}"]
    about += [] if hit.confidence is None else [f"confidence {hit.confidence:.2f}"]
    parts.append(f"<small>{', '.join([*about, f'similarity {hit.score:.2f}'])}</small>")
    return f"<li>{''.join(parts)}</li>"
