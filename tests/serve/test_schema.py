"""Fault 25: whatever the OpenAPI document allows, or just about does not, is answered without a 500."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from genius.engine import Engine

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed (extra `dev`)")

OPERATIONS = [
    ("POST", "/v1/search"),
    ("POST", "/v1/items"),
    ("GET", "/v1/items"),
    ("GET", "/v1/items/{id}"),
    ("PATCH", "/v1/items/{id}"),
    ("DELETE", "/v1/items/{id}"),
    ("GET", "/v1/items/{id}/thumbnail"),
    ("GET", "/v1/items/{id}/original"),
    ("GET", "/v1/codes"),
    ("GET", "/v1/stats"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
]
LONGEST_ADDRESS = 60_000  # characters; uvicorn refuses a head of 64 KiB by itself, in plain text
CHECKS = (
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
)


@pytest.fixture(scope="module")
def document(tmp_path_factory, fake, module_kit):
    with Engine.create(tmp_path_factory.mktemp("schema") / "index", fake.FakeModel()) as engine:
        engine.add(module_kit.colours(fake)[:9])
        with module_kit.live(engine) as running:
            yield schemathesis.openapi.from_url(f"{running.url}/openapi.json")


def test_all_operations_are_tested(document):
    found = {(one.ok().method.upper(), one.ok().path) for one in document.get_all_operations()}
    assert found == set(OPERATIONS)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_request_is_answered_with_a_500(document, method, path):
    operation = document[path][method]
    modes = schemathesis.GenerationMode
    allowed, others = (
        operation.as_strategy(generation_mode=mode) for mode in (modes.POSITIVE, modes.NEGATIVE)
    )
    if not operation.body and not any(operation.iter_parameters()):
        ask_all(operation, allowed)
        return
    try:
        ask_all(operation, st.one_of(allowed, others))
    except ValueError as error:  # of schemathesis, which at times cannot check the bytes that it has made
        if "Unsupported type" not in str(error):
            raise
        ask_all(operation, allowed)


def ask_all(operation, cases):
    """Send some cases; each answer has to be one that the document describes."""

    @settings(
        max_examples=25 if operation.body else 12,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def ask(case):
        assume(len(urlencode(case.query or {}, doseq=True)) < LONGEST_ADDRESS)
        case.call_and_validate(checks=CHECKS)

    ask()
