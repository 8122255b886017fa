"""Every command in README, docs and recipes is one that exists, with values that it accepts.

Commands that tests/docs/test_pages.py can run are also run there.
"""

from __future__ import annotations

import ast
import re
import runpy
import shlex
import tomllib
from collections.abc import Callable
from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest
import typer.main

from genius.cli import app
from genius.config import load_recipe
from genius.errors import BadInput, GeniusError
from genius.types import Modality

MARKDOWN = runpy.run_path(str(Path(__file__).with_name("markdown.py")))
REPOSITORY: Path = MARKDOWN["REPOSITORY"]
PROGRAM: Any = typer.main.get_command(app)
SHELL_ONLY = {"cat", "chmod", "echo", "rm", "sudo"}  # what every system has


def _lines() -> list[tuple[str, str]]:
    found = []
    for page in MARKDOWN["PAGES"]:
        for block in MARKDOWN["blocks"](page.read_text(encoding="utf-8")):
            if block.language in MARKDOWN["SHELL"]:
                found += [(page.name, line) for line in MARKDOWN["shell_lines"](block.text)]
    for recipe in sorted((REPOSITORY / "recipes").glob("*.toml")):
        lines = re.findall(r"^#   ((?:genius|torchrun|python|make) .*)$", recipe.read_text(), re.MULTILINE)
        found += [(recipe.name, re.sub(r"  +[a-z(].*$", "", line)) for line in lines]
    return list(dict.fromkeys(found))


def _docstrings() -> list[tuple[str, str]]:
    """The commands at the head of modules and scripts, each on a line of its own."""
    found = []
    for folder in ("src", "benchmarks", "docs"):
        for file in sorted((REPOSITORY / folder).rglob("*.py")):
            told = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")), clean=False) or ""
            lines = re.findall(r"^ {4}((?:genius|torchrun|python|make) .*)$", told, re.MULTILINE)
            found += [(file.name, re.split(r"  +", line)[0]) for line in lines]
    return list(dict.fromkeys(found))


def _inline() -> list[tuple[str, str]]:
    pages = ((page.name, page.read_text(encoding="utf-8")) for page in MARKDOWN["PAGES"])
    return list(
        dict.fromkeys((name, one) for name, text in pages for one in MARKDOWN["inline_commands"](text))
    )


def understood(line: str) -> None:
    """Raise unless the command, its options and the values of its arguments are right."""
    words = shlex.split(line, comments=True)
    words = list(takewhile(lambda word: word not in ("|", ">", "&"), words))
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):  # variables before the command
        words = words[1:]
    program, *rest = words
    if program in SHELL_ONLY:
        return
    if program not in CHECKS:
        raise BadInput(f"no check knows the program {program!r}: add one to this test")
    CHECKS[program](rest)


def _genius(words: list[str]) -> None:
    verb, *rest = words
    if verb.startswith("--"):
        PROGRAM.make_context("genius", words, resilient_parsing=True)
        assert any(verb in option.opts for option in PROGRAM.params), f"genius has no option {verb}"
        return
    if verb not in PROGRAM.commands:
        raise BadInput(f"genius has no verb {verb!r}")
    try:
        values = PROGRAM.commands[verb].make_context(verb, rest).params
    except Exception as error:
        raise BadInput(str(error)) from error
    if verb in VALUES:
        VALUES[verb](values)


def _recipe(values: dict[str, Any]) -> None:
    load_recipe(REPOSITORY / values["recipe"], values["set_"] or ())


def _stage(values: dict[str, Any]) -> None:
    from genius.pipeline.stages import stages_to_train

    recipe = load_recipe(REPOSITORY / values["recipe"], values["set_"] or ())
    stages_to_train(recipe, values["stage"].value)


def _kind(values: dict[str, Any]) -> None:
    from genius.cli.convert import KINDS, WHOLE

    if values["kind"] not in (*KINDS, WHOLE):
        raise BadInput(f"genius convert knows no {values['kind']!r}")


def _want(values: dict[str, Any]) -> None:
    if values["want"] != "any" and " " not in values["want"]:
        Modality.parse(values["want"])


def _export(values: dict[str, Any]) -> None:
    if not str(values["to"]).endswith((".jsonl", ".tar")) and str(values["to"]) != "-":
        raise BadInput(f"genius export writes no {values['to']}")


def _model(values: dict[str, Any]) -> None:
    from genius.model import MODELS

    name = values.get("model") or "mini"
    if "/" not in name and not (MODELS / name).is_dir():
        raise BadInput(f"no model is called {name}")


def _systems(values: dict[str, Any]) -> None:
    from genius.evaluate.systems import system_names

    system_names(values["systems"])
    _model(values)


def _serve(values: dict[str, Any]) -> None:
    from genius.serve.access import check_key

    check_key(values["host"], "a-key-from-that-file" if values["key_file"] else None)


VALUES: dict[str, Callable[[dict[str, Any]], None]] = {
    "train": _stage,
    "convert": _kind,
    "search": _want,
    "export": _export,
    "index": _model,
    "ablate": _recipe,
    "eval": _systems,
    "bench": _systems,
    "report": _systems,
    "serve": _serve,
}


def _torchrun(words: list[str]) -> None:
    from torch.distributed.run import parse_args

    arguments = parse_args(words)
    assert arguments.module and arguments.training_script == "genius"
    _genius(arguments.training_script_args)


