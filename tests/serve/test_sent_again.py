"""Fault 51: a change that is sent again, on a broken connection or by a key, is answered as if sent once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient

from genius import Client, Item
from genius.serve.app import create_app
from genius.serve.limits import Limits


class Forwarder:
    """A proxy that hands requests on, and can swallow the answer to the next one and hang up instead."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target, self.swallow, self.requests = target, 0, 0
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(line,), daemon=True).start()

    def _forward(self, line: socket.socket) -> None:
        with line, socket.create_connection(self.target) as server:
            while request := line.recv(1 << 20):
                self.requests += 1
                while b"\r\n\r\n" not in request or len(request) < _length(request):
                    request += line.recv(1 << 20)
                server.sendall(request)
                answer = b""
                while b"\r\n\r\n" not in answer or len(answer) < _length(answer):
                    answer += server.recv(1 << 20)
                if self.swallow:
                    self.swallow -= 1
                    return
                line.sendall(answer)


def _length(message: bytes) -> int:
    """Of the whole message, by its head."""
    head, _, _ = message.partition(b"\r\n\r\n")
    body = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return len(head) + 4 + (int(body[0].split(b":")[1]) if body else 0)


@pytest.fixture
def broken(serving) -> Iterator[tuple[Forwarder, Client]]:
    """A forwarder in front of a server, and a client with a connection that was used before."""
    with serving() as live:
        parts = urlsplit(live.url)
        forwarder = Forwarder((str(parts.hostname), int(parts.port or 0)))
        with Client(forwarder.url, timeout=10) as client:
            client.stats()
            yield forwarder, client
        forwarder.listening.close()


def test_a_removal_whose_answer_was_lost_counts_once(broken, engine):
    forwarder, client = broken
    forwarder.swallow = 1
    assert client.remove(["red"]) == 1
    assert forwarder.requests == 3 and engine.get("red") is None
    client.stats()
    forwarder.swallow = 1
    assert client.remove(["nobody"]) == 0


def test_items_whose_answer_was_lost_are_added_once(broken, engine):
    forwarder, client = broken
    forwarder.swallow = 1
    added = client.add([Item("new", text="one"), Item("t/red", text="another text")])
    assert (added.added, added.updated, added.unchanged) == (1, 1, 0)
    assert forwarder.requests == 3 and engine.get("new") is not None


@contextmanager
def client_of(engine, **options) -> Iterator[TestClient]:
    app = create_app(engine, **options)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        yield client


def test_a_key_answers_again_and_is_good_for_one_request(engine):
    with client_of(engine) as client:
        key = {"Idempotency-Key": "one"}
        assert [client.delete("/v1/items/red", headers=key).status_code for _ in range(3)] == [200] * 3
        assert client.delete("/v1/items/red").status_code == 404
        other = client.delete("/v1/items/blue", headers=key)
        assert other.status_code == 422 and "another request" in other.json()["detail"]
        item = {"items": [{"id": "n", "text": "new"}]}
        answers = [client.post("/v1/items", json=item, headers={"Idempotency-Key": "two"}) for _ in range(2)]
        assert [answer.json()["added"] for answer in answers] == [1, 1]
        assert client.post("/v1/items", json=item).json()["unchanged"] == 1
        assert client.delete("/v1/items/t%2Fred", headers={"Idempotency-Key": "k" * 201}).status_code == 422


def test_a_change_that_failed_may_be_tried_again_under_its_key(engine):
    original, failing = engine.remove, [True]
    engine.remove = lambda ids: 1 / 0 if failing else original(ids)
    with client_of(engine) as client:
        key = {"Idempotency-Key": "one"}
        assert client.delete("/v1/items/red", headers=key).status_code == 500
        failing.clear()
        assert client.delete("/v1/items/red", headers=key).status_code == 200


def test_a_change_that_outlasts_its_request_is_answered_when_asked_again(engine):
    gate, original, calls = threading.Event(), engine.remove, []

    def slow(ids):
        calls.append(ids)
        gate.wait(10)
        return original(ids)

    engine.remove = slow
    with client_of(engine, limits=Limits(write_s=0.3)) as client:
        key = {"Idempotency-Key": "one"}
        assert client.delete("/v1/items/red", headers=key).status_code == 503
        gate.set()
        assert client.delete("/v1/items/red", headers=key).json() == {"removed": 1}
        assert len(calls) == 1
