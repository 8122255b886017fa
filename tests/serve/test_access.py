"""Fault 48: preflight with a key, any loopback address, malformed Host and Origin, other sites' pages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fastapi.testclient import TestClient

from genius.client import Client
from genius.serve.app import create_app
from genius.serve.run import listen, make_server

KEY = "a-key-of-some-length"
FRIEND = "https://friend.example"


@contextmanager
def client_of(engine, **options) -> Iterator[TestClient]:
    with TestClient(create_app(engine, **options), base_url="http://localhost") as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        yield client


@pytest.mark.parametrize("path", ["/v1/search", "/v1/items", "/v1/items/red"])
def test_a_page_of_an_allowed_site_asks_with_the_key(engine, path):
    """A browser sends the preflight without the key, then the request with it."""
    with client_of(engine, key=KEY, origins=[FRIEND]) as client:
        preflight = {
            "Origin": FRIEND,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        allowed = client.options(path, headers=preflight)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == FRIEND
        assert "authorization" in allowed.headers["access-control-allow-headers"]
        assert client.options(path, headers={**preflight, "Origin": "https://x.example"}).status_code == 403
        assert client.options(path, headers={"Origin": FRIEND}).status_code == 401, "no preflight"
        asked = {"Origin": FRIEND, "Authorization": f"Bearer {KEY}"}
        answer = client.post("/v1/search", json={"text": "red"}, headers=asked)
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == FRIEND
        refused = client.post("/v1/search", json={"text": "red"}, headers={"Origin": FRIEND})
        assert refused.status_code == 401, "the preflight opens nothing"
        assert refused.headers["access-control-allow-origin"] == FRIEND, "its page can read why"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_every_loopback_address_answers_to_its_name(engine, kit, host):
    import threading

    try:
        listening = listen(host, 0)
    except Exception as error:  # a machine without IPv6
        pytest.skip(str(error))
    address, port = listening.getsockname()[:2]
    server = make_server(engine, address)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        kit.wait_until(lambda: server.config.app.state.backend.status == "ready")
        name = f"[{host}]" if ":" in host else host
        with Client(f"http://{name}:{port}") as client:
            assert client.stats()["items"] == 31
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()


@pytest.mark.parametrize("host", ["[", "]", "[::1", "a@localhost", "localhost/x", "[v1.x]"])
def test_a_malformed_host_is_refused(serving, host):
    with serving() as live:
        head = f"GET /v1/stats HTTP/1.1\nHost: {host}\nConnection: close"
        assert live.ask(head)[0] in (400, 421)


@pytest.mark.parametrize("loopback", [True, False])
@pytest.mark.parametrize(
    "origin", ["http://[", "null", "", "http://]", "//", "http://localhost@evil.example"]
)
def test_a_malformed_origin_is_refused(engine, origin, loopback):
    with client_of(engine, loopback=loopback, key=KEY) as client:
        headers = {"Origin": origin, "Authorization": f"Bearer {KEY}"}
        assert client.get("/v1/stats", headers=headers).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_cannot_load_pictures(engine, site):
    """An <img> sends no Origin; browsers say where it stands, or obey the policy of the response."""
    with client_of(engine) as client:
        path = "/v1/items/red/thumbnail"
        image = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
        assert client.get(path, headers=image).status_code == 403
        assert client.get(path, headers={**image, "Sec-Fetch-Site": "same-origin"}).status_code == 200
        assert client.get(path).headers["cross-origin-resource-policy"] == "same-origin"
        link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert client.get("/", headers=link).status_code == 200, "a link to the page"
        assert client.get(path, headers=link).status_code == 403
