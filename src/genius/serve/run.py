"""The server as a process: where it listens, with which key, and how it ends."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
from collections.abc import Collection
from typing import Any

from genius.errors import BadInput, MissingExtra
from genius.serve.limits import Limits

HEAD_S = 10.0  # the head of a request must be here by then
KEEP_ALIVE_S = 15
SHORTEST_KEY = 16
INSTALL = 'pip install "genius-search[serve]"'


def is_loopback(host: str) -> bool:
    """Whether only this very machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_key(host: str, key: str | None) -> None:
    """Refuse to be reachable by others without a key, or with one that can be guessed."""
    if key is None:
        if not is_loopback(host):
            raise BadInput(
                f"{host} can be reached from other machines: set a key (environment variable GENIUS_KEY, "
                f"{SHORTEST_KEY} characters or more), or listen on 127.0.0.1"
            )
        return
    if len(key) < SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput(
            f"the key must be {SHORTEST_KEY} or more printable ASCII characters without blanks: "
            "make one with `python -c 'import secrets; print(secrets.token_urlsafe(24))'`"
        )


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; raises BadInput if the address cannot be had."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise BadInput(f"cannot listen on {host}:{port} ({error.strerror}): choose another --port") from None


def address_of(listening: socket.socket) -> str:
    """The URL of what listens there."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    engine: Any,
    listening: socket.socket,
    *,
    key: str | None = None,
    limits: Limits | None = None,
    origins: Collection[str] = (),
) -> None:
    """Answer on a listening socket until told to stop (SIGINT, SIGTERM); what is under way may finish.

    Raises what kept the model from being loaded, if that is why it ended.
    """
    try:
        server = make_server(engine, listening.getsockname()[0], key=key, limits=limits, origins=origins)
    except ModuleNotFoundError as error:
        raise MissingExtra(f"the server needs {error.name}: {INSTALL}") from None
    switching = sys.getswitchinterval()
    sys.setswitchinterval(0.001)  # the search thread must not keep new requests waiting
    try:
        server.run(sockets=[listening])
    finally:
        sys.setswitchinterval(switching)
        listening.close()
    reason = server.config.app.state.backend.error
    if reason is not None:
        raise reason


def make_server(
    engine: Any,
    host: str,
    *,
    key: str | None = None,
    limits: Limits | None = None,
    origins: Collection[str] = (),
) -> Any:
    """A uvicorn server for an engine; `run(sockets=[…])` starts it, `should_exit` ends it."""
    import h11
    import python_multipart  # noqa: F401
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from genius.serve.app import create_app

    class HeaderTimeoutProtocol(H11Protocol):
        """Hangs up on whoever connects, or begins a request, and does not send all of its head in time."""

        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait(incomplete=True)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._wait(incomplete=self.conn.their_state is h11.IDLE)

        def connection_lost(self, exc: Exception | None) -> None:
            self._wait(incomplete=False)
            super().connection_lost(exc)

        def _wait(self, *, incomplete: bool) -> None:
            if incomplete and self._patience is None:
                self._patience = self.loop.call_later(HEAD_S, self.transport.close)
            elif not incomplete and self._patience is not None:
                self._patience.cancel()
                self._patience = None

    limits = limits or Limits()

    def failed() -> None:
        server.should_exit = True

    app = create_app(
        engine, key=key, limits=limits, loopback=is_loopback(host), origins=origins, failed=failed
    )
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=HeaderTimeoutProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=limits.stop_s,
        )
    )
    return server
