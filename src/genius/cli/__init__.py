"""The command line: one verb, one function. A verb's file imports nothing heavy until it is called."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer

from genius.cli.convert import convert
from genius.cli.evaluate import evaluate
from genius.errors import GeniusError

# A new verb is one file in this folder and one entry here.
VERBS: dict[str, Callable[..., Any]] = {
    "convert": convert,
    "eval": evaluate,
}

app = typer.Typer(
    name="genius",
    help="Search pictures, texts and pairs of both by generating the identifiers of the answers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _name, _function in VERBS.items():
    app.command(_name)(_function)


@app.callback()
def _root() -> None:
    """Keeps `genius VERB` a group even with a single verb."""


def main() -> None:
    """Run the command line; a user's error is one line on stderr and its own exit code."""
    try:
        app()
    except GeniusError as error:
        print(f"genius: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
