"""Fault 50: Ray Serve runs already and listens where others can reach it; nothing is served without a key."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="a cluster needs the extra `cluster`")

from genius.cluster import serving
from genius.cluster.serving import Deployment, deploy
from genius.cluster.session import ray_module
from genius.errors import BadInput
from genius.serve.access import AccessRules

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


@pytest.fixture
def public(ray: Any) -> Any:
    """Ray Serve on all addresses of this machine, as another application may have started it."""
    serve = ray_module("ray.serve")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve.start(http_options={"host": "0.0.0.0", "port": port})
    yield serve
    serve.shutdown()


def test_an_address_that_others_reach_needs_a_key(public: Any, plain: Path) -> None:
    """The address in force counts, not the one that was asked for."""
    with pytest.raises(BadInput, match=r"0\.0\.0\.0.*GENIUS_KEY"):
        deploy(Deployment(str(plain), host="127.0.0.1"), 0)
    assert not public.status().applications


def test_an_unknown_address_needs_a_key(ray: Any, plain: Path, monkeypatch: Any) -> None:
    with pytest.raises(BadInput, match="unknown address"):
        serving._refuse_without_key("", 0, None)
    serving._refuse_without_key("", 0, "a-key-of-some-length")
    serving._refuse_without_key("127.0.0.2", 8000, None)


def test_a_server_for_its_own_machine_answers_no_other() -> None:
    rules, headers = AccessRules(), {b"host": "localhost"}
    refused = rules.refusal("GET", "/v1/stats", headers, "192.168.1.7")
    assert refused is not None and refused.status == 403
    for client in ("127.0.0.1", "::1", None, "testclient"):
        assert rules.refusal("GET", "/v1/stats", headers, client) is None
    assert AccessRules(loopback=False).refusal("GET", "/v1/stats", headers, "192.168.1.7") is None
