"""The gate every request passes: who may ask, how much may be sent, how many at a time; and what is noted."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Collection
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genius.data.report import printable
from genius.serve.limits import RETRY_AFTER_S, Limits
from genius.serve.log import LOGGER, log
from genius.serve.metrics import Metrics

OPEN = ("/healthz", "/readyz", "/openapi.json", "/page/")  # need no key: they tell nothing of the index
ITEMS = "/v1/items/"
DRAIN_S = 1.0  # a refused sender gets this long to stop, so that it can read why
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "content-security-policy": "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
}


class Refusal(NamedTuple):
    """Why a request is not let in."""

    status: int
    reason: str  # one word, for the metrics
    detail: str


class Gate:
    """Lets requests through to `app` one by one, whole and within the limits."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        metrics: Metrics,
        key: str | None,
        hosts: Collection[str] | None,
        origins: Collection[str],
    ) -> None:
        """`hosts`: names the server goes by (None: any); `origins`: sites whose pages may ask, too."""
        self.app, self.limits, self.metrics = app, limits, metrics
        self._key = None if key is None else key.encode()
        self._hosts, self._origins = hosts, origins
        self._active = 0
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self._active += 1
        self.metrics.active.set(self._active)
        try:
            refusal = self._refused(exchange.scope, headers)
            if refusal is None:
                await self._pass(exchange, receive)
            else:
                await self._refuse(exchange, refusal, receive)
        except Exception:
            LOGGER.exception("failed", extra={"fields": {"request": exchange.id}})
            if not exchange.status:
                await exchange.problem(500, "an error of the server, not of the request: see its log")
        finally:
            self._active -= 1
            self.metrics.active.set(self._active)
            self._note(exchange)

    async def _pass(self, exchange: _Exchange, receive: Receive) -> None:
        body = bytearray()
        try:
            if not await self._read(receive, body):  # the sender has gone
                return
            whole = bytes(body)
            sent = False

            async def replay() -> Message:
                nonlocal sent
                if sent:
                    return await receive()  # the sender goes, sooner or later
                sent = True
                return {"type": "http.request", "body": whole, "more_body": False}

            await self.app(exchange.scope, replay, exchange.send)
        except _Refused as refused:
            await self._refuse(exchange, refused.refusal, receive)
        finally:
            self._hold(-len(body))

    async def _read(self, receive: Receive, body: bytearray) -> bool:
        """Whether the whole body came; it is refused when too large or slow, or too much with others."""
        try:
            async with asyncio.timeout(self.limits.upload_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return False
                    part = message.get("body", b"")
                    body += part
                    self._hold(len(part))
                    if len(body) > self.limits.body:
                        raise _Refused(self._too_large())
                    if self._held > self.limits.held:
                        raise _Refused(Refusal(503, "memory", "too many uploads at a time: try again"))
                    if not message.get("more_body", False):
                        return True
        except TimeoutError:
            detail = f"the request was not complete after {self.limits.upload_s:g} s: send it faster"
            raise _Refused(Refusal(408, "slow", detail)) from None

    def _hold(self, count: int) -> None:
        self._held += count
        self.metrics.held.set(self._held)

    def _refused(self, scope: Scope, headers: dict[bytes, str]) -> Refusal | None:
        """What is wrong with a request, as far as its head tells."""
        path = scope["path"]
        if self._active > self.limits.requests:
            return Refusal(503, "requests", f"{self.limits.requests} requests are under way: try again")
        if self._hosts is not None and _name(headers.get(b"host", "")) not in self._hosts:
            return Refusal(421, "host", "this server answers to localhost only: use that name")
        if not self._same_site(headers):
            return Refusal(403, "origin", "pages of other sites may not ask: start with --allow-origin")
        if self._key is not None and path != "/" and not path.startswith(OPEN):
            given = headers.get(b"authorization", "")
            if not hmac.compare_digest(given.encode("latin-1"), b"Bearer " + self._key):
                return Refusal(401, "key", "send the key of this server as `Authorization: Bearer KEY`")
        length = headers.get(b"content-length", "0")
        if length.isdecimal() and int(length[:20]) > self.limits.body:
            return self._too_large()
        return None

    def _same_site(self, headers: dict[bytes, str]) -> bool:
        """Whether a browser asks on behalf of our own page, or no browser asks at all."""
        origin = headers.get(b"origin")
        if origin is None or origin in self._origins:
            return True
        return urlsplit(origin).netloc == headers.get(b"host")

    def _too_large(self) -> Refusal:
        return Refusal(
            413, "large", f"a request of more than {self.limits.body:,} bytes: send less at a time"
        )

    async def _refuse(self, exchange: _Exchange, refusal: Refusal, receive: Receive) -> None:
        self.metrics.refused.labels(refusal.reason).inc()
        await exchange.problem(refusal.status, refusal.detail, receive)

    def _note(self, exchange: _Exchange) -> None:
        seconds = time.perf_counter() - exchange.started
        route = getattr(exchange.scope.get("route"), "path", "other")
        self.metrics.requests.labels(route, str(exchange.status)).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        client = exchange.scope.get("client")
        log(
            "request",
            request=exchange.id,
            method=exchange.scope["method"],
            route=route,
            path=printable(exchange.scope["path"])[:200],
            status=exchange.status,
            ms=round(seconds * 1000, 2),
            client=client[0] if client else None,
        )


class _Refused(Exception):
    """A refusal on the way."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


class _Exchange:
    """One request and what was answered to it."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope: dict[str, Any] = dict(scope)
        raw = scope.get("raw_path") or b""
        if scope["path"].startswith(ITEMS) and raw:
            self.scope["path"] = raw.decode("latin-1")  # an id may have an encoded slash: it is one segment
        self.id = uuid4().hex[:12]
        self.started = time.perf_counter()
        self.status = 0
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = {name for name, _ in message["headers"]}
            extra = {**HEADERS, "x-request-id": self.id}
            if self.status in (429, 503):
                extra["retry-after"] = str(RETRY_AFTER_S)
            own = [(k.encode(), v.encode()) for k, v in extra.items() if k.encode() not in given]
            message = {**message, "headers": [*message["headers"], *own]}
        await self._send(message)

    async def problem(self, status: int, detail: str, receive: Receive | None = None) -> None:
        """Answer with an error; a sender that is still sending gets a moment to read it."""
        body = json.dumps({"detail": detail}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": True})
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


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    return (urlsplit(f"//{host}").hostname or "") if "@" not in host else ""
