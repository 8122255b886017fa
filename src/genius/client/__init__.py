"""A client for `genius serve` with the methods of `Engine`; needs nothing but Python."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from genius.client.connection import ITEMS, Connection, ServerError
from genius.client.values import (
    HitPage,
    StoredItem,
    StoredPage,
    base64_of,
    batches,
    facets_of,
    fields_of,
    hits_of,
    numbers,
    stored_of,
    without_none,
)
from genius.errors import BadInput, MissingImage
from genius.ingest.result import WITHOUT_IMAGE, AddResult, require_items
from genius.types import Hit, Item, Modality, Query

AT_ONCE = 16  # searches under way at a time, which the server answers together

__all__ = ["Client", "HitPage", "ServerError", "StoredItem", "StoredPage"]


class Client(Connection):
    """An engine that runs elsewhere. Threads may share it."""

    def search(
        self,
        query: str | Path | Query,
        k: int = 10,
        want: Modality | str | None = None,
        *,
        search: str | None = None,
        rerank: str | None = None,
        beam: int | None = None,
        instruction: str | None = None,
        where: str | None = None,
        match: str | None = None,
        hybrid: bool | None = None,
        offset: int = 0,
        at_least: float | None = None,
    ) -> list[Hit]:
        """The `k` best items for a text, an image file or a `Query`, as `Engine.search` finds them."""
        return self.result(
            query,
            k,
            want,
            search=search,
            rerank=rerank,
            beam=beam,
            instruction=instruction,
            where=where,
            match=match,
            hybrid=hybrid,
            offset=offset,
            at_least=at_least,
        ).hits

    def result(
        self,
        query: str | Path | Query,
        k: int = 10,
        want: Modality | str | None = None,
        *,
        search: str | None = None,
        rerank: str | None = None,
        beam: int | None = None,
        instruction: str | None = None,
        where: str | None = None,
        match: str | None = None,
        hybrid: bool | None = None,
        offset: int = 0,
        cursor: str | None = None,
        facets: Sequence[str] = (),
        at_least: float | None = None,
    ) -> HitPage:
        """As `search`, with the counts of `facets` and the cursor that leads to the next page."""
        parts = Query.of(query).wanting(want, instruction)
        body = {
            "text": parts.text,
            "image": None if parts.image is None else base64_of(parts.image),
            "vector": numbers(parts.vector),
            "want": parts.want,
            "instruction": parts.instruction,
            "k": k,
            "search": search,
            "rerank": rerank,
            "beam": beam,
            "where": where,
            "match": match,
            "hybrid": hybrid,
            "offset": offset or None,
            "cursor": cursor,
            "facets": list(facets) or None,
            "at_least": at_least,
        }
        answer = self._json("POST", "/v1/search", without_none(body))
        return HitPage(
            hits_of(answer["hits"]),
            answer["pool"],
            facets_of(answer),
            answer["cursor"],
            hits_of(answer["nearest"]),
            answer.get("unknown_fields", ()),
        )

    def pages(
        self, query: str | Path | Query, k: int = 10, want: Modality | str | None = None, **options: Any
    ) -> Iterator[list[Hit]]:
        """All items for a query, `k` at a time, best first, as `Engine.pages` gives them."""
        cursor: str | None = None
        while True:
            page = self.result(query, k, want, cursor=cursor, **options)
            if page.hits:
                yield page.hits
            cursor = page.cursor
            if cursor is None:
                return
            options.pop("offset", None)  # of the first page

    def search_batch(
        self,
        queries: Sequence[str | Path | Query],
        k: int = 10,
        want: Modality | str | None = None,
        *,
        search: str | None = None,
        rerank: str | None = None,
        beam: int | None = None,
        instruction: str | None = None,
        where: str | None = None,
        match: str | None = None,
        hybrid: bool | None = None,
        offset: int = 0,
        at_least: float | None = None,
    ) -> list[list[Hit]]:
        """The `k` best items for each query; they are sent side by side and answered together."""
        if isinstance(queries, str | Path | Query):
            raise BadInput("search_batch answers a list of queries: call search(query) for one")

        def one(query: str | Path | Query) -> list[Hit]:
            return self.search(
                query,
                k,
                want,
                search=search,
                rerank=rerank,
                beam=beam,
                instruction=instruction,
                where=where,
                match=match,
                hybrid=hybrid,
                offset=offset,
                at_least=at_least,
            )

        with ThreadPoolExecutor(min(AT_ONCE, max(1, len(queries)))) as senders:
            return list(senders.map(one, queries))

    def like(
        self,
        id: str,
        but: str | None = None,
        k: int = 10,
        want: Modality | str | None = None,
        *,
        instruction: str | None = None,
        where: str | None = None,
        match: str | None = None,
        offset: int = 0,
        at_least: float | None = None,
    ) -> list[Hit]:
        """Items like a stored one, changed as the text `but` says; the item itself is left out."""
        asked = Query().wanting(want, instruction)
        body = {
            "like": id, "text": but, "k": k, "want": asked.want, "instruction": asked.instruction,
            "where": where, "match": match, "at_least": at_least, "offset": offset or None,
        }  # fmt: skip
        return hits_of(self._json("POST", "/v1/search", without_none(body))["hits"])

    def add(self, items: Iterable[Item]) -> AddResult:
        """Add or update items by id; files are read here and sent, bad items are skipped and named."""
        require_items(items, "add")
        total = AddResult()
        for batch in batches(items):
            ready = []
            for item in batch:
                try:
                    ready.append(fields_of(item))
                except MissingImage as error:
                    if item.text:
                        ready.append(
                            fields_of(replace(item, image=None, meta={**item.meta, **WITHOUT_IMAGE}))
                        )
                        total.report.note(item.id, f"{error}; its text is sent")
                    else:
                        total.report.skip(item.id, error)
                except BadInput as error:
                    total.report.skip(getattr(item, "id", item), error)
            self._add(ready, total)
        return total

    def _add(self, items: Sequence[dict[str, Any]], total: AddResult) -> None:
        """Send items and count what became of them; if the server refuses a batch, each is sent alone."""
        if not items:
            return
        try:
            answer = self._json("POST", ITEMS, {"items": items})
        except BadInput as error:
            if len(items) == 1:
                total.report.skip(items[0]["id"], error)
                return
            for item in items:
                self._add([item], total)
            return
        for name in ("added", "updated", "unchanged", "repeated"):
            setattr(total, name, getattr(total, name) + answer[name])
        for skipped in answer["skipped"]:
            total.report.skip(skipped["id"], skipped["reason"])

    def update(self, changes: Iterable[Item]) -> AddResult:
        """Change parts of stored items, as `Engine.update` does."""
        require_items(changes, "update")
        total = AddResult()
        for change in changes:
            try:
                fields = fields_of(change)
                path = f"{ITEMS}/{quote(fields.pop('id'), safe='')}"
                self._json("PATCH", path, fields)
                total.updated += 1
            except BadInput as error:
                total.report.skip(getattr(change, "id", change), error)
        return total

    def remove(self, ids: str | Iterable[str]) -> int:
        """Remove one or several items by id; returns how many were removed."""
        every = [ids] if isinstance(ids, str) else ids
        return sum(self._maybe("DELETE", f"{ITEMS}/{quote(id, safe='')}") is not None for id in every)

    def get(self, id: str) -> StoredItem | None:
        """A stored item; None if there is none."""
        raw = self._maybe("GET", f"{ITEMS}/{quote(id, safe='')}")
        if raw is None:
            return None
        return stored_of(json.loads(raw))

    def browse(
        self,
        where: str | None = None,
        limit: int = 100,
        offset: int = 0,
        *,
        cursor: str | None = None,
        facets: Sequence[str] = (),
    ) -> StoredPage:
        """The stored items that match a filter, as `Engine.browse` returns them."""
        options = without_none({"where": where, "limit": limit, "offset": offset, "cursor": cursor})
        asked = urlencode([*options.items(), *(("facet", field) for field in facets)])
        answer = self._json("GET", f"{ITEMS}?{asked}")
        items = [stored_of(item) for item in answer["items"]]
        return StoredPage(items, answer["total"], facets_of(answer), answer["cursor"])

    def count(self, where: str | None = None) -> int:
        """The number of items that match a filter, or of all items."""
        return self.browse(where, limit=0).total

    def __len__(self) -> int:
        """How many items there are."""
        return self.count()

    def __bool__(self) -> bool:
        """A client is true, whether or not the index is empty; the server is not asked."""
        return True

    def __iter__(self) -> Iterator[str]:
        """The ids of all items, in the order they were added, as a dict gives its keys."""
        cursor: str | None = None
        while True:
            page = self.browse(cursor=cursor)
            yield from (item.id for item in page.items)
            cursor = page.cursor
            if cursor is None:
                return

    def __contains__(self, id: object) -> bool:
        """Whether an item is called so."""
        return isinstance(id, str) and self.get(id) is not None

    def thumbnail(self, id: str, side: int = 256) -> bytes | None:
        """A small JPEG of an item's image; None if there is no such item or image."""
        return self._maybe("GET", f"{ITEMS}/{quote(id, safe='')}/thumbnail?side={side}")

    def original(self, id: str) -> bytes | None:
        """The image file of an item; None if there is none, or the server does not show files."""
        return self._maybe("GET", f"{ITEMS}/{quote(id, safe='')}/original")

    def stats(self) -> dict[str, Any]:
        """Items, sizes and settings, as plain values."""
        return dict(self._json("GET", "/v1/stats"))
