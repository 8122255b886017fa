"""A client for `genius serve` with the methods of `Engine`; needs nothing but Python."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit
from uuid import uuid4

from genius.errors import BadInput, GeniusError, MissingImage
from genius.ingest.result import WITHOUT_IMAGE, AddResult
from genius.types import FacetCount, Facets, Hit, Item, Modality, Query

if TYPE_CHECKING:
    from genius.types import ImageSource, VectorSource

ITEMS = "/v1/items"
BATCH = 16  # items in one request
AT_ONCE = 16  # searches under way at a time, which the server answers together
_REFUSED = (400, 404, 413, 422)  # sending it again would not help


class ServerError(GeniusError):
    """The server cannot be reached, is busy, or wants a key; `status` is its answer, 0 if there was none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class HitPage(NamedTuple):
    """Some hits of one search, and what leads to the next ones."""

    hits: list[Hit]
    pool: int  # items that could have been found: what the filter and `want` keep
    facets: Facets
    cursor: str | None  # of the next page


class StoredPage(NamedTuple):
    """Some of the stored items, in the order they were added."""

    items: list[StoredItem]
    total: int  # how many the filter keeps
    facets: Facets  # over all of them
    cursor: str | None  # of the next page


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item as the server shows it."""

    id: str
    modality: Modality
    codes: tuple[int, ...]
    text: str | None
    meta: dict[str, Any]
    path: str | None = None


class Client:
    """An engine that runs elsewhere. Threads may share it."""

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

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the client can still be used, and opens new ones then."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # --- as Engine ----------------------------------------------------------------------------------------

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
        offset: int = 0,
        cursor: str | None = None,
        facets: Sequence[str] = (),
        at_least: float | None = None,
    ) -> HitPage:
        """As `search`, with the counts of `facets` and the cursor that leads to the next page."""
        parts = Query.of(query).wanting(want, instruction)
        body = {
            "text": parts.text,
            "image": None if parts.image is None else _base64(parts.image),
            "vector": _numbers(parts.vector),
            "want": parts.want,
            "instruction": parts.instruction,
            "k": k,
            "search": search,
            "rerank": rerank,
            "beam": beam,
            "where": where,
            "match": match,
            "offset": offset or None,
            "cursor": cursor,
            "facets": list(facets) or None,
            "at_least": at_least,
        }
        answer = self._json("POST", "/v1/search", _without_none(body))
        return HitPage(_hits(answer), answer["pool"], _facets(answer), answer["cursor"])

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
        """What is like a stored item, but as the words in `but` say; the item itself is left out."""
        asked = Query().wanting(want, instruction)
        body = {
            "like": id, "text": but, "k": k, "want": asked.want, "instruction": asked.instruction,
            "where": where, "match": match, "at_least": at_least, "offset": offset or None,
        }  # fmt: skip
        return _hits(self._json("POST", "/v1/search", _without_none(body)))

    def add(self, items: Iterable[Item]) -> AddResult:
        """Add or update items by id; files are read here and sent, bad items are skipped and named."""
        if isinstance(items, Item):
            raise BadInput("add takes several items: call add([item]) for one")
        total = AddResult()
        for batch in _batches(items):
            ready = []
            for item in batch:
                try:
                    ready.append(_fields(item))
                except MissingImage as error:
                    if item.text:
                        ready.append(_fields(replace(item, image=None, meta={**item.meta, **WITHOUT_IMAGE})))
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
        """Change stored items in part: what a change does not name stays, as for `Engine.update`."""
        if isinstance(changes, Item):
            raise BadInput("update takes several changes: call update([item]) for one")
        total = AddResult()
        for change in changes:
            try:
                fields = _fields(change)
                path = f"{ITEMS}/{quote(fields.pop('id'), safe='')}"
                self._json("PATCH", path, fields)
                total.updated += 1
            except BadInput as error:
                total.report.skip(getattr(change, "id", change), error)
        return total

    def remove(self, ids: str | Iterable[str]) -> int:
        """Take items out by id, one or several; how many there were."""
        every = [ids] if isinstance(ids, str) else ids
        return sum(self._maybe("DELETE", f"/v1/items/{quote(id, safe='')}") is not None for id in every)

    def get(self, id: str) -> StoredItem | None:
        """What is stored of an item; None if it is not there."""
        raw = self._maybe("GET", f"/v1/items/{quote(id, safe='')}")
        if raw is None:
            return None
        return _stored(json.loads(raw))

    def browse(
        self,
        where: str | None = None,
        limit: int = 100,
        offset: int = 0,
        *,
        cursor: str | None = None,
        facets: Sequence[str] = (),
    ) -> StoredPage:
        """The stored items that pass a filter, as `Engine.browse` gives them."""
        options = _without_none({"where": where, "limit": limit, "offset": offset, "cursor": cursor})
        asked = urlencode([*options.items(), *(("facet", field) for field in facets)])
        answer = self._json("GET", f"{ITEMS}?{asked}")
        items = [_stored(item) for item in answer["items"]]
        return StoredPage(items, answer["total"], _facets(answer), answer["cursor"])

    def count(self, where: str | None = None) -> int:
        """How many items pass a filter; all without one."""
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
        return self._maybe("GET", f"/v1/items/{quote(id, safe='')}/thumbnail?side={side}")

    def original(self, id: str) -> bytes | None:
        """The image file of an item; None if there is none, or the server does not show files."""
        return self._maybe("GET", f"/v1/items/{quote(id, safe='')}/original")

    def stats(self) -> dict[str, Any]:
        """Items, sizes and settings, as plain values."""
        return dict(self._json("GET", "/v1/stats"))

    # --- HTTP ---------------------------------------------------------------------------------------------

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


class ItemNotFound(BadInput):
    """No item has that id."""


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


def _fields(item: Item) -> dict[str, Any]:
    """An item as it is sent; raises BadInput if it cannot be."""
    if not isinstance(item, Item):
        raise BadInput(f"not an Item but {type(item).__name__}")
    try:
        fields = _without_none(
            {"id": item.id, "text": item.text, "meta": dict(item.meta), "vector": _numbers(item.vector)}
        )
        if item.image is not None:
            fields["image"] = _base64(item.image)
        json.dumps(fields, allow_nan=False)
    except BadInput:
        raise
    except Exception as error:  # parts of a type that nobody foresaw: their owner is told, the run goes on
        raise BadInput(f"cannot be sent: {type(error).__name__}: {error}") from None
    return {"id": None, **fields}


def _numbers(vector: VectorSource | None) -> list[float] | None:
    return None if vector is None else [float(number) for number in vector]


def _base64(image: ImageSource) -> str:
    if isinstance(image, str | Path):
        file = Path(image)
        try:
            image = file.read_bytes()
        except FileNotFoundError:
            raise MissingImage(f"no image at {file}") from None
        except OSError as error:
            raise BadInput(f"cannot read {file}: {error.strerror}") from None
    elif not isinstance(image, bytes):
        buffer = BytesIO()
        image.convert("RGB").save(buffer, "PNG")
        image = buffer.getvalue()
    return base64.b64encode(image).decode()


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    source = iter(items)
    while batch := list(islice(source, BATCH)):
        yield batch


def _stored(item: Any) -> StoredItem:
    return StoredItem(
        item["id"],
        Modality(item["modality"]),
        tuple(item["codes"]),
        item["text"],
        item["meta"],
        item["path"],
    )


def _facets(answer: Any) -> Facets:
    return {field: [FacetCount(**one) for one in counts] for field, counts in answer["facets"].items()}


def _hits(answer: Any) -> list[Hit]:
    return [
        Hit(
            id=hit["id"],
            score=hit["score"],
            rank=hit["rank"],
            modality=Modality(hit["modality"]),
            codes=tuple(hit["codes"]),
            text=hit["text"],
            path=hit["path"],
            meta=hit["meta"],
            confidence=hit["confidence"],
            missing=hit["missing"],
        )
        for hit in answer["hits"]
    ]
