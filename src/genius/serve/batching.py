"""Concurrent searches answered together: what comes in while one batch is computed is the next batch."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from genius.errors import GeniusError
from genius.query.result import SearchResult
from genius.serve.log import LOGGER
from genius.serve.metrics import Metrics
from genius.types import Query

RESTART_S = 0.1
PATIENCE = 0.1  # of the time that the last batch took: so long is waited for the next one to fill


class Busy(GeniusError):
    """Too much is waiting already (429), or it takes too long (503): try again in a moment."""

    def __init__(self, message: str, status: int = 503) -> None:
        super().__init__(message)
        self.status = status


class StillRunning(Busy):
    """A change that takes longer than its client is let wait; `change` is its outcome to be."""

    def __init__(self, message: str, change: asyncio.Future[Any]) -> None:
        super().__init__(message)
        self.change = change


class SearchSettings(NamedTuple):
    """How to search; only searches with equal settings can be answered together."""

    k: int
    search: str | None
    rerank: str | None
    beam: int | None
    where: str | None = None
    offset: int = 0
    cursor: str | None = None
    without: str | None = None  # id of an item that is left out
    facets: tuple[str, ...] = ()
    hybrid: bool | None = None


@dataclass(eq=False, slots=True)
class PendingSearch:
    """A search that waits for its turn."""

    query: Query
    settings: SearchSettings
    answer: asyncio.Future[tuple[SearchResult, int]]

    def fail(self, error: Exception) -> None:
        """Answer with an error, unless it is answered already."""
        if not self.answer.done():
            self.answer.set_exception(error)


Search = Callable[[Sequence[Query], SearchSettings], list[SearchResult]]


class Batcher:
    """A bounded queue of searches and the one thread that answers them; begun anew if it ends by an error."""

    def __init__(self, search: Search, *, batch: int, waiting: int, seconds: float, metrics: Metrics) -> None:
        """`seconds` is how long anybody waits for an answer."""
        self._search = search
        self._batch, self._most, self._seconds = batch, waiting, seconds
        self._metrics = metrics
        self._queue: deque[PendingSearch] = deque()
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "search")
        self._task: asyncio.Task[None] | None = None
        self._began: float | None = None  # when the batch that is computed was handed over
        self._stopping = False

    async def start(self) -> None:
        """Begin to answer."""
        self._begin()

    async def stop(self) -> None:
        """Answer no more; whoever still waits gets an error."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for one in self._queue:
            one.fail(Busy("the server is stopping"))
        self._thread.shutdown()

    @property
    def answers(self) -> bool:
        """Whether searches are answered: somebody does it, and not one batch for longer than all wait."""
        if self._task is None or self._task.done():
            return False
        return self._began is None or time.monotonic() - self._began <= self._seconds

    async def ask(self, query: Query, settings: SearchSettings) -> tuple[SearchResult, int]:
        """The result for one query, and how many were answered with it; raises Busy if too many wait."""
        if len(self._queue) >= self._most:
            raise Busy(f"{self._most} searches are waiting already: try again in a moment", 429)
        one = PendingSearch(query, settings, asyncio.get_running_loop().create_future())
        self._queue.append(one)
        self._metrics.waiting.set(len(self._queue))
        self._wake.set()
        try:
            return await one.answer
        except asyncio.CancelledError:  # nobody waits for it any more
            with suppress(ValueError):
                self._queue.remove(one)
            self._metrics.waiting.set(len(self._queue))
            raise

    def _begin(self) -> None:
        if not self._stopping:
            self._task = asyncio.create_task(self._answer_all())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Begin again after an error that is not a search's own."""
        if self._stopping:
            return
        error = None if task.cancelled() else task.exception()
        LOGGER.error("searching was interrupted", exc_info=error)
        asyncio.get_running_loop().call_later(RESTART_S, self._begin)

    async def _answer_all(self) -> None:
        last, took = 1, 0.0  # size of the last batch, and seconds
        while True:
            await self._wake.wait()
            await self._gather(last, PATIENCE * took)
            batch = self._next()
            if not batch:
                self._wake.clear()
                continue
            last, took = len(batch), await self._answer(batch)

    async def _answer(self, batch: Sequence[PendingSearch]) -> float:
        """Answer a batch, each search with a result or an error; how many seconds it took."""
        self._began = began = time.monotonic()
        try:
            self._metrics.batch.observe(len(batch))
            outcomes = await asyncio.get_running_loop().run_in_executor(self._thread, self._answers, batch)
            for one, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    one.fail(outcome)
                elif not one.answer.done():  # else its time is over
                    one.answer.set_result((outcome, len(batch)))
        finally:
            self._began = None
            for one in batch:
                one.fail(Busy("the search was interrupted: try again"))
        return time.monotonic() - began

    async def _gather(self, expected: int, seconds: float) -> None:
        """Wait a moment for those who were just answered: they often ask again, and batches stay full."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while len(self._queue) < expected and loop.time() < end:
            await asyncio.sleep(0.001)

    def _next(self) -> list[PendingSearch]:
        """The oldest search and all that can be answered with it; what nobody waits for is dropped."""
        batch: list[PendingSearch] = []
        rest: deque[PendingSearch] = deque()
        for one in self._queue:
            if one.answer.done():
                continue
            if len(batch) < self._batch and (not batch or one.settings == batch[0].settings):
                batch.append(one)
            else:
                rest.append(one)
        self._queue = rest
        self._metrics.waiting.set(len(rest))
        return batch

    def _answers(self, batch: Sequence[PendingSearch]) -> Sequence[SearchResult | Exception]:
        """A result or an error for each; a query that cannot be answered spoils only its own answer."""
        try:
            return self._search([one.query for one in batch], batch[0].settings)
        except Exception as error:  # it is the answer to that search
            if len(batch) == 1:
                return [error]
        return [outcome for one in batch for outcome in self._answers([one])]
