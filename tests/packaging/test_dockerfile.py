"""The Dockerfile names files, extras and options that exist. (No engine is needed to check that.)"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer.main

from genius.cli import app

REPOSITORY = Path(__file__).parents[2]
TEXT = re.sub(r"\\\n\s*", "", (REPOSITORY / "Dockerfile").read_text())
LINES = [line.split(None, 1) for line in TEXT.splitlines() if line and not line.startswith("#")]
KNOWN = {
    "FROM",
    "WORKDIR",
    "COPY",
    "RUN",
    "ARG",
    "USER",
    "ENV",
    "VOLUME",
    "EXPOSE",
    "HEALTHCHECK",
    "ENTRYPOINT",
    "CMD",
}


def arguments(word: str) -> list[str]:
    return [rest for name, rest in LINES if name == word]


def copied() -> list[str]:
    words = [shlex.split(rest) for rest in arguments("COPY") if "--from=" not in rest]
    return [source for each in words for source in each[:-1]]


def test_every_instruction_is_one_of_docker():
    assert {name for name, _ in LINES} <= KNOWN
    assert LINES[0][0] == "FROM"


def test_what_is_copied_exists_and_is_not_ignored():
    kept = [
        line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")
    ]
    for source in copied():
        assert (REPOSITORY / source).exists()
        assert any(fnmatch.fnmatch(source, pattern) for pattern in kept)


def test_the_wheel_gets_all_that_its_build_reads():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    forced = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert set(forced["wheel"]["force-include"]) <= set(copied())
    assert {"pyproject.toml", "src", project["readme"], *project["license-files"]} <= set(copied())


def test_stages_that_are_copied_from_are_built():
    built = {rest.split(" AS ")[1] for rest in arguments("FROM") if " AS " in rest}
    assert set(re.findall(r"--from=(\w+)", TEXT)) <= built


def test_extras_exist():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    (extra,) = re.findall(r"genius-search\[(\w+)\]", TEXT)
    assert extra in project["optional-dependencies"]


def test_command_is_understood_and_opens_the_exposed_port():
    (entry,), (command,) = arguments("ENTRYPOINT"), arguments("CMD")
    program, verb, *words = json.loads(entry) + json.loads(command)
    assert program == "genius"
    values = typer.main.get_command(app).commands[verb].make_context(verb, words).params
    assert str(values["port"]) == arguments("EXPOSE")[0]
    assert values["host"] == "0.0.0.0"


def test_health_check_asks_a_route_that_exists():
    pytest.importorskip("fastapi", reason="the server needs the extra `serve`")
    import genius.serve

    (path,) = re.findall(r"127\.0\.0\.1:8000(/\w+)", arguments("HEALTHCHECK")[0])
    sources = Path(genius.serve.__file__).parent.glob("*.py")
    assert any(f'"{path}"' in source.read_text() for source in sources)


def test_it_does_not_run_as_root():
    assert arguments("USER") == ["genius"]
