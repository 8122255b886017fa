"""The server as a process: where it listens, with which key, and how it ends."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Collection
from typing import Any

from genius.errors import BadInput, MissingExtra
from genius.serve.access import is_loopback
from genius.serve.limits import Limits

KEEP_ALIVE_S = 15
INSTALL = 'pip install "genius-search[serve]"'


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; raises BadInput if the address cannot be had."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        reason = str(error.strerror).partition(" (while attempting")[0]  # the address is named already
        wrong_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        option = "--host" if wrong_host else "--port"
        raise BadInput(f"cannot listen on {host}:{port} ({reason}): choose another {option}") from None


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
    places: bool = False,
) -> None:
    """Answer on a listening socket until SIGINT or SIGTERM; requests under way may finish.

    Raises what kept the model from being loaded, if that is why it ended.
    """
    try:
        host = listening.getsockname()[0]
        server = make_server(engine, host, key=key, limits=limits, origins=origins, places=places)
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
    places: bool = False,
) -> Any:
    """A uvicorn server for an engine; `run(sockets=[…])` starts it, `should_exit` ends it."""
    import python_multipart  # noqa: F401
    import uvicorn

    from genius.serve.app import create_app
    from genius.serve.protocol import BoundedProtocol

    limits = limits or Limits()

    def failed() -> None:
        server.should_exit = True

    app = create_app(
        engine,
        key=key,
        limits=limits,
        loopback=is_loopback(host),
        origins=origins,
        places=places,
        failed=failed,
    )
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=BoundedProtocol.within(limits),
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
