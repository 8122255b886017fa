"""Keeps the measured figures in README and docs equal to the JSON files they come from.

    python docs/figures.py            # print every figure that differs; exit code 1 if there is one
    python docs/figures.py --write    # put the present values into the pages

docs/figures.toml lists the figures: a page, a piece of its text with {} in place of each figure, and for
each {} where its value is.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
NUMBER = r"([-+]?\d[\d,]*(?:\.\d+)?)"


@dataclass(frozen=True)
class Difference:
    """A figure on a page that is not the one in its file."""

    page: str
    text: str
    shown: str
    measured: str
    span: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.page}: {self.text!r}: {self.shown} on the page, {self.measured} measured"


@cache
def _results(file: str) -> Any:
    return json.loads((RESULTS / file).read_text(encoding="utf-8"))


def lookup(place: str) -> float:
    """The number at `FILE > key > key`, as docs/figures.toml writes it."""
    file, *keys = (part.strip() for part in place.split(" > "))
    found = _results(file)
    for key in keys:
        found = _entry(found, key)
    return float(found)


def _entry(found: Any, key: str) -> Any:
    """What `key` names in an object or a list."""
    if isinstance(found, dict):
        return sum(found.values()) if key == "sum" else found[key]
    if key.startswith("max "):
        return max(one[key.removeprefix("max ")] for one in found)
    if "=" in key:
        wanted = dict(pair.split("=") for pair in key.split("&"))
        return next(one for one in found if all(str(one[name]) == value for name, value in wanted.items()))
    return found[int(key)]


def formatted(value: dict[str, Any]) -> str:
    """The value as the page shows it."""
    number = lookup(value["at"]) * value.get("times", 1)
    if "over" in value:
        number /= lookup(value["over"])
    if "digits" in value:
        number = float(f"{number:.{value['digits']}g}")
    return format(number, value.get("as", ",.0f"))


def figures() -> list[dict[str, Any]]:
    """All entries of docs/figures.toml."""
    return list(tomllib.loads((REPOSITORY / "docs" / "figures.toml").read_text(encoding="utf-8"))["figure"])


def spans(entry: dict[str, Any], text: str) -> list[tuple[int, int]]:
    """Where in the page's text the figures of an entry stand; raises ValueError unless there is one place."""
    words = [re.escape(word).replace(r"\{\}", NUMBER) for word in entry["text"].split()]
    found = list(re.finditer(r"\s+".join(words), text))
    if len(found) != 1:
        raise ValueError(f"{entry['page']}: {entry['text']!r} is there {len(found)} times, not once")
    count = len(entry["values"])
    if found[0].re.groups != count:
        raise ValueError(f"{entry['page']}: {entry['text']!r} has not {count} figures")
    return [found[0].span(number) for number in range(1, count + 1)]


def differences() -> list[Difference]:
    """Figures that are not the measured ones."""
    found = []
    for entry in figures():
        page = (REPOSITORY / entry["page"]).read_text(encoding="utf-8")
        for (start, end), value in zip(spans(entry, page), entry["values"], strict=True):
            shown, measured = page[start:end], formatted(value)
            if shown != measured:
                found.append(Difference(entry["page"], entry["text"], shown, measured, (start, end)))
    return found


def write(found: list[Difference]) -> None:
    """Put the measured figures into their pages."""
    for name in {one.page for one in found}:
        file = REPOSITORY / name
        page = file.read_text(encoding="utf-8")
        for one in sorted((one for one in found if one.page == name), key=lambda one: -one.span[0]):
            page = page[: one.span[0]] + one.measured + page[one.span[1] :]
        file.write_text(page, encoding="utf-8")


def main() -> None:
    """Compare, and with --write correct."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the measured figures into the pages")
    arguments = parser.parse_args()
    found = differences()
    for one in found:
        print(one)
    if arguments.write:
        write(found)
    elif found:
        sys.exit(1)


if __name__ == "__main__":
    main()
