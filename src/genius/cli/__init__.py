"""The command line: one verb, one function. A verb's file imports nothing heavy until it is called."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

import typer

from genius.cli.bench import bench, report
from genius.cli.convert import convert
from genius.cli.demo import demo
from genius.cli.evaluate import ablate, evaluate
from genius.cli.index import index
from genius.cli.manage import check, compact, export, import_, remove, stats
from genius.cli.plot import plot
from genius.cli.search import search
from genius.cli.serve import serve
from genius.cli.train import train
from genius.errors import GeniusError

# A new verb is one file in this folder and one entry here.
VERBS: dict[str, Callable[..., Any]] = {
    "index": index,
    "search": search,
    "serve": serve,
    "remove": remove,
    "stats": stats,
    "check": check,
    "compact": compact,
    "export": export,
    "import": import_,
    "demo": demo,
    "train": train,
    "eval": evaluate,
    "ablate": ablate,
    "bench": bench,
    "report": report,
    "plot": plot,
    "convert": convert,
}

app = typer.Typer(
    name="genius",
    help="Search pictures, texts and pairs of both by generating the identifiers of the answers.",
    epilog=(
        "Exit codes: 0 done; 1 anything not named here; 2 bad input or option; 3 model missing or unfit; "
        "4 an extra is not installed; "
        "5 no index; 6 index damaged; 7 index in use; 8 index of another model or version; 9 disk refused; "
        "10 training cannot go on; 11 the cluster gave up; 130 Ctrl-C; 143 terminated."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _name, _function in VERBS.items():
    app.command(_name)(_function)


@app.callback()
def _root() -> None:
    """Keeps `genius VERB` a group even with a single verb."""


def main() -> None:
    """Run the command line; a user's error is one line on stderr and its own exit code.

    Ctrl-C ends with 130 and SIGTERM with 143, after transactions are rolled back and files let go.
    """
    signal.signal(signal.SIGTERM, _terminated)
    try:
        app(prog_name="genius")
    except GeniusError as error:
        from genius.data.report import printable

        print("\n".join(printable(line) for line in f"genius: {error}".split("\n")), file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _terminated(number: int, _: object) -> None:
    sys.exit(128 + number)