def _python(words: list[str]) -> None:
    script, *rest = words
    if script in ("-m", "-c"):
        return
    source = (REPOSITORY / script).read_text(encoding="utf-8")
    for helper in re.findall(r"^from (_[a-z]\w*) import", source, re.MULTILINE):
        source += (REPOSITORY / script).with_name(f"{helper}.py").read_text(encoding="utf-8")
    for word in rest:
        if word.startswith("--"):
            name = word.split("=")[0]
            parameter = (
                rf"\b{name[2:].replace('-', '_')}: [^\n]+"  # benchmarks/_harness.py makes options of them
            )
            assert f'"{name}"' in source or re.search(parameter, source), f"{script} has no option {word}"


def _make(words: list[str]) -> None:
    targets = re.findall(r"^(\w+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    for word in words:
        if "=" not in word:
            assert word in targets, f"make has no target {word}"
    for demo in (word.removeprefix("ARGS=") for word in words if word.startswith("ARGS=")):
        _genius(["demo", *shlex.split(demo)])


def _pip(words: list[str]) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert words[0] == "install"
    for name, extras in re.findall(r"(genius-search|\.)\[([\w,]+)\]", " ".join(words)):
        assert name and set(extras.split(",")) <= set(project["optional-dependencies"])


def _docker(words: list[str]) -> None:
    """The words after the image `genius` are a command line of genius."""
    if words[0] == "run" and words[words.index("genius") + 1 :]:
        _genius(words[words.index("genius") + 1 :])
    if words[0] == "build":
        names = [word.split("=")[0] for before, word in pairwise(words) if before == "--build-arg"]
        assert all(f"ARG {name}" in (REPOSITORY / "Dockerfile").read_text() for name in names)


def _curl(words: list[str]) -> None:
    """The path is a route of the server; the method is one of its methods."""
    pytest.importorskip("fastapi", reason="the server needs the extra `serve`")
    (url,) = (word for word in words if re.search(r"(localhost|example\.org)(:\d+)?/", word))
    path = re.sub(r"^.*?(localhost|example\.org)(:\d+)?", "", url).split("?")[0]
    sends = any(word in ("-d", "-F", "--data") for word in words)
    method = words[words.index("-X") + 1] if "-X" in words else "POST" if sends else "GET"
    assert any(re.fullmatch(pattern, path) and method in methods for pattern, methods in _routes())


@cache
def _routes() -> list[tuple[str, set[str]]]:
    from types import SimpleNamespace

    from genius.serve import app as server
    from genius.serve.limits import Limits
    from genius.serve.metrics import Metrics

    backend: Any = SimpleNamespace(limits=Limits(), metrics=Metrics())
    paths = server.app_for(backend).openapi()["paths"]
    return [
        (re.sub(r"\{\w+\}", "[^/]+", path), {verb.upper() for verb in verbs}) for path, verbs in paths.items()
    ]


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "genius": _genius,
    "torchrun": _torchrun,
    "python": _python,
    "make": _make,
    "pip": _pip,
    "docker": _docker,
    "curl": _curl,
}


@pytest.mark.parametrize(("page", "line"), _lines())
def test_command_is_understood(page, line):
    understood(line)


@pytest.mark.parametrize(("file", "line"), _docstrings())
def test_command_in_a_docstring_is_understood(file, line):
    understood(line)


@pytest.mark.parametrize(("page", "line"), _inline())
def test_command_in_the_text_names_verbs_scripts_and_options_that_exist(page, line):
    program, *words = shlex.split(line)
    if program != "genius":
        CHECKS[program](words)
        return
    verb, *rest = words
    assert verb in PROGRAM.commands, f"genius has no verb {verb!r}"
    command = PROGRAM.commands[verb]
    options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    assert {word.split("=")[0] for word in rest if word.startswith("--")} <= options | {"--help"}
    if "--data" in rest:  # a whole command
        understood(line)


@pytest.mark.parametrize(
    "line",
    [
        "genius convert genius-decoder GENIUS_t5small.pth --to published",  # a kind that does not exist
        "genius export --in my-index --to my-index.tar",  # an option that does not exist
        "genius train all recipes/mbeir.toml --set data.rot=M-BEIR",  # a key that no recipe has
        "genius train all recipes/nothing.toml",
        "genius train encoder recipes/mbeir.toml --set data.root=M-BEIR",  # a stage that it does not have
        "genius search x --want images",
        "genius search x --rerank vector",
        "genius bench --data M-BEIR --model nothing",
        "genius eval --data M-BEIR --systems ours,nothing",
        "genius serve --host 0.0.0.0",  # without a key
        "torchrun --nproc 4 -m genius train all recipes/none.toml",
        "python benchmarks/nothing.py",
        "python benchmarks/speed.py --fases lookup",
        "make everything",
        "pip install 'genius-search[everything]'",
        "curl -s localhost:8000/v1/find -d '{}'",
        "conda install genius",
    ],
)  # fmt: skip
def test_wrong_command_is_noticed(line):
    with pytest.raises((GeniusError, AssertionError, OSError, SystemExit)):
        understood(line)


def test_unit_of_systemd_starts_a_server():
    page = (REPOSITORY / "docs" / "deploy.md").read_text(encoding="utf-8")
    (unit,) = (block.text for block in MARKDOWN["blocks"](page) if block.language == "ini")
    (line,) = re.findall(r"^ExecStart=\S*/(genius serve .*)$", unit, re.MULTILINE)
    understood(line)


def test_readme_shows_all_that_a_newcomer_needs():
    verbs = {
        shlex.split(line, comments=True)[1]
        for page, line in _lines()
        if page == "README.md" and line.startswith("genius ")
    }
    assert {"index", "search", "remove", "check", "serve", "train", "eval", "convert"} <= verbs
