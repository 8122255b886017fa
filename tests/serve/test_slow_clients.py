"""Fault 45: clients that connect and do not read, read slowly, or leave; all others are served."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from genius.serve.limits import Limits


def stuffed(live, kit, path: str, pipelined: int = 400) -> socket.socket:
    """A connection that has asked for more than it will ever read."""
    line = socket.create_connection((live.host, live.port), timeout=10)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.setblocking(False)
    request = kit.head("GET", path).replace("\n", "\r\n").encode() + b"\r\n\r\n"
    rest = memoryview(request * pipelined)
    end = time.monotonic() + 2
    while rest and time.monotonic() < end:
        if select.select([], [line], [], 0.05)[1]:
            rest = rest[line.send(rest) :]
    return line


def status_of(live, kit, path: str) -> int:
    return live.ask(kit.head("GET", path, "Connection: close"), wait=5)[0]


@pytest.mark.parametrize("path", ["/openapi.json", "/v1/codes", "/healthz"])
def test_clients_that_never_read_keep_nobody_out(serving, kit, path):
    with serving(Limits(requests=8, open_requests=4, send_s=30)) as live, ThreadPoolExecutor(10) as some:
        lines = list(some.map(lambda _: stuffed(live, kit, path, 4000), range(10)))
        try:
            for _ in range(5):
                assert status_of(live, kit, "/healthz") == 200
                time.sleep(0.3)
            for other in ("/v1/stats", "/readyz", "/openapi.json"):
                kit.wait_until(lambda other=other: status_of(live, kit, other) == 200, 10)
        finally:
            for line in lines:
                line.close()


def test_one_who_never_reads_an_open_page_takes_no_place_of_the_api(serving, kit):
    with (
        serving(Limits(requests=1, open_requests=1, send_s=30)) as live,
        stuffed(live, kit, "/openapi.json", 4000),
    ):
        kit.wait_until(lambda: status_of(live, kit, "/openapi.json") == 503, 10)  # the only place is taken
        assert [status_of(live, kit, "/v1/stats") for _ in range(3)] == [200, 200, 200]


def test_a_client_that_never_reads_is_hung_up_on(serving, kit):
    with serving(Limits(send_s=0.5)) as live:
        line = stuffed(live, kit, "/openapi.json", 4000)
        connections = live.server.server_state.connections
        with line:
            kit.wait_until(lambda: not connections, 10)
            line.setblocking(True)
            with pytest.raises(ConnectionResetError):
                while line.recv(1 << 20):
                    pass


def test_a_client_that_reads_slowly_gets_its_response(serving, kit):
    with serving(Limits(send_s=2.0)) as live, stuffed(live, kit, "/openapi.json", 30) as line:
        line.setblocking(True)
        received = 0
        began = time.monotonic()
        while received < 300_000:
            received += len(line.recv(30_000))
            if time.monotonic() - began < 3:
                time.sleep(0.3)
        assert time.monotonic() - began > 2.5


def test_the_search_of_a_client_that_leaves_is_dropped(engine, serving, kit):
    gate, seen, original = threading.Event(), [], engine.results

    def slow(queries, *args, **options):
        gate.wait(10)
        seen.extend(query.text for query in queries)
        return original(queries, *args, **options)

    with serving(Limits(batch=1)) as live:
        engine.results = slow
        lines = []
        active = live.server.config.app.state.backend.metrics.active
        for count, text in enumerate(("first", "left"), start=1):
            body = json.dumps({"text": text}).encode()
            head = kit.head(
                "POST", "/v1/search", "Content-Type: application/json", f"Content-Length: {len(body)}"
            )
            line = socket.create_connection((live.host, live.port), timeout=10)
            line.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
            lines.append(line)
            kit.wait_until(lambda count=count: active._value.get() == count)
            time.sleep(0.1)
        lines[1].close()
        kit.wait_until(lambda: active._value.get() == 1)
        gate.set()
        assert kit.answer(lines[0])[0] == 200
        lines[0].close()
        assert status_of(live, kit, "/readyz") == 200
        assert "left" not in seen


def test_connections_that_ask_nothing_make_room_for_others(serving, kit):
    with serving(Limits(connections=20, head_s=30)) as live:
        lines = [socket.create_connection((live.host, live.port), timeout=5) for _ in range(60)]
        try:
            time.sleep(0.3)
            for path in ("/healthz", "/v1/stats"):
                assert status_of(live, kit, path) == 200
            assert len(live.server.server_state.connections) <= 20
        finally:
            for line in lines:
                line.close()
