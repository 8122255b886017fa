"""Answers of `genius search`: printed, as paths for other programs, or as a page in the browser."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from genius.cli.facets import facet_lines, facet_values
from genius.cli.hit_page import ShownAnswer, hit_page
from genius.cli.output import HitFormat, hit_fields, hit_lines, say
from genius.cli.pictures import protocol, terminal_picture

if TYPE_CHECKING:
    from genius.query.result import SearchResult
    from genius.types import Hit, Query

Thumbnail = Callable[[str, int], bytes | None]
SHOWN_TO_PEOPLE = (HitFormat.TABLE, HitFormat.HTML)
NOTHING_CLOSE = "nothing close was found; the nearest are"
SIDE = 256  # pixels of a picture in the terminal


class Answer(NamedTuple):
    """A query and what was found."""

    query: Query
    result: SearchResult

    @property
    def name(self) -> str:
        """The query in words."""
        image = self.query.image
        parts = [self.query.text, str(image) if isinstance(image, str | Path) else None]
        return ", ".join(filter(None, parts)) or "a vector"

    @property
    def shown(self) -> ShownAnswer:
        """What a page shows of it."""
        note = f"{NOTHING_CLOSE}:" if self.result.nearest else ""
        return ShownAnswer(self.name, self.hits(HitFormat.HTML), note[:1].upper() + note[1:])

    def hits(self, form: HitFormat) -> Sequence[Hit]:
        """The hits to show: to people also the nearest, where none is sure enough."""
        return self.result.nearest or self.result.hits if form in SHOWN_TO_PEOPLE else self.result.hits


def print_answers(
    answers: Sequence[Answer], form: HitFormat, pictures: Thumbnail | None, thumbnail: Thumbnail
) -> None:
    """Print the hits of all queries; `pictures`, where given, are shown in the terminal."""
    far = sum(bool(answer.result.nearest) for answer in answers)
    many = len(answers) > 1 or answers[0].query.id is not None
    if far and not (many and form is HitFormat.TABLE):
        rest = "; the nearest are:" if form in SHOWN_TO_PEOPLE else ": lower --at-least, or leave it out"
        say(f"nothing close was found{f' for {far} of {len(answers)} queries' if many else ''}{rest}")
    if form is HitFormat.HTML:
        for line in hit_page([answer.shown for answer in answers], thumbnail):
            print(line)
    elif many and form in (HitFormat.JSON, HitFormat.JSONL):
        _print_many(answers, form)
    else:
        for answer in answers:
            _print_one(answer, form, many, pictures)


def _print_one(answer: Answer, form: HitFormat, many: bool, pictures: Thumbnail | None) -> None:
    hits, facets = answer.hits(form), answer.result.facets
    if facets and form is HitFormat.JSON:
        fields = {"hits": [hit_fields(hit) for hit in hits], "facets": facet_values(facets)}
        print(json.dumps(fields, indent=2))
        return
    if many and form is HitFormat.TABLE:
        print(f"{answer.query.id}: {answer.name}")
        if answer.result.nearest:
            print(f"{NOTHING_CLOSE}:")
    if pictures is not None and form is HitFormat.TABLE:
        how = protocol(os.environ)
        for hit in hits:
            jpeg = pictures(hit.id, SIDE)
            if jpeg is not None:
                sys.stdout.write(terminal_picture(jpeg, how))
            for line in list(hit_lines([hit], form))[1:]:
                print(line)
    else:
        for line in hit_lines(hits, form, answer.query.id or "1"):
            print(line)
    for line in facet_lines(facets):
        print(line)


def _print_many(answers: Sequence[Answer], form: HitFormat) -> None:
    """Hits of several queries as JSON: lists by query, or one line per hit that names its query."""
    if form is HitFormat.JSON:
        every: list[dict[str, Any]] = [
            {"query": answer.query.id, "hits": [hit_fields(hit) for hit in answer.hits(form)]}
            for answer in answers
        ]
        print(json.dumps(every, indent=2))
        return
    for answer in answers:
        for hit in answer.hits(form):
            print(json.dumps({"query": answer.query.id, **hit_fields(hit)}))


def print_paths(answers: Sequence[Answer]) -> None:
    """The files of all hits as the file system spells them, each ended by NUL."""
    files = [hit.path for answer in answers for hit in answer.result.hits if hit.path is not None]
    data = b"".join(os.fsencode(file) + b"\0" for file in files)
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def open_page(answers: Sequence[Answer], thumbnail: Thumbnail) -> None:
    """Write the hits as a page to a temporary file, and open it in the browser."""
    import tempfile
    import webbrowser

    shown = [answer.shown for answer in answers]
    with tempfile.NamedTemporaryFile(
        "w", prefix="genius-", suffix=".html", delete=False, encoding="utf-8"
    ) as file:
        file.writelines(line + "\n" for line in hit_page(shown, thumbnail))
    if not webbrowser.open(Path(file.name).as_uri()):
        say("no browser was found: open this file yourself")
    print(file.name)
