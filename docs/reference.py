"""Writes the signatures in docs/python.md and the routes in docs/http.md from the code.

Run `python docs/reference.py` after a change of either: it rewrites what lies between the marks.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import genius

DOCS = Path(__file__).resolve().parent
CLASSES = ("Engine", "Client", "Item", "Query", "Hit", "Modality")


def signatures() -> str:
    """Every public class of `genius` with its public methods, each with the first line of its docstring."""
    lines = []
    for name in CLASSES:
        kind = getattr(genius, name)
        lines += [f"**`{name}`**: {_summary(kind)}", ""]
        lines += [f"- {line}" for line in (*_fields(kind), *_methods(kind))]
        lines.append("")
    return "\n".join(lines)


def _fields(kind: Any) -> list[str]:
    if issubclass(kind, str):
        return [f"`{kind.__name__}.{member.name}` = `{str(member)!r}`" for member in kind]
    own = getattr(kind, "__dataclass_fields__", {})
    return [f"`{field.name}: {field.type}`" for field in own.values()]


def _methods(kind: Any) -> list[str]:
    found = []
    parts = [part for part in reversed(kind.__mro__) if part.__module__.startswith("genius")]
    for name, member in (pair for part in parts for pair in vars(part).items()):
        if name.startswith("_") and not (name == "__init__" and kind is genius.Client):
            continue
        function = member.__func__ if isinstance(member, classmethod) else member
        if isinstance(member, property):
            found.append(f"`{kind.__name__}.{name}`: {_summary(member)}")
        elif inspect.isfunction(function):
            called = kind.__name__ if name == "__init__" else f"{kind.__name__}.{name}"
            doc = "a client of the server at `url`." if name == "__init__" else _summary(function)
            found.append(f"`{called}{_signature(function)}`: {doc}")
    return found


def _signature(function: Any) -> str:
    """The parameters and the result as the source writes them, without self or cls and without `-> None`."""
    signature = inspect.signature(function)
    _, *parameters = signature.parameters.values()
    shown = []
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        default = "" if one.default is one.empty else f" = {one.default!r}"
        stars = "**" if one.kind is one.VAR_KEYWORD else ""
        shown.append(f"{stars}{one.name}: {one.annotation}{default}")
    result = signature.return_annotation
    return f"({', '.join(shown)})" + ("" if result == "None" else f" -> {result}")


def _summary(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def routes() -> str:
    """A table of all routes of the server."""
    from genius.serve.app import app_for
    from genius.serve.limits import Limits
    from genius.serve.metrics import Metrics

    backend: Any = SimpleNamespace(limits=Limits(), metrics=Metrics())
    paths = app_for(backend).openapi()["paths"]
    lines = ["| route | what it does |", "|---|---|"]
    for path, methods in paths.items():
        lines += [f"| `{method.upper()} {path}` | {about['summary']} |" for method, about in methods.items()]
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """The pages as they have to be."""
    parts = {DOCS / "python.md": ("signatures", signatures()), DOCS / "http.md": ("routes", routes())}
    return {file: _with(file.read_text(encoding="utf-8"), *part) for file, part in parts.items()}


def _with(page: str, mark: str, text: str) -> str:
    pattern = rf"(<!-- {mark} -->\n).*?(<!-- end -->)"
    written, count = re.subn(pattern, lambda found: found[1] + text + found[2], page, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"a page has {count} places for {mark}, not one")
    return written


if __name__ == "__main__":
    for file, text in pages().items():
        file.write_text(text, encoding="utf-8")
