"""Fault 47, one process: what answers searches dies or hangs; `/readyz` tells it, and it recovers."""

from __future__ import annotations

import threading
import time

import pytest

from genius.client import Client, ServerError
from genius.serve.app import create_app
from genius.serve.limits import Limits


def ready(live, kit) -> int:
    return live.ask(kit.head("GET", "/readyz", "Connection: close"))[0]


def test_searching_goes_on_after_an_error_of_its_machinery(serving, kit):
    """Whoever waited is told at once; the next search is answered."""
    with serving() as live, Client(live.url, timeout=5) as client:
        observe = live.server.config.app.state.backend.metrics.batch
        original = observe.observe
        observe.observe = lambda _: 1 / 0
        with pytest.raises(ServerError, match="try again"):
            client.search("red")
        observe.observe = original
        kit.wait_until(lambda: ready(live, kit) == 200, 5)
        assert client.search("red", want="image")[0].id == "red"


def test_searching_goes_on_after_its_task_was_ended(serving, kit):
    with serving() as live, Client(live.url, timeout=5) as client:
        batcher = live.server.config.app.state.backend._batcher
        batcher._task.get_loop().call_soon_threadsafe(batcher._task.cancel)
        kit.wait_until(lambda: batcher._task.done() or ready(live, kit) == 200, 5)
        time.sleep(0.3)
        assert ready(live, kit) == 200
        assert client.search("red", want="image")[0].id == "red"


def test_as_long_as_nothing_answers_it_is_not_ready(serving, kit, monkeypatch):
    monkeypatch.setattr("genius.serve.batching.RESTART_S", 1.0)
    with serving() as live:
        batcher = live.server.config.app.state.backend._batcher
        batcher._task.get_loop().call_soon_threadsafe(batcher._task.cancel)
        kit.wait_until(lambda: ready(live, kit) == 503, 5)
        kit.wait_until(lambda: ready(live, kit) == 200, 5)


def test_a_search_that_hangs_makes_it_not_ready_until_it_ends(engine, serving, kit):
    gate, original = threading.Event(), engine.results
    with serving(Limits(search_s=0.5)) as live, Client(live.url, timeout=5) as client:
        engine.results = lambda *args, **options: gate.wait(20) and original(*args, **options)
        with pytest.raises(ServerError, match=r"within 0\.5 s"):
            client.search("red")
        kit.wait_until(lambda: ready(live, kit) == 503, 5)
        assert live.ask(kit.head("GET", "/healthz", "Connection: close"))[0] == 200
        gate.set()
        kit.wait_until(lambda: ready(live, kit) == 200, 5)
        assert client.search("red", want="image")[0].id == "red"


def test_searches_whose_clients_have_gone_do_not_fill_the_queue(engine, serving, kit):
    gate, original = threading.Event(), engine.results
    with serving(Limits(search_s=0.3, waiting=3, batch=1)) as live, Client(live.url, timeout=5) as client:
        engine.results = lambda *args, **options: gate.wait(20) and original(*args, **options)
        for _ in range(6):
            with pytest.raises(ServerError, match=r"within 0\.3 s"):
                client.search("red")
        gate.set()


def test_an_error_that_nobody_expected_at_the_start_is_told(engine):
    """It is not `loading` for ever."""
    from fastapi.testclient import TestClient

    engine.warm = lambda: 1 / 0
    told = threading.Event()
    with TestClient(create_app(engine, failed=told.set), base_url="http://localhost") as client:
        assert told.wait(10)
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()) == (503, {"status": "failed"})
