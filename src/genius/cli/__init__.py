"""The command line: one verb, one function. A verb's file imports nothing heavy until it is called."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer

from genius.cli import streams
from genius.cli.bench import bench, report
from genius.cli.calibrate import calibrate
from genius.cli.convert import convert
from genius.cli.demo import demo
from genius.cli.duplicates import duplicates
from genius.cli.evaluate import ablate, evaluate
from genius.cli.fit import fit
from genius.cli.index import index
from genius.cli.list import list_items
from genius.cli.manage import check, compact, export, import_, remove, stats
from genius.cli.mcp import mcp
from genius.cli.plot import plot
from genius.cli.search import search
from genius.cli.serve import serve
from genius.cli.settings import option_defaults, settings_file
from genius.cli.train import train
from genius.errors import BadInput, GeniusError, StorageError

# A new verb is one file in this folder and one entry here.
VERBS: dict[str, Callable[..., Any]] = {
    "index": index,
    "search": search,
    "list": list_items,
    "duplicates": duplicates,
    "serve": serve,
    "mcp": mcp,
    "remove": remove,
    "stats": stats,
    "check": check,
    "compact": compact,
    "fit": fit,
    "export": export,
    "import": import_,
    "demo": demo,
    "train": train,
    "eval": evaluate,
    "calibrate": calibrate,
    "ablate": ablate,
    "bench": bench,
    "report": report,
    "plot": plot,
    "convert": convert,
}

app = typer.Typer(
    name="genius",
    help="Search images, texts and image-text pairs with any of them.",
    epilog=(
        "Exit codes: 0 done; 1 anything not named here; 2 bad input or option; 3 model missing or unfit; "
        "4 an extra is not installed; "
        "5 no index; 6 index damaged; 7 index in use; 8 index of another model or version; 9 disk refused; "
        "10 training cannot go on; 11 the cluster gave up; 130 Ctrl-C; 143 terminated."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: short, quick, and the same in a pipe
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _function in VERBS.items():
    app.command(_name)(_function)


BAD_PATHS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)


def _version(wanted: bool) -> None:
    if wanted:
        from genius import __version__

        print(f"genius {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of `genius` itself; each verb has its own."""


def main() -> None:
    """Run the command line; a user's error is one line on stderr and its own exit code.

    Ctrl-C ends with 130 and SIGTERM with 143, after transactions are rolled back and files let go.
    """
    signal.signal(signal.SIGTERM, _terminated)
    streams.guard()
    code = _exit_code(_run)
    sys.exit(code or _exit_code(streams.flush))


def _run() -> None:
    """Run the verb, with the defaults of genius.toml."""
    program = _program()
    program(prog_name="genius", default_map=option_defaults(settings_file(), program.commands))


@cache
def _program() -> Any:
    """All verbs with their options; Typer takes a tenth of a second to make it."""
    return typer.main.get_command(app)


def _exit_code(work: Callable[[], object]) -> int:
    """Do the work; the exit code that tells how it ended, the reason on stderr."""
    try:
        work()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            streams.complain(ended.code)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except streams.OutputLost as error:
        if not error.reader_left:
            streams.complain(str(error))
        streams.abandon()
        return error.exit_code
    except GeniusError as error:
        streams.complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except RecursionError:
        streams.complain("the input is nested too deeply: flatten it")
        return BadInput.exit_code
    except RuntimeError as error:
        if "home directory" not in str(error):
            raise
        streams.complain("there is no home directory: set HOME to a folder that can be written")
        return BadInput.exit_code
    except MemoryError:
        streams.complain("not enough memory: use smaller input, or a machine with more")
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        streams.complain(f"{where}{error.strerror or error}")
        if isinstance(error, ConnectionError):
            return 1
        return BadInput.exit_code if error.errno in BAD_PATHS else StorageError.exit_code
    return 0


def _terminated(number: int, _: object) -> None:
    sys.exit(128 + number)
