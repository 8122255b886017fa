"""One set of defaults for a search: library, command line, server, client and models agree."""

from __future__ import annotations

import enum
import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from genius.cli.search import Method as MethodChoice
from genius.cli.search import Rerank as RerankChoice
from genius.cli.search import search as search_command
from genius.client import Client
from genius.engine import Engine
from genius.query.defaults import default_options, describe_options, widened
from genius.search.options import Method, Rerank, SearchOptions
from genius.search.plan import plan_search
from genius.serve.schemas import SearchRequest

ROOT = Path(__file__).parent.parent.parent
MODELS = sorted((ROOT / "src" / "genius" / "models").glob("*/model.toml"))
RECIPES = sorted((ROOT / "recipes").rglob("*.toml"))
DOORS: dict[str, Callable[..., Any]] = {
    "Engine.search": Engine.search,
    "Engine.search_batch": Engine.search_batch,
    "Client.search": Client.search,
    "Client.search_batch": Client.search_batch,
    "genius search": search_command,
}


@pytest.mark.parametrize("name", DOORS)
def test_callers_who_choose_nothing_get_the_model_s_options(name: str) -> None:
    parameters = inspect.signature(DOORS[name]).parameters
    method = parameters.get("search") or parameters["method"]
    assert [method.default, parameters["rerank"].default, parameters["beam"].default] == [None] * 3
    assert parameters["k"].default == SearchOptions().k


def test_requests_that_choose_nothing_get_the_model_s_options() -> None:
    request = SearchRequest(text="a red bicycle")
    assert (request.search, request.rerank, request.beam) == (None, None, None)


def test_every_door_knows_the_same_methods_and_re_rankings() -> None:
    def values(kind: type[enum.Enum]) -> list[str]:
        return sorted(one.value for one in kind)

    assert values(MethodChoice) == sorted(get_args(Method))
    assert values(RerankChoice) == sorted(get_args(Rerank))
    fields = SearchRequest.model_fields
    for name, literal in (("search", Method), ("rerank", Rerank)):
        choices = {choice for option in get_args(fields[name].annotation) for choice in get_args(option)}
        assert choices == set(get_args(literal))


@pytest.mark.parametrize("file", [*MODELS, *RECIPES], ids=lambda file: f"{file.parent.name}/{file.name}")
def test_search_tables_are_options(file: Path) -> None:
    table = tomllib.loads(file.read_text(encoding="utf-8")).get("search", {})
    for vectors in (True, False):
        options = SearchOptions(**default_options(table, vectors=vectors))
        assert options.rerank != "vectors" or vectors
        assert {name: getattr(options, name) for name in table.keys() - {"rerank"}} == {
            name: value for name, value in table.items() if name != "rerank"
        }


@pytest.mark.parametrize(("items", "beam"), [(0, 200), (100_000, 200), (100_001, 800), (10**9, 800)])
def test_the_default_beam_grows_with_the_collection_and_as_many_are_reranked(items: int, beam: int) -> None:
    options = widened(SearchOptions(beam=200, rerank="vectors"), items)
    plan = plan_search(options, gpu=False)
    assert plan.beam == beam
    assert plan.rerank is not None and plan.rerank.limit == 800
    assert describe_options({"beam": 200}, vectors=True, items=items)["beam"] == beam
    chosen = SearchOptions(beam=200, rerank="vectors", reranked=300)
    assert widened(chosen, items).reranked == 300


def test_a_wider_beam_is_for_embeddings_alone() -> None:
    """Codes tell the items apart or not; the decoder's beam is what it was trained for."""
    assert widened(SearchOptions(rerank="codes"), 10**9) == SearchOptions(rerank="codes")
    assert widened(SearchOptions(rerank="none"), 10**9) == SearchOptions(rerank="none")
    decoder = SearchOptions(method="generate", rerank="vectors")
    assert widened(decoder, 10**9) == decoder
