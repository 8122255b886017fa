"""Every `genius` command that the README shows is one that the command line understands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from genius.cli import app

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
LINES = sorted({line.removeprefix("$ ") for kind, block in BLOCKS if not kind for line in block.splitlines()})
COMMANDS = [line for line in LINES if line.startswith("genius ")]


def parsed(command: str) -> dict[str, object]:
    """What the verb of a command would be called with."""
    program = typer.main.get_command(app)
    _, verb, *words = shlex.split(command, comments=True)
    return program.commands[verb].make_context(verb, words).params


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_is_understood(command):
    assert parsed(command)


def test_a_wrong_command_is_not():
    with pytest.raises(Exception, match="--to"):
        parsed("genius export --in my-index --to my-index.tar")


def test_the_tour_is_there():
    verbs = {shlex.split(command, comments=True)[1] for command in COMMANDS}
    assert {"index", "search", "remove", "compact", "check", "export", "import", "stats", "serve"} <= verbs
