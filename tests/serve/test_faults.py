"""Faults 26, 27, 30 and 32, hot swap and graceful stop: over real sockets, on loopback only."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from genius import Item
from genius.client import Client
from genius.engine import Engine
from genius.errors import BadInput, MissingExtra
from genius.serve import run
from genius.serve.access import check_key
from genius.serve.limits import MB, Limits

PROGRAM = Path(__file__).parents[1] / "cli" / "fake_model.py"


def search_head(kit, *headers: str) -> str:
    return kit.head("POST", "/v1/search", "Content-Type: application/json", *headers)


def found(live) -> str:
    with Client(live.url) as client:
        return client.search("red", want="image")[0].id


# --- 26: too large, endless, slow -------------------------------------------------------------------------


def test_a_large_request_is_refused_before_it_is_read(serving, kit):
    with serving(Limits(body=MB)) as live:
        status, headers, body = live.ask(search_head(kit, "Content-Length: 104857600"))
        assert status == 413 and "1,048,576" in json.loads(body)["detail"]
        assert headers["connection"] == "close"
        assert found(live) == "red"


def test_an_endless_request_is_refused_at_the_cap(serving, kit):
    with serving(Limits(body=MB)) as live:
        line = socket.create_connection((live.host, live.port), timeout=10)
        with line:
            head = kit.head("POST", "/v1/items", "Content-Type: multipart/form-data; boundary=x",
                            "Transfer-Encoding: chunked")  # fmt: skip
            line.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
            part = b"--x\r\nContent-Disposition: form-data; name=image; filename=a\r\n\r\n" + b"a" * 60_000
            sent = 0
            while not select.select([line], [], [], 0)[0]:  # until there is an answer
                line.sendall(b"%x\r\n%s\r\n" % (len(part), part))
                sent += len(part)
                assert sent < 100 * MB
            status, _, _ = kit.answer(line)
        assert status == 413
        held = live.server.config.app.state.backend.metrics.held
        kit.wait_until(lambda: held._value.get() == 0)


def test_a_slow_request_is_given_up_while_others_are_served(serving, kit):
    with serving(Limits(upload_s=1.0)) as live, socket.create_connection((live.host, live.port)) as line:
        line.settimeout(10)
        head = search_head(kit, "Content-Length: 1000").replace("\n", "\r\n")
        line.sendall(head.encode() + b'\r\n\r\n{"text": "r')
        assert found(live) == "red"
        status, _, body = kit.answer(line)
        assert status == 408 and "1 s" in json.loads(body)["detail"]


def test_who_sends_no_request_is_hung_up_on(serving):
    with (
        serving(Limits(head_s=0.3)) as live,
        socket.create_connection((live.host, live.port), timeout=10) as line,
    ):
        line.sendall(b"GET / HT")
        assert line.recv(100) == b""


def test_who_begins_a_second_request_and_stops_is_hung_up_on(serving, kit):
    with (
        serving(Limits(head_s=0.3)) as live,
        socket.create_connection((live.host, live.port), timeout=10) as line,
    ):
        line.sendall(kit.head("GET", "/healthz").replace("\n", "\r\n").encode() + b"\r\n\r\n")
        assert kit.answer(line)[0] == 200
        line.sendall(b"GET /healthz HT")
        assert line.recv(100) == b""


def test_a_connection_may_rest_between_requests_longer_than_a_head_may_take(serving, kit):
    with (
        serving(Limits(head_s=0.2)) as live,
        socket.create_connection((live.host, live.port), timeout=10) as line,
    ):
        for _ in range(2):
            line.sendall(kit.head("GET", "/healthz").replace("\n", "\r\n").encode() + b"\r\n\r\n")
            assert kit.answer(line)[0] == 200
            time.sleep(0.5)


def test_uploads_together_are_bounded(serving, kit):
    with serving(Limits(body=MB, held=MB // 2)) as live:
        body = json.dumps({"text": "a" * (MB * 3 // 4)}).encode()
        status, headers, _ = live.ask(search_head(kit, f"Content-Length: {len(body)}"), body)
        assert status == 503 and headers["retry-after"] == "1"


# --- 27: too many -----------------------------------------------------------------------------------------


def test_two_hundred_searches_at_once(engine, serving, kit):
    """What fits into the queue is answered rightly, the rest is told to come back."""
    original = engine.results

    def slow(queries, *args, **options):
        time.sleep(0.05)
        return original(queries, *args, **options)

    engine.results = slow
    expected = [hit.id for hit in engine.search("red", want="image")]
    body = json.dumps({"text": "red", "want": "image", "limit": 10}).encode()
    head = search_head(kit, f"Content-Length: {len(body)}", "Connection: close")
    with serving(Limits(waiting=20, batch=8)) as live, ThreadPoolExecutor(200) as many:
        answers = list(many.map(lambda _: live.ask(head, body, 30), range(200)))
        metrics = live.server.config.app.state.backend.metrics
        kit.wait_until(lambda: metrics.waiting._value.get() == metrics.held._value.get() == 0)
    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 429} and statuses.count(200) >= 20
    for status, headers, content in answers:
        if status == 429:
            assert headers["retry-after"] == "1"
        else:
            assert [hit["id"] for hit in json.loads(content)["hits"]] == expected


def test_more_requests_than_allowed(engine, serving, kit):
    gate = threading.Event()
    original = engine.results
    body = json.dumps({"text": "red"}).encode()
    head = search_head(kit, f"Content-Length: {len(body)}", "Connection: close")
    with serving(Limits(requests=3)) as live, ThreadPoolExecutor(3) as some:
        engine.results = lambda *args, **options: gate.wait(10) and original(*args, **options)
        waiting = [some.submit(live.ask, head, body) for _ in range(3)]
        active = live.server.config.app.state.backend.metrics.active
        kit.wait_until(lambda: active._value.get() == 3)
        status, headers, _ = live.ask(kit.head("GET", "/v1/stats"))
        assert status == 503 and headers["retry-after"] == "1"
        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert live.ask(kit.head("GET", path, "Connection: close"))[0] == 200
        gate.set()
        assert [one.result()[0] for one in waiting] == [200] * 3


def test_a_search_that_takes_too_long_is_given_up(engine, serving, kit):
    original = engine.results
    with serving(Limits(search_s=0.2)) as live:
        gate = threading.Event()
        engine.results = lambda *args, **options: gate.wait(10) and original(*args, **options)
        body = b'{"text": "red"}'
        head = search_head(kit, f"Content-Length: {len(body)}")
        status, headers, content = live.ask(head, body)
        assert status == 503 and headers["retry-after"] == "1" and "0.2 s" in json.loads(content)["detail"]
        gate.set()
        assert found(live) == "red"


def test_changes_wait_in_a_bounded_queue(engine, serving, kit):
    gate = threading.Event()
    original = engine.remove
    engine.remove = lambda ids: gate.wait(10) and original(ids)
    head = kit.head("DELETE", "/v1/items/red", "Connection: close")
    with serving(Limits(writes=2)) as live, ThreadPoolExecutor(2) as some:
        waiting = [some.submit(live.ask, head) for _ in range(2)]
        backend = live.server.config.app.state.backend
        kit.wait_until(lambda: backend._writing == 2)
        assert live.ask(head)[0] == 429
        gate.set()
        assert sorted(one.result()[0] for one in waiting) == [200, 404]


# --- 30: keys ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_others_are_not_let_in_without_a_key(host):
    with pytest.raises(BadInput, match="GENIUS_KEY"):
        check_key(host, None)
    check_key(host, "0123456789abcdef")


@pytest.mark.parametrize(
    "key", ["short", "fifteen-letters", "with a blank in the key", "ünïcödé-ünïcödé-key"]
)
def test_keys_that_can_be_guessed_or_not_be_sent_are_refused(key):
    with pytest.raises(BadInput, match="16"):
        check_key("127.0.0.1", key)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.1"])
def test_loopback_needs_no_key(host):
    check_key(host, None)


def test_a_taken_port_is_named():
    with run.listen("127.0.0.1", 0) as taken, pytest.raises(BadInput, match="another --port") as refused:
        run.listen("127.0.0.1", taken.getsockname()[1])
    assert str(refused.value).count("127.0.0.1") == 1


def test_an_address_of_another_machine_is_named():
    with pytest.raises(BadInput, match="another --host"):
        run.listen("192.0.2.1", 0)


def test_without_the_extra_the_command_is_named(engine, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with (
        run.listen("127.0.0.1", 0) as listening,
        pytest.raises(MissingExtra, match=r"genius-search\[serve\]"),
    ):
        run.serve(engine, listening)


# --- 32: changes while searching, and hot swap ------------------------------------------------------------


def test_every_answer_matches_a_committed_state(engine, serving):
    """Adds, removes and compactions go on while four threads search; the answer names the state it is of."""
    texts = {f"t/{n}": f"word{n} something" for n in range(40)}
    with serving() as live:
        live.engine.remove([hit.id for hit in engine.search("something", k=50, want="text")])
        change = engine.index.truth.change
        states: dict[int, frozenset[str]] = {change(): frozenset()}
        stop = threading.Event()
        seen: list[tuple[int, int, frozenset[str]]] = []

        def ask() -> None:
            body = {"text": "something", "want": "text", "limit": 60, "beam": 100}
            with Client(live.url) as client:
                while not stop.is_set():
                    answer = client._json("POST", "/v1/search", body)
                    found = frozenset(hit["id"] for hit in answer["hits"])
                    seen.append((answer["changes"], answer["generation"], found))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        present: set[str] = set()
        end = time.monotonic() + 4
        step = 0
        while time.monotonic() < end:
            id = f"t/{(step * 7) % 40}"
            if id in present:
                engine.remove([id])
                present.discard(id)
            else:
                engine.add([Item(id, text=texts[id])])
                present.add(id)
            states[change()] = frozenset(present)
            step += 1
            if step % 10 == 0:
                engine.compact()
                states[change()] = frozenset(present)
        stop.set()
        for thread in threads:
            thread.join()
    assert len(seen) > 20 and len({changes for changes, _, _ in seen}) > 5
    assert len({generation for _, generation, _ in seen}) > 1, "no hot swap was seen"
    wrong = [(changes, found ^ states[changes]) for changes, _, found in seen if found != states[changes]]
    assert not wrong


def test_a_new_generation_of_another_process_is_taken_up(engine, serving, kit):
    """Hot swap: somebody else changes and compacts the index; no request fails, and the answers follow."""
    with (
        serving() as live,
        Engine.open(engine.index.folder, model=engine.model) as other,
        Client(live.url) as client,
    ):
        before = client._json("POST", "/v1/search", {"text": "red"})["generation"]
        other.add([Item("fresh", image=kit.picture("red"), text="fresh red")])
        number = other.compact()
        answer = client._json("POST", "/v1/search", {"text": "fresh red", "want": "pair"})
        assert answer["hits"][0]["id"] == "fresh" and answer["generation"] == number > before


def test_a_change_while_another_process_writes_is_refused_for_now(engine, serving, kit):
    with serving() as live, Engine.open(engine.index.folder, model=engine.model) as other:
        with other.index.writing():
            status, headers, body = live.ask(kit.head("DELETE", "/v1/items/red"))
            assert status == 503 and "retry-after" in headers and "written by" in json.loads(body)["detail"]
        assert live.ask(kit.head("DELETE", "/v1/items/red"))[0] == 200


# --- 11: stopping -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_lets_requests_under_way_finish(tmp_path, fake, kit, sent, code):
    with Engine.create(tmp_path / "index", fake.FakeModel()) as engine:
        engine.add([Item("red", image=kit.picture("red"))])
    command = [sys.executable, str(PROGRAM), "serve", "--in", str(tmp_path / "index"), "--port", "0"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "FAKE_MODEL_SECONDS": "1"}
    )
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+", first)
        while '"ready"' not in process.stderr.readline():
            pass
        with ThreadPoolExecutor(1) as one, Client(url) as client:
            adding = one.submit(client.add, [Item("late", text="late")])
            time.sleep(0.4)
            process.send_signal(sent)
            assert adding.result(20).added == 1
        assert process.wait(20) == code
        rest = process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert "Traceback" not in rest
    with Engine.open(tmp_path / "index", model=fake.FakeModel()) as engine:
        assert engine.get("late") is not None


def test_a_model_that_cannot_be_loaded_ends_the_server_with_the_reason(tmp_path, fake):
    with Engine.create(tmp_path / "index", fake.FakeModel(seed=7)) as engine:
        engine.add([Item("a", text="b")])
    command = [sys.executable, str(PROGRAM), "serve", "--in", str(tmp_path / "index"), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 8 and "was made by the model" in done.stderr


def test_the_command_refuses_to_be_open_to_all(tmp_path, fake):
    Engine.create(tmp_path / "index", fake.FakeModel()).close()
    command = [sys.executable, str(PROGRAM), "serve", "--in", str(tmp_path / "index"), "--host", "0.0.0.0"]
    clean = {name: value for name, value in os.environ.items() if name != "GENIUS_KEY"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=clean)
    assert done.returncode == 2 and "GENIUS_KEY" in done.stderr


def test_an_address_outside_is_never_asked_for():
    """The page loads nothing from anywhere else."""
    folder = Path(run.__file__).parent / "page"
    for file in folder.iterdir():
        urls = re.findall(r"https?://[^\s\"')]+", file.read_text())
        assert [url for url in urls if "www.w3.org" not in url] == []
