"""One HTML file with all pictures and tables in it; nothing is fetched when it is opened."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass, field

from genius.evaluate.report.tables import Table

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #22262b; background: #fff;
  max-width: 1100px; margin: 2.5rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; }
h2 { font-size: 1.15rem; margin-top: 2.4rem; }
figure { margin: 1.4rem 0; }
img { max-width: 100%; }
figcaption, ul { color: #6b7280; font-size: .87rem; }
ul { padding-left: 1.1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e5e7eb; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
th { border-bottom: 2px solid #22262b; }
tr.sum td { font-weight: 600; }
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG with what it shows."""

    name: str  # of its file, without ending
    caption: str
    png: bytes


@dataclass(slots=True)
class Section:
    """A heading with tables and pictures under it."""

    title: str
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)


def report(title: str, sections: Sequence[Section]) -> str:
    """The whole page."""
    body = "".join(_section(section) for section in sections if section.tables or section.pictures)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n{body}</body></html>\n"
    )


def _section(section: Section) -> str:
    tables = "".join(map(_table, section.tables))
    pictures = "".join(map(_picture, section.pictures))
    return f"<h2>{html.escape(section.title)}</h2>\n{tables}{pictures}"


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.header)
    lines = []
    for number, line in enumerate(table.lines):
        sums = ' class="sum"' if number >= len(table.lines) - table.footer else ""
        lines.append(f"<tr{sums}>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>")
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in table.notes)
    return (
        f'<p><strong>{html.escape(table.title)}</strong></p><div class="wide"><table><thead><tr>{head}</tr>'
        f"</thead><tbody>{''.join(lines)}</tbody></table></div>{f'<ul>{notes}</ul>' if notes else ''}\n"
    )


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    caption = html.escape(picture.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )
