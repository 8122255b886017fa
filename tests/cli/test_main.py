"""`genius` itself: version, help, completion, and defaults that are the same wherever they can be given."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import genius as package
from genius import Engine
from genius.cli import VERBS

OWN = ("index", "search", "remove", "stats", "check", "compact", "export", "import", "demo")


def test_version(genius):
    assert genius("--version") == (0, f"genius {package.__version__}\n", "")


@pytest.mark.parametrize("verb", VERBS)
def test_short_and_long_help(genius, verb):
    short, long = genius(verb, "-h"), genius(verb, "--help")
    assert short.code == 0 and short.out == long.out and f"genius {verb}" in short.out


@pytest.mark.parametrize("verb", OWN)
def test_the_options_of_a_verb_fit_on_a_screen(genius, verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = genius(verb, "-h").out.splitlines()
    most = 50 if verb in ("index", "search") else 25
    assert len(lines) <= most and max(map(len, lines)) <= 80


def test_completion_is_installed_for_the_shell(tmp_path):
    """In a home of its own; afterwards the shell completes verbs."""
    home = tmp_path / "home"
    home.mkdir()
    command = [sys.executable, "-m", "genius", "--install-completion"]
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    environment["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
    done = subprocess.run(
        [*command, "bash"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    scripts = list((home / ".bash_completions").glob("*.sh"))
    assert len(scripts) == 1 and "_GENIUS_COMPLETE=complete_bash" in scripts[0].read_text()
    assert str(scripts[0]) in (home / ".bashrc").read_text()


def default(function, name: str):
    return inspect.signature(function).parameters[name].default


def test_the_index_and_the_device_have_one_default():
    """Those of the search options are compared in tests/search."""
    device = {default(VERBS[verb], "device") for verb in ("index", "search", "serve")}
    assert device == {default(Engine.open, "device")} == {default(Engine.create, "device")}
    folder = {default(VERBS[v], "to" if v in ("index", "import") else "folder") for v in OWN if v != "demo"}
    assert folder == {Path("genius-index")}
