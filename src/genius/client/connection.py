"""HTTP to the server: connections that are kept and used again, and its errors as ours."""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

from genius.errors import BadInput, GeniusError

if TYPE_CHECKING:
    pass
from typing import Self

ITEMS = "/v1/items"
_REFUSED = (400, 404, 413, 422)  # sending it again would not help


class ServerError(GeniusError):
    """The server cannot be reached, is busy, or wants a key; `status` is its answer, 0 if there was none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ItemNotFound(BadInput):
    """No item has that id."""


class Connection:
    """The connections to one server. Threads may share them."""

    def __init__(
        self, url: str = "http://127.0.0.1:8000", key: str | None = None, timeout: float = 60
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadInput(f"{url!r} is not the address of a server: use http://HOST:PORT")
        self.url = url.rstrip("/")
        self._parts, self._timeout = parts, timeout
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._idle: list[HTTPConnection] = []  # connections that wait to be used again
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the client can still be used, and opens new ones then."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _json(self, method: str, path: str, body: Any = None) -> Any:
        return json.loads(self._send(method, path, None if body is None else json.dumps(body).encode()))

    def _maybe(self, method: str, path: str) -> bytes | None:
        """The answer, or None for something that is not there."""
        try:
            return self._send(method, path)
        except ItemNotFound:
            return None

    def _send(self, method: str, path: str, body: bytes | None = None) -> bytes:
        headers = {**self._headers, "Content-Type": "application/json"} if body else {**self._headers}
        if method == "DELETE" or path == ITEMS:  # sent again, it is answered as if it had been sent once
            headers["Idempotency-Key"] = uuid4().hex
        while True:
            connection, used = self._connection()
            try:
                connection.request(method, self._parts.path.rstrip("/") + path, body, headers)
                response = connection.getresponse()
                status, content = response.status, response.read()
            except (OSError, HTTPException) as error:
                connection.close()
                if used and not isinstance(error, TimeoutError):
                    continue  # the server closes connections that idle: that is no failure
                raise ServerError(
                    f"{self.url} does not answer ({error}): is `genius serve` running?"
                ) from None
            except BaseException:
                connection.close()
                raise
            with self._lock:
                self._idle.append(connection)
            return _checked(status, content)

    def _connection(self) -> tuple[HTTPConnection, bool]:
        """A connection, and whether it has been used before."""
        with self._lock:
            if self._idle:
                return self._idle.pop(), True
        kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        assert self._parts.hostname is not None
        return kind(self._parts.hostname, self._parts.port, timeout=self._timeout), False


def _checked(status: int, body: bytes) -> bytes:
    if status == 200:
        return body
    try:
        detail = str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        detail = f"the server answered {status}"
        if status == 404:  # a proxy that has no genius behind it: that says nothing about items
            raise ServerError(f"{detail}: is `genius serve` running behind this address?", status) from None
    if status == 404:
        raise ItemNotFound(detail)
    if status in _REFUSED:
        raise BadInput(detail)
    raise ServerError(detail, status)
