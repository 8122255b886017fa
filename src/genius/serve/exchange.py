"""One request and the response to it, with the headers and the errors that every route shares."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from starlette.types import Message, Receive, Scope, Send

from genius.serve.limits import RETRY_AFTER_S

ITEMS = "/v1/items/"
DRAIN_S = 1.0  # a refused sender gets this long to stop, so that it can read why
STALL_S = 0.5  # a response that cannot be sent for so long no longer counts as a request under way
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
}


class Exchange:
    """A request under way; `status` is 0 until a response begins."""

    def __init__(self, scope: Scope, send: Send, stalled: Callable[[], None]) -> None:
        """`stalled` is called when the client does not take the response."""
        self.scope: dict[str, Any] = dict(scope)
        raw = scope.get("raw_path") or b""
        if scope["path"].startswith(ITEMS) and raw:
            self.scope["path"] = raw.decode("latin-1")  # an id may have an encoded slash: it is one segment
        self.headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self.id = uuid4().hex[:12]
        self.started = time.perf_counter()
        self.status = 0
        self.complete = False
        self._send, self._stalled = send, stalled

    async def send(self, message: Message) -> None:
        """Send a part of the response; a slow reader holds up nobody but itself."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            present = {name for name, _ in message["headers"]}
            extra = {**HEADERS, "x-request-id": self.id}
            if self.status in (429, 503):
                extra["retry-after"] = str(RETRY_AFTER_S)
            own = [(k.encode(), v.encode()) for k, v in extra.items() if k.encode() not in present]
            message = {**message, "headers": [*message["headers"], *own]}
        else:
            self.complete = not message.get("more_body", False)
        stall = asyncio.get_running_loop().call_later(STALL_S, self._stalled)
        try:
            await self._send(message)
        finally:
            stall.cancel()

    async def problem(
        self, status: int, detail: str, receive: Receive | None = None, origin: str | None = None
    ) -> None:
        """Answer with an error; with `receive`, a client that is still sending gets a moment to read it.

        `origin` is the allowed site whose page asks, which may read the error.
        """
        body = json.dumps({"detail": detail}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if origin is not None:
            headers += [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": receive is not None})
        if receive is not None:
            await _drain(receive)
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drain(receive: Receive) -> None:
    """Throw away what still comes, for a moment: closing at once would cut our answer off."""
    try:
        async with asyncio.timeout(DRAIN_S):
            more = True
            while more:
                message = await receive()
                more = message["type"] == "http.request" and message.get("more_body", False)
    except TimeoutError:
        return
