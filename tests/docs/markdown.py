"""Code blocks and shell lines of Markdown pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "benchmarks" / "data" / "README.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
SHELL = ("", "sh")


class Block(NamedTuple):
    """A fenced block: its language, whether the page says that tests cannot run it, and its lines."""

    language: str
    skipped: bool
    text: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page; `<!-- not run: REASON -->` before one means that it is parsed only."""
    found = re.findall(r"^(<!-- not run: [^\n]+ -->\n)?```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [Block(language, bool(mark), text) for mark, language, text in found]


def shell_lines(text: str) -> list[str]:
    """The commands of a shell block, continued lines joined, without comments and here-documents."""
    plain = re.sub(r"<<'(\w+)'\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", plain).splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def inline_commands(page: str) -> list[str]:
    """Commands in the running text: `genius VERB ...`."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    return [re.sub(r"\s+", " ", one) for one in re.findall(r"`((?:genius|python|make) [a-z][^`]*)`", prose)]
