"""A small index of colours behind a server: in the process, on a socket, and as a program of its own."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the server needs the extra `serve`")

from genius import Item
from genius.engine import Engine
from genius.serve.limits import Limits
from genius.serve.run import listen, make_server

MARKUP = "<img src=x onerror=\"document.title='attacked'\"> a strange <b>caption</b>"


def picture(colour: str, size: tuple[int, int] = (64, 48)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def colours(fake: ModuleType) -> list[Item]:
    """A picture, a text and a pair of each colour, and a caption with markup."""
    items = []
    for colour in fake.COLOURS:
        data = picture(colour)
        items.append(Item(colour, image=data, meta={"kind": "swatch"}))
        items.append(Item(f"t/{colour}", text=f"something {colour}"))
        items.append(Item(f"p-{colour}", image=data, text=f"a {colour} thing"))
    return [*items, Item("markup", image=picture("orange"), text=MARKUP)]


@pytest.fixture
def engine(tmp_path, fake) -> Iterator[Engine]:
    with Engine.create(tmp_path / "index", fake.FakeModel()) as opened:
        opened.add(colours(fake))
        yield opened


class Live(NamedTuple):
    url: str
    host: str
    port: int
    engine: Engine
    server: Any

    def ask(self, head: str, body: bytes = b"", wait: float = 10.0) -> tuple[int, dict[str, str], bytes]:
        """Send a request as it is, and read the whole answer until the server hangs up."""
        with socket.create_connection((self.host, self.port), timeout=wait) as line:
            line.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
            return answer(line)


def answer(line: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = line.recv(65536)
        if not part:
            raise AssertionError(f"hung up after {data!r}")
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (row.partition(":") for row in rest)}
    while len(body) < int(headers.get("content-length", "0")):
        body += line.recv(65536)
    return int(first.split()[1]), headers, body


@pytest.fixture
def serving(engine) -> Callable[..., Any]:
    """A context in which the engine is served on a socket."""

    @contextmanager
    def start(limits: Limits | None = None, **options: Any) -> Iterator[Live]:
        with live(engine, limits, **options) as running:
            yield running

    return start


@contextmanager
def live(engine: Engine, limits: Limits | None = None, **options: Any) -> Iterator[Live]:
    listening = listen("127.0.0.1", 0)
    host, port = listening.getsockname()
    server = make_server(engine, host, limits=limits, **options)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.config.app.state.backend.status == "ready")
        yield Live(f"http://{host}:{port}", host, port, engine, server)
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
        assert not thread.is_alive(), "the server does not stop"


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def head(method: str, path: str, *headers: str) -> str:
    return "\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers])


def as_json(body: bytes) -> Any:
    return json.loads(body)


@pytest.fixture(scope="session")
def module_kit() -> SimpleNamespace:
    """What this file has that is no fixture."""
    return SimpleNamespace(**{name: value for name, value in globals().items() if not name.startswith("_")})


@pytest.fixture
def kit(module_kit) -> SimpleNamespace:
    return module_kit
