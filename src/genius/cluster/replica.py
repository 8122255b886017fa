"""The two sides of a served cluster: replicas that search, and the front that asks them over HTTP.

When a replica dies, the front sends what it had to answer to another one.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import RayServeException

from genius.cluster.vectors import ShardedEngine
from genius.errors import BadInput, GeniusError, IndexLocked
from genius.ingest.result import AddResult
from genius.query.result import SearchResult
from genius.serve.backend import Status
from genius.serve.batching import Busy
from genius.serve.engine_backend import EngineBackend
from genius.serve.limits import Limits
from genius.serve.log import LOGGER
from genius.serve.metrics import Metrics
from genius.serve.schemas import CodesResponse, ItemPatch, ItemResponse, ListResponse, NewItem, SearchRequest

READS = ("search", "item", "browse", "thumbnail", "original", "stats", "codes", "versions")
WRITES = ("add", "update", "remove")
RETRY_S = 0.05  # between two attempts
PING_S = 1.0  # a replica that has not answered for so long is asked for a sign of life
SILENCE_S = 4.0  # without an answer for so long, no replica is there


class Replica:
    """An open index with its model, behind queues; ready when it is made."""

    def __init__(self, folder: str, limits: Limits, device: str, writes: bool, *shards: Any) -> None:
        engine = ShardedEngine.open(folder, device=device)
        assert isinstance(engine, ShardedEngine)
        engine.shards = shards
        self.engine, self.writes = engine, writes
        self.backend = EngineBackend(engine, limits, Metrics())
        self._begun: asyncio.Task[None] | None = None
        self.backend.warm()

    async def answer(self, what: str, *arguments: Any) -> Any:
        """The answer of the backend to one of its questions."""
        await self._begin()
        if what == "status":
            return self.backend.status
        if what in READS:
            return await getattr(self.backend, what)(*arguments)
        assert what in WRITES, what
        if not self.writes:
            raise BadInput(
                "several machines serve this index: change it where it is made, with `genius index`, and "
                "serve the new one"
            )
        end = asyncio.get_running_loop().time() + self.backend.limits.search_s
        while True:
            try:
                return await getattr(self.backend, what)(*arguments)
            except IndexLocked:  # another replica is writing: that takes a moment
                if asyncio.get_running_loop().time() > end:
                    raise
                await asyncio.sleep(RETRY_S)

    async def check_health(self) -> None:
        """Raise if this replica cannot answer any more; Ray Serve then starts another."""
        await self._begin()
        if self.backend.status != "ready":
            raise RuntimeError(f"the backend is {self.backend.status}")
        await asyncio.to_thread(self.engine.index.truth.change)

    async def _begin(self) -> None:
        if self._begun is None:
            self._begun = asyncio.create_task(self._start())
        await asyncio.shield(self._begun)

    async def _start(self) -> None:
        await self.backend.start(lambda: None)
        await self.backend.started()


class ReplicaBackend:
    """A backend whose answers come from replicas; when one fails, another one is asked."""

    def __init__(self, replicas: Any, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self._replicas = replicas
        self._stopping = False
        self._heard = -math.inf  # when a replica last answered

    @property
    def status(self) -> Status:
        """Ready as long as some replica answers."""
        if self._stopping:
            return "stopping"
        return "ready" if time.monotonic() - self._heard < SILENCE_S else "loading"

    async def start(self, failed: Callable[[], None]) -> None:
        """Begin to answer as soon as a replica does."""
        self._stopping = False
        self._watch = asyncio.create_task(self._watch_replicas())

    async def stop(self) -> None:
        """Answer no more."""
        self._stopping = True
        self._watch.cancel()
        with suppress(asyncio.CancelledError):
            await self._watch

    async def search(self, ask: SearchRequest) -> tuple[SearchResult, int]:
        """The hits of a search, and how many searches were answered together."""
        result, batch = await self._ask("search", ask)
        self.metrics.batch.observe(batch)
        self.metrics.generation.set(result.generation)
        return result, batch

    async def add(self, items: Sequence[NewItem]) -> AddResult:
        """Add items; they are on disk and searchable when this returns."""
        ids = [item.id for item in items]
        before: dict[str, str] = await self._ask("versions", ids)
        attempts: list[BaseException] = []
        added: AddResult = await self._ask("add", list(items), attempts=attempts)
        if attempts:  # a replica that died may have added some of them
            _recount(added, before, await self._ask("versions", ids))
        for how in ("added", "updated"):
            self.metrics.changed.labels(how).inc(getattr(added, how))
        return added

    async def update(self, id: str, patch: ItemPatch) -> ItemResponse:
        """Change parts of an item; the item as it is then. Raises NotFound."""
        changed: ItemResponse = await self._ask("update", id, patch)
        return changed

    async def remove(self, id: str) -> int:
        """Remove an item; how many there were."""
        before: dict[str, str] = await self._ask("versions", [id])
        attempts: list[BaseException] = []
        removed: int = await self._ask("remove", id, attempts=attempts)
        if attempts:  # a replica that died may have removed it
            removed = len(before)
        self.metrics.changed.labels("removed").inc(removed)
        return removed

    async def item(self, id: str) -> ItemResponse:
        """An item; raises NotFound."""
        found: ItemResponse = await self._ask("item", id)
        return found

    async def browse(
        self, where: str | None, limit: int, offset: int, cursor: str | None, facets: Sequence[str]
    ) -> ListResponse:
        """Stored items that pass a filter, in the order they were added."""
        answer: ListResponse = await self._ask("browse", where, limit, offset, cursor, list(facets))
        return answer

    async def thumbnail(self, id: str, side: int) -> bytes:
        """A small JPEG of an item's image; raises NotFound."""
        data: bytes = await self._ask("thumbnail", id, side)
        return data

    async def original(self, id: str) -> tuple[str, str]:
        """The file with an item's image and its media type; raises NotFound."""
        path, media_type = await self._ask("original", id)
        return path, media_type

    async def stats(self) -> dict[str, Any]:
        """What is in the index."""
        facts: dict[str, Any] = await self._ask("stats")
        for modality, count in facts["modalities"].items():
            self.metrics.items.labels(modality).set(count)
        self.metrics.generation.set(facts["generation"])
        return facts

    async def codes(self, prefix: Sequence[int]) -> CodesResponse:
        """What shares a prefix of codes."""
        answer: CodesResponse = await self._ask("codes", list(prefix))
        return answer

    async def _watch_replicas(self) -> None:
        """Ask for a sign of life whenever there was none for a while."""
        while True:
            if time.monotonic() - self._heard > PING_S:
                try:
                    async with asyncio.timeout(SILENCE_S):
                        if await self._replicas.answer.remote("status") == "ready":
                            self._heard = time.monotonic()
                except Exception as error:  # whatever it is, there is no answer; the next look may find one
                    LOGGER.warning("no replica", extra={"fields": {"reason": type(error).__name__}})
            await asyncio.sleep(PING_S / 2)

    async def _ask(self, what: str, *arguments: Any, attempts: list[BaseException] | None = None) -> Any:
        """What a replica answers; raises what it raises, and Busy when none answers in time."""
        try:
            async with asyncio.timeout(self.limits.write_s if what in WRITES else self.limits.search_s):
                return await self._ask_until_answered(what, arguments, attempts)
        except TimeoutError:
            raise Busy("no replica answers: try again in a moment") from None

    async def _ask_until_answered(
        self, what: str, arguments: Sequence[Any], attempts: list[BaseException] | None
    ) -> Any:
        while True:
            try:
                answer = await self._replicas.answer.remote(what, *arguments)
            except RayTaskError as error:
                cause = error.cause
                if isinstance(cause, GeniusError):
                    self._heard = time.monotonic()
                    raise cause from None
                if not isinstance(cause, RayActorError):
                    raise
                problem: BaseException = cause
            except (RayActorError, RayServeException) as error:
                problem = error
            else:
                self._heard = time.monotonic()
                return answer
            if attempts is not None:
                attempts.append(problem)
            LOGGER.warning("asked again", extra={"fields": {"what": what, "reason": type(problem).__name__}})
            await asyncio.sleep(RETRY_S)


def _recount(added: AddResult, before: dict[str, str], after: dict[str, str]) -> None:
    """Correct the counts of a second attempt by what was stored before the first one."""
    new = sum(id not in before for id in after)
    changed = sum(id in before and before[id] != version for id, version in after.items())
    total = added.added + added.updated + added.unchanged
    added.added, added.updated, added.unchanged = new, changed, total - new - changed
