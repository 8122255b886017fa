"""The engine as the server uses it: each kind of work in its own thread, errors left to the routes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from genius.data.images import media_type
from genius.engine import Engine
from genius.errors import BadImage, BadInput
from genius.filter.match import with_match
from genius.ingest.item import thumbnail
from genius.ingest.result import AddResult
from genius.query.paging import PageCursor
from genius.query.result import SearchResult
from genius.serve.backend import NotFound, Status
from genius.serve.batching import Batcher, Busy, SearchSettings, StillRunning
from genius.serve.decoding import SIDE, ImageDecoder
from genius.serve.limits import Limits
from genius.serve.log import LOGGER, log
from genius.serve.metrics import Metrics
from genius.serve.schemas import (
    ChildCode,
    CodesResponse,
    FacetValue,
    ItemPatch,
    ItemResponse,
    ListResponse,
    NewItem,
    SearchRequest,
)
from genius.store.records import Record
from genius.types import Item, Modality, Query

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")
READERS = 4
PRIVATE = ("folder",)  # where the index lies is nobody's business


class EngineBackend:
    """An engine behind queues: searches in batches, changes one after the other, small reads beside them."""

    def __init__(self, engine: Engine, limits: Limits, metrics: Metrics) -> None:
        self.engine, self.limits, self.metrics = engine, limits, metrics
        self.error: Exception | None = None
        self._state: Status = "loading"
        self._writing = 0

    @property
    def status(self) -> Status:
        """Ready when the model is loaded and searches are answered in time."""
        return "stuck" if self._state == "ready" and not self._batcher.answers else self._state

    async def start(self, failed: Callable[[], None]) -> None:
        """Begin to answer; the model is loaded meanwhile, and `failed` is called if it cannot be."""
        limits = self.limits
        self._state, self.error = "loading", None
        self._reads = ThreadPoolExecutor(READERS, "read")
        self._writes = ThreadPoolExecutor(1, "write")
        self._batcher = Batcher(
            self._search,
            batch=limits.batch,
            waiting=limits.waiting,
            seconds=limits.search_s,
            metrics=self.metrics,
        )
        self._decoder = ImageDecoder(
            processes=limits.decoders, waiting=limits.waiting, seconds=limits.decode_s
        )
        self._adding = asyncio.Semaphore(limits.decoders)  # adds that hold decoded images
        await self._batcher.start()
        self._loading = asyncio.create_task(self._load(failed))

    async def started(self) -> None:
        """Wait until the model is loaded, or cannot be."""
        await self._loading

    async def stop(self) -> None:
        """Let work under way end, then let go of the engine's threads."""
        self._state = "stopping"
        self._loading.cancel()
        await self._batcher.stop()
        await asyncio.to_thread(self._decoder.close)
        await asyncio.to_thread(self._writes.shutdown)
        await asyncio.to_thread(self._reads.shutdown)

    async def _load(self, failed: Callable[[], None]) -> None:
        try:
            await self._read(self.warm)
            self._state = "ready"
            log("ready", items=(await self.stats())["items"], model=self.engine.index.settings["model"])
        except Exception as error:
            self._state, self.error = "failed", error
            LOGGER.error("model not loaded", extra={"fields": {"reason": str(error)}})
            failed()

    def warm(self) -> None:
        """Load what the first search would have to load, the decoder too."""
        _ = self.engine.model, self.engine.searcher
        self.engine.warm()

    # --- searching ----------------------------------------------------------------------------------------

    async def search(self, ask: SearchRequest) -> tuple[SearchResult, int]:
        """The hits of a search, and how many searches were answered together."""
        self._require_ready()
        where = with_match(ask.where, ask.match)
        settings = SearchSettings(
            ask.k,
            ask.search,
            ask.rerank,
            ask.beam,
            where,
            ask.offset,
            ask.cursor,
            ask.like,
            tuple(ask.facets),
            ask.hybrid if ask.like is None else False,
        )
        try:
            async with asyncio.timeout(self.limits.search_s):
                await self._read(self.engine.prepare, where)  # others are searching meanwhile
                result, batch = await self._batcher.ask(await self._query(ask), settings)
        except TimeoutError:
            seconds = f"{self.limits.search_s:g} s"
            raise Busy(f"no answer within {seconds}: try again, with a smaller beam or picture") from None
        if result.cursor is not None and len(PageCursor.parse(result.cursor).shown) >= self.limits.depth:
            result = result._replace(cursor=None)
        if not result.pool and ask.where:
            unknown = await self._read(self.engine.unknown_fields, ask.where)
            result = result._replace(unknown_fields=unknown)
        return result.at_least(ask.at_least), batch

    def _search(self, queries: Sequence[Query], settings: SearchSettings) -> list[SearchResult]:
        results = self.engine.results(queries, **settings._asdict())
        if results:
            self.metrics.generation.set(results[0].generation)
        return results

    async def _query(self, ask: SearchRequest) -> Query:
        text, image = ask.text, None
        if ask.vector is not None:
            return Query(vector=ask.vector, want=_modality(ask.want), instruction=ask.instruction or None)
        if ask.image is not None:
            image = await self._decoder.decode(ask.image, self.limits.pixels)
        if ask.like is not None and not self.engine.index.embeds:
            vector = await self._read(self.engine.vector, ask.like)
            return Query(text=text, image=image, vector=vector, want=_modality(ask.want))
        if ask.like is not None:
            text, stored = await self._like(ask.like, (text or "").strip())
            image = image or stored
        return Query(text=text, image=image, want=_modality(ask.want), instruction=ask.instruction)

    async def _like(self, id: str, but: str) -> tuple[str | None, Image | None]:
        """Text and image to search with for what is like an item; with `but`, a caption gives way to it."""
        record = await self._read(self._record, id)
        image = None
        if record.modality is not Modality.TEXT:
            image = await self._decoder.decode(await self.thumbnail(id, SIDE), self.limits.pixels)
        if but and image is not None:
            return but, image
        return " ".join(filter(None, (record.text, but))) or None, image

    # --- changing -----------------------------------------------------------------------------------------

    async def add(self, items: Sequence[NewItem]) -> AddResult:
        """Add items; they are on disk and searchable when this returns."""
        self._require_ready()
        refused: list[tuple[str, BadImage]] = []
        if any(item.image is not None for item in items):
            self._require_turn()
            async with self._adding:
                added = await self._write(self._add, await self._decoded(items, refused))
        else:
            added = await self._write(self._add, [Item(i.id, None, i.text, i.meta, i.vector) for i in items])
        for id, reason in refused:
            added.report.skip(id, reason)
        for how in ("added", "updated"):
            self.metrics.changed.labels(how).inc(getattr(added, how))
        return added

    def _add(self, items: Sequence[Item]) -> AddResult:
        """Add items; fitting codes to them would take too long for a request."""
        return self.engine.add(items, fit="never")

    async def _decoded(self, items: Sequence[NewItem], refused: list[tuple[str, BadImage]]) -> list[Item]:
        """The items with their images decoded, one after the other; those that cannot be are `refused`."""
        ready = []
        try:
            async with asyncio.timeout(self.limits.decode_all_s):
                for item in items:
                    try:
                        data = item.image
                        image = None if data is None else await self._decoder.decode(data, self.limits.pixels)
                        ready.append(Item(item.id, image, item.text, item.meta, item.vector))
                    except BadImage as error:
                        refused.append((item.id, error))
        except TimeoutError:
            raise Busy(
                f"the pictures of this request took more than {self.limits.decode_all_s:g} s to decode: "
                "nothing was added, send fewer at a time"
            ) from None
        return ready

    async def update(self, id: str, patch: ItemPatch) -> ItemResponse:
        """Change parts of an item; the item as it is then. Raises NotFound, or BadInput with the reason."""
        self._require_ready()
        await self._read(self._record, id)
        image = None if patch.image is None else await self._decoder.decode(patch.image, self.limits.pixels)
        updated = await self._write(self.engine.update, [Item(id, image, patch.text, patch.meta)])
        for skipped in updated.skipped:
            raise BadInput(skipped.reason)
        self.metrics.changed.labels("updated").inc(updated.updated)
        return await self.item(id)

    async def remove(self, id: str) -> int:
        """Remove an item; it is gone when this returns. How many there were."""
        removed = await self._write(self.engine.remove, [id])
        self.metrics.changed.labels("removed").inc(removed)
        return removed

    async def versions(self, ids: Sequence[str]) -> dict[str, str]:
        """What tells, for each stored one of `ids`, whether it is changed later."""
        known = await self._read(self.engine.index.truth.known, ids)
        return {id: f"{item.row} {item.hash.hex()} {item.meta}" for id, item in known.items()}

    # --- looking ------------------------------------------------------------------------------------------

    async def item(self, id: str) -> ItemResponse:
        """An item; raises NotFound."""
        return _with_path(await self._read(self._record, id))

    async def browse(
        self, where: str | None, limit: int, offset: int, cursor: str | None, facets: Sequence[str]
    ) -> ListResponse:
        """Stored items that pass a filter, in the order they were added."""
        page = await self._read(
            lambda: self.engine.browse(where, limit, offset, cursor=cursor, facets=facets)
        )
        return ListResponse(
            items=[_with_path(record) for record in page.items],
            total=page.total,
            facets={
                field: [FacetValue(**one._asdict()) for one in own] for field, own in page.facets.items()
            },
            cursor=page.cursor,
        )

    async def thumbnail(self, id: str, side: int) -> bytes:
        """A small JPEG of an item's image; raises NotFound."""
        path = self.engine.index.image_path(await self._read(self._record, id))
        if path is None:
            data = await self._read(self.engine.thumbnail, id, side)
            if data is None:
                raise NotFound("no item with a picture has this id")
            return data
        try:
            image = await self._decoder.decode(Path(path), side=side)
        except BadImage:
            raise NotFound("the picture of this item cannot be read any more") from None
        return await self._read(thumbnail, image, side)

    async def original(self, id: str) -> tuple[str, str]:
        """The file with an item's image and its media type; raises NotFound."""
        path = self.engine.index.image_path(await self._read(self._record, id))
        if path is None:
            raise NotFound("no file of this item is known: its thumbnail is all there is")
        try:
            return path, await self._read(media_type, path)
        except BadImage:
            raise NotFound("the picture of this item cannot be read any more") from None

    async def stats(self) -> dict[str, Any]:
        """What is in the index."""
        facts = await self._read(self.engine.stats)
        for modality, count in facts["modalities"].items():
            self.metrics.items.labels(modality).set(count)
        self.metrics.generation.set(facts["generation"])
        return {name: value for name, value in facts.items() if name not in PRIVATE}

    async def codes(self, prefix: Sequence[int]) -> CodesResponse:
        """What shares a prefix of codes."""
        branch, records = await self._read(self.engine.branch, prefix)

        def shown(rows: Sequence[int]) -> list[ItemResponse]:
            return [item_response(records[row]) for row in rows if row in records]

        return CodesResponse(
            prefix=list(branch.prefix),
            levels=self.engine.index.levels,
            items=branch.items,
            codes=[ChildCode(code=t.code, items=t.items, some=shown(t.rows)) for t in branch.children],
            first=shown(branch.rows),
        )

    # --- threads ------------------------------------------------------------------------------------------

    def _record(self, id: str) -> Record:
        record = self.engine.get(id)
        if record is None:
            raise NotFound("no item has this id")
        return record

    def _require_ready(self) -> None:
        if self._state != "ready":
            raise Busy(f"the server is {self._state}: try again in a moment")

    def _require_turn(self) -> None:
        if self._writing >= self.limits.writes:
            raise Busy(f"{self.limits.writes} changes are waiting already: try again in a moment", 429)

    async def _read(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reads, work, *arguments)

    async def _write(self, work: Callable[..., T], *arguments: Any) -> T:
        """The result of a change, which waits for those before it; once begun, it is carried out."""
        self._require_turn()
        self._writing += 1
        change = asyncio.get_running_loop().run_in_executor(self._writes, work, *arguments)
        change.add_done_callback(self._written)
        try:
            return await asyncio.wait_for(asyncio.shield(change), self.limits.write_s)
        except TimeoutError:
            raise StillRunning("the change goes on, but takes long: look for it later", change) from None

    def _written(self, change: asyncio.Future[Any]) -> None:
        self._writing -= 1
        if not change.cancelled():
            change.exception()  # whoever gave up waiting does not ask for it


def _modality(want: str) -> Modality | None:
    return None if want == "any" else Modality(want)


def _with_path(record: Record) -> ItemResponse:
    """The same with where its file is, which some servers do not tell."""
    return item_response(record).model_copy(update={"path": record.path})


def item_response(record: Record) -> ItemResponse:
    """A stored item as it is shown."""
    return ItemResponse(
        id=record.id,
        modality=record.modality,
        codes=record.codes.tolist(),
        text=record.text,
        image=record.modality is not Modality.TEXT,
        meta=json.loads(record.meta),
        path=None,
    )
