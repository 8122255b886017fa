"""Idempotency keys: a change that is sent again gets its first answer and is not carried out again."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from genius.errors import BadInput
from genius.serve.batching import StillRunning

HEADER = "idempotency-key"
LONGEST_KEY = 200
KEPT = 4096  # outcomes
KEPT_S = 600.0

T = TypeVar("T")


class _Change(NamedTuple):
    """A change that was begun under a key."""

    request: object
    outcome: asyncio.Future[Any]
    began: float


class Changes:
    """Outcomes of recent changes by their keys."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Change] = OrderedDict()

    async def once(self, key: str | None, request: object, work: Callable[[], Awaitable[T]]) -> T:
        """The outcome of `work`; if a change with this key is known, its outcome, when there is one.

        With a key, the change goes on though its client leaves. One that failed is forgotten. Raises BadInput
        if the key was used for another `request`.
        """
        if key is None:
            return await work()
        if not 0 < len(key) <= LONGEST_KEY:
            raise BadInput(f"an idempotency key has 1 to {LONGEST_KEY} characters")
        self._forget()
        known = self._known.get(key)
        if known is None:
            outcome = asyncio.ensure_future(work())
            known = self._known[key] = _Change(request, outcome, time.monotonic())
            outcome.add_done_callback(lambda done: self._ended(key, done))
        elif known.request != request:
            raise BadInput("this idempotency key was used for another request: make a new one for each")
        result: T = await asyncio.shield(known.outcome)
        return result

    def _ended(self, key: str, done: asyncio.Future[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is None and not done.cancelled():
            return
        known = self._known.pop(key, None)
        if known is not None and isinstance(error, StillRunning):  # who asks again waits for it
            self._known[key] = known._replace(outcome=error.change)
            error.change.add_done_callback(lambda later: self._ended(key, later))

    def _forget(self) -> None:
        """Drop what is too old, or too much."""
        oldest = time.monotonic() - KEPT_S
        while self._known:
            key, first = next(iter(self._known.items()))
            if first.began > oldest and len(self._known) < KEPT:
                return
            del self._known[key]
