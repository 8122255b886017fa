"""The gate that every request passes: access, size and rate limits, and logging."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genius.data.report import printable
from genius.serve.access import HEALTH_ROUTES, AccessRules, Refusal, is_open
from genius.serve.exchange import Exchange
from genius.serve.limits import Limits
from genius.serve.log import LOGGER, log
from genius.serve.metrics import Metrics

_Hold = Callable[[bytes], None]
LEFT = 499  # in logs and metrics: the client went before it was answered


class Gate:
    """Lets requests through to `app` one by one, whole and within the limits.

    Health checks are always let in. What needs no key, and what is refused, has slots of its own, so that
    others cannot take those of the API; a response that nobody reads takes no slot at all.
    """

    def __init__(self, app: ASGIApp, *, limits: Limits, metrics: Metrics, access: AccessRules) -> None:
        self.app, self.limits, self.metrics, self.access = app, limits, metrics, access
        self._api, self._open = _Slots(limits.requests), _Slots(limits.open_requests)
        self._active = 0
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        slot = _Slot()
        exchange = Exchange(scope, send, slot.leave)
        self._count(1)
        try:
            await self._answer(exchange, receive, slot)
        except Exception:
            LOGGER.exception("failed", extra={"fields": {"request": exchange.id}})
            if not exchange.status:
                await exchange.problem(500, "an error of the server, not of the request: see its log")
        finally:
            slot.leave()
            self._count(-1)
            self._note(exchange)

    async def _answer(self, exchange: Exchange, receive: Receive, slot: _Slot) -> None:
        method, path = exchange.scope["method"], exchange.scope["path"]
        client = (exchange.scope.get("client") or (None,))[0]
        refusal = self.access.refusal(method, path, exchange.headers, client) or self._too_large(exchange)
        if path in HEALTH_ROUTES and refusal is None:
            await self.app(exchange.scope, receive, exchange.send)
            return
        open_route = is_open(path)
        slots = self._open if open_route or refusal is not None else self._api
        if not slot.take(slots):
            full = Refusal(503, "requests", f"{slots.limit} requests are under way: try again")
            await self._refuse(exchange, full)
        elif refusal is not None:
            await self._refuse(exchange, refusal, receive)
        elif open_route:
            await self.app(exchange.scope, receive, exchange.send)  # its body, if there is one, is not read
        else:
            await self._pass(exchange, receive)

    async def _pass(self, exchange: Exchange, receive: Receive) -> None:
        """Read the whole body, then call the application; its work is cancelled if the client goes."""
        parts: deque[bytes] = deque()
        held = 0

        def hold(part: bytes) -> None:
            nonlocal held
            parts.append(part)
            held += len(part)
            self._hold(len(part))
            if held > self.limits.body:
                raise _Refused(self._larger())
            if self._held > self.limits.held:
                raise _Refused(Refusal(503, "memory", "too many uploads at a time: try again"))

        try:
            if await self._read(receive, hold):
                await self._call(exchange, receive, parts)
        except _Refused as refused:
            parts.clear()
            await self._refuse(exchange, refused.refusal, receive)
        finally:
            self._hold(-held)
            if not exchange.status:
                exchange.status = LEFT

    async def _call(self, exchange: Exchange, receive: Receive, parts: deque[bytes]) -> None:
        async def disconnect() -> Message:
            while (message := await receive())["type"] != "http.disconnect":
                pass
            return message

        async def replay() -> Message:
            if parts:
                return {"type": "http.request", "body": parts.popleft(), "more_body": bool(parts)}
            return await asyncio.shield(gone)

        gone = asyncio.ensure_future(disconnect())
        work = asyncio.ensure_future(self.app(exchange.scope, replay, exchange.send))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not exchange.complete:
                work.cancel()
            with suppress(asyncio.CancelledError):
                await work
        finally:
            work.cancel()
            gone.cancel()

    async def _read(self, receive: Receive, hold: _Hold) -> bool:
        """Whether the whole body came; it is refused when too large or slow, or too much with others."""
        try:
            async with asyncio.timeout(self.limits.upload_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return False
                    hold(message.get("body", b""))
                    if not message.get("more_body", False):
                        return True
        except TimeoutError:
            detail = f"the request was not complete after {self.limits.upload_s:g} s: send it faster"
            raise _Refused(Refusal(408, "slow", detail)) from None

    def _hold(self, count: int) -> None:
        self._held += count
        self.metrics.held.set(self._held)

    def _count(self, change: int) -> None:
        self._active += change
        self.metrics.active.set(self._active)

    def _too_large(self, exchange: Exchange) -> Refusal | None:
        length = exchange.headers.get(b"content-length", "0")
        return self._larger() if length.isdecimal() and int(length[:20]) > self.limits.body else None

    def _larger(self) -> Refusal:
        return Refusal(
            413, "large", f"a request of more than {self.limits.body:,} bytes: send less at a time"
        )

    async def _refuse(self, exchange: Exchange, refusal: Refusal, receive: Receive | None = None) -> None:
        self.metrics.refused.labels(refusal.reason).inc()
        origin = exchange.headers.get(b"origin")
        allowed = origin if origin in self.access.origins else None
        await exchange.problem(refusal.status, refusal.detail, receive, allowed)

    def _note(self, exchange: Exchange) -> None:
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


class _Slots:
    """Slots for requests of one kind."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0


class _Slot:
    """The slot of one request; left once, however often `leave` is called."""

    def __init__(self) -> None:
        self._slots: _Slots | None = None

    def take(self, slots: _Slots) -> bool:
        if slots.used >= slots.limit:
            return False
        slots.used += 1
        self._slots = slots
        return True

    def leave(self) -> None:
        if self._slots is not None:
            self._slots.used -= 1
            self._slots = None


class _Refused(Exception):
    """A refusal while the body is read."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal
