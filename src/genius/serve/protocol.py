"""Closes connections of clients that do not send or do not read, and those that are too many."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from genius.serve.limits import Limits


class BoundedProtocol(H11Protocol):
    """HTTP on one connection, which is closed if the client keeps it waiting.

    The head of a request must come within `head_s`; a response must make progress within `send_s`. When there
    are too many connections, the one that has been idle for longest is closed.
    """

    limits = Limits()
    _head: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _used = 0.0  # when something last came, by the loop's clock

    @classmethod
    def within(cls, limits: Limits) -> type[BoundedProtocol]:
        """The protocol of a server with these limits."""
        return type(cls.__name__, (cls,), {"limits": limits})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request; with too many connections, close one."""
        super().connection_made(transport)
        self._used = self.loop.time()
        self._expect_head(expected=True)
        if len(self.connections) > self.limits.connections:
            self._close_one()

    def data_received(self, data: bytes) -> None:
        """Take in bytes, and wait for the rest of a head."""
        self._used = self.loop.time()
        super().data_received(data)
        self._expect_head(expected=self.conn.their_state is h11.IDLE)

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        if self._stall is None:  # abort: closing would wait for the client to read what is buffered
            self._stall = self.loop.call_later(self.limits.send_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self._stop("_stall")

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._stop("_head")
        self._stop("_stall")
        super().connection_lost(exc)

    def _expect_head(self, *, expected: bool) -> None:
        if not expected:
            self._stop("_head")
        elif self._head is None:
            self._head = self.loop.call_later(self.limits.head_s, self.transport.close)

    def _stop(self, name: str) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)

    @property
    def _rank(self) -> tuple[bool, bool, float]:
        """Small for those that can be closed with the least harm."""
        asking = self.cycle is not None and not self.cycle.response_complete
        return asking and not self.flow.write_paused, asking, self._used

    def _close_one(self) -> None:
        others = [one for one in self.connections if isinstance(one, BoundedProtocol)]
        least = min(others, key=lambda one: one._rank)
        least.transport.abort()
