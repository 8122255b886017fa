"""The routes of the API: requests are parsed into values, results are written as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import PurePath
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from genius.data.exif import PLACE
from genius.data.report import printable
from genius.errors import BadInput, GeniusError
from genius.filter.grammar import field_tests, parse_field, parse_filter
from genius.query.facets import MAX_FACETS
from genius.serve.backend import Backend
from genius.serve.idempotency import HEADER, Changes
from genius.serve.limits import Limits
from genius.serve.schemas import (
    FACETS,
    MAX_LIST_CURSOR,
    AddRequest,
    AddResponse,
    CodesResponse,
    Health,
    ItemPatch,
    ItemResponse,
    ListResponse,
    NewItem,
    Problem,
    RemoveResponse,
    SearchRequest,
    SearchResponse,
    SkippedItem,
    StatsResponse,
    Where,
)
from genius.types import Hit

M = TypeVar("M", bound=BaseModel)
SEND = "send JSON with `content-type: application/json`, or a form with `content-type: multipart/form-data`"
SHOWN_LIMITS = ("beam", "hits", "depth", "items", "body", "pixels")
TAGS = {400: "not HTTP as it should be", 401: "key missing or wrong", 403: "asked by another site's page"}
TAGS |= {408: "sent too slowly", 413: "too large", 422: "cannot be used", 429: "too many", 503: "busy"}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": what} for status, what in TAGS.items()
}
MISSING: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "not there"}}
JPEG: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}}
}

ANY_IMAGE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}}
}


def routes(backend: Backend, *, originals: bool, places: bool) -> APIRouter:
    """All routes but the page; with `originals`, files and their paths are shown, with `places`, where photos
    were taken.
    """
    api = APIRouter(responses=PROBLEMS)
    limits = backend.limits
    changes = Changes()

    @api.post(
        "/v1/search",
        response_model=SearchResponse,
        summary="Find items with a text, an image or both",
        openapi_extra=_body(SearchRequest, {"beam": limits.beam, "k": limits.hits}),
        responses=MISSING,
    )
    async def search(request: Request) -> Response:
        started = time.perf_counter()
        ask = await _parsed(request, SearchRequest, limits)
        if not places:
            _refuse_places(ask.where, ask.facets)
        result, batch = await backend.search(ask)
        answer = {
            "hits": [_hit(hit, originals, places) for hit in result.hits],
            "nearest": [_hit(hit, originals, places) for hit in result.nearest],
            "took_ms": round((time.perf_counter() - started) * 1000, 2),
            "generation": result.generation,
            "changes": result.changes,
            "beams": result.beams,
            "leaves": result.leaves,
            "batch": batch,
            "pool": result.pool,
            "facets": {field: [one._asdict() for one in counts] for field, counts in result.facets.items()},
            "cursor": result.cursor,
            "unknown_fields": result.unknown_fields,
        }
        return _json(answer)

    @api.post(
        "/v1/items",
        summary="Add items, or replace those with the same ids",
        openapi_extra=_body(AddRequest, {"items": limits.items}, multipart=NewItem),
    )
    async def add(request: Request) -> AddResponse:
        if _is_form(request):
            items = [await _parsed(request, NewItem, limits)]
        else:
            items = (await _parsed(request, AddRequest, limits)).items
        added = await changes.once(request.headers.get(HEADER), _digest(items), lambda: backend.add(items))
        return AddResponse(
            added=added.added,
            updated=added.updated,
            unchanged=added.unchanged,
            repeated=added.repeated,
            skipped=[SkippedItem(id=name, reason=reason) for name, reason in added.report.names],
            ids=[item.id for item in items],
        )

    @api.get("/v1/items", summary="Stored items, optionally filtered", response_model=ListResponse)
    async def browse(
        where: Annotated[Where | None, Query()] = None,
        limit: Annotated[int | None, Query(ge=0, description="How many items; by default 100.")] = None,
        offset: Annotated[int, Query(ge=0, lt=2**31)] = 0,
        cursor: Annotated[str | None, Query(max_length=MAX_LIST_CURSOR)] = None,
        facet: Annotated[list[str] | None, Query(max_length=MAX_FACETS, description=FACETS)] = None,
    ) -> Response:
        if limit is not None and limit > limits.hits:
            raise BadInput(f"limit: {limit} is over the cap of this server: at most {limits.hits}")
        if not places:
            _refuse_places(where, facet or [])
        size = min(100, limits.hits) if limit is None else limit
        page = await backend.browse(where, size, offset, cursor, facet or [])
        page.items = [_shown(item, originals, places) for item in page.items]
        return _json(page)

    @api.get("/v1/items/{id}", summary="One item", response_model=ItemResponse, responses=MISSING)
    async def item(id: str) -> Response:
        found = await backend.item(unquote(id))
        return _json(_shown(found, originals, places))

    @api.patch(
        "/v1/items/{id}",
        summary="Change parts of one item",
        response_model=ItemResponse,
        openapi_extra=_body(ItemPatch, {}),
        responses=MISSING,
    )
    async def update(id: str, request: Request) -> Response:
        name, patch = unquote(id), await _parsed(request, ItemPatch, limits)
        changed = await backend.update(name, patch)
        return _json(_shown(changed, originals, places))

    @api.delete("/v1/items/{id}", summary="Remove one item", responses=MISSING)
    async def remove(id: str, request: Request) -> RemoveResponse:
        name = unquote(id)
        removed = await changes.once(request.headers.get(HEADER), name, lambda: backend.remove(name))
        if not removed:
            raise HTTPException(404, "no item has this id")
        return RemoveResponse(removed=removed)

    @api.get(
        "/v1/items/{id}/thumbnail",
        summary="A thumbnail of one item",
        response_class=Response,
        responses={**JPEG, **MISSING},
    )
    async def thumbnail(id: str, side: Annotated[int, Query(ge=16, le=1024)] = 256) -> Response:
        data = await backend.thumbnail(unquote(id), side)
        return Response(data, media_type="image/jpeg", headers={"cache-control": "private, max-age=60"})

    @api.get(
        "/v1/items/{id}/original",
        summary="The image file of one item (only on a server without a key)",
        response_class=Response,
        responses={**ANY_IMAGE, **MISSING},
    )
    async def original(id: str) -> Response:
        if not originals:
            raise HTTPException(404, "a server with a key, or for other machines, shows thumbnails only")
        path, media_type = await backend.original(unquote(id))
        return FileResponse(
            path,
            media_type=media_type,
            filename=printable(PurePath(path).name),
            content_disposition_type="inline",
            headers={"cache-control": "private, max-age=60"},
        )

    @api.get("/v1/codes", summary="The items under a prefix of codes", response_model=CodesResponse)
    async def codes(
        prefix: Annotated[str, Query(max_length=400, description="Codes with commas between them.")] = "",
    ) -> Response:
        found = await backend.codes(_prefix_of(prefix))
        found.first = [_shown(item, originals, places) for item in found.first]
        for child in found.codes:
            child.some = [_shown(item, originals, places) for item in child.some]
        return _json(found)

    @api.get("/v1/stats", summary="Statistics of the index", response_model=StatsResponse)
    async def stats() -> dict[str, Any]:
        caps = {name: getattr(limits, name) for name in SHOWN_LIMITS}
        return {**await backend.stats(), "limits": caps}

    @api.get("/healthz", summary="Whether the server is alive")
    async def health() -> Health:
        return Health(status="ok")

    @api.get("/readyz", summary="Whether the server can answer searches", responses={503: {"model": Health}})
    async def ready(response: Response) -> Health:
        response.status_code = 200 if backend.status == "ready" else 503
        return Health(status=backend.status)

    @api.get(
        "/metrics",
        summary="Metrics for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        await backend.stats()
        return Response(backend.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return api


def _json(answer: Any) -> Response:
    """`answer` (plain values and models) as JSON, with whatever metadata an older version has stored in it:
    pydantic's own serializer gives up at lone surrogates and deep nesting."""
    try:
        return Response(json.dumps(answer, default=vars), media_type="application/json")
    except RecursionError:
        raise GeniusError("the metadata of an item is nested too deeply to be shown: replace it") from None


def _shown_meta(meta: Mapping[str, Any], places: bool) -> dict[str, Any]:
    """The metadata of an item, with or without where a photo was taken."""
    return {name: value for name, value in meta.items() if places or name not in PLACE}


def _refuse_places(where: str | None, facets: Sequence[str]) -> None:
    """Raise BadInput if a filter or a facet would tell where photos were taken."""
    asked = [] if where is None else [test.field for test in field_tests(parse_filter(where))]
    if any(field.path[:1] and field.path[0] in PLACE for field in [*asked, *map(parse_field, facets)]):
        raise BadInput(f"this server does not tell places: {' and '.join(PLACE)} cannot be asked for")


def _shown(item: ItemResponse, originals: bool, places: bool) -> ItemResponse:
    """An item without what this server does not show."""
    path = item.path if originals else None
    return item.model_copy(update={"path": path, "meta": _shown_meta(item.meta, places)})


def _hit(hit: Hit, originals: bool, places: bool) -> dict[str, Any]:
    return {
        "id": hit.id,
        "score": hit.score,
        "confidence": hit.confidence,
        "rank": hit.rank,
        "modality": hit.modality.value,
        "codes": list(hit.codes),
        "text": hit.text,
        "image": hit.modality.value != "text",
        "meta": _shown_meta(hit.meta, places),
        "path": hit.path if originals else None,
        "missing": hit.missing,
        "span": hit.span,
    }


def _digest(items: Sequence[NewItem]) -> bytes:
    """Tells a request that is sent again from another one."""
    digest = blake2b(digest_size=16)
    for item in items:
        digest.update(json.dumps([item.id, item.text, item.meta, len(item.image or b"")]).encode())
        digest.update(item.image or b"")
    return digest.digest()


def _is_form(request: Request) -> bool:
    return request.headers.get("content-type", "").lower().startswith("multipart/form-data")


async def _parsed(request: Request, kind: type[M], limits: Limits) -> M:
    """The body, JSON or a form, as values; raises BadInput saying which field is wrong, and how."""
    try:
        if _is_form(request):
            return kind.model_validate(await _form(request), context=limits)
        return kind.model_validate_json(await _body_of(request), strict=True, context=limits)
    except ValidationError as error:
        raise BadInput("; ".join(_complaint(dict(one), kind) for one in error.errors()[:5])) from None


async def _body_of(request: Request) -> bytes:
    """The whole body; unlike `request.body()` it is not kept until the request ends."""
    return b"".join([part async for part in request.stream()])


async def _form(request: Request) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    try:
        async with request.form(max_files=1, max_fields=20) as form:
            for name, value in form.multi_items():
                fields[name] = await value.read() if isinstance(value, UploadFile) else value
    except (HTTPException, UnicodeDecodeError, ValueError) as error:
        raise BadInput(f"not a form: {printable(getattr(error, 'detail', error))}") from None
    meta = fields.get("meta")
    if isinstance(meta, str):
        try:
            fields["meta"] = json.loads(meta) if meta.strip() else {}
        except (ValueError, RecursionError):
            raise BadInput("meta: not JSON") from None
    # an empty field of a form is one that was left blank, but an empty instruction is none at all
    return {name: value for name, value in fields.items() if name == "instruction" or value not in ("", b"")}


def _complaint(error: dict[str, Any], kind: type[BaseModel]) -> str:
    place = ".".join(str(part) for part in error["loc"])
    what = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "json_invalid":
        what = f"{what}: {SEND}"
    if error["type"] == "extra_forbidden":
        what = _no_such_field(error["loc"], kind)
    return printable(f"{place}: {what}" if place else what)


def _no_such_field(place: Sequence[str | int], kind: type[BaseModel]) -> str:
    """What to do about a field that requests do not have: which ones there are."""
    fields = (NewItem if place[0] == "items" else kind).model_fields
    if place[-1] in ("k", "limit") and "k" in fields:
        return "k and limit are the same: give one of them"
    rest = "; everything else goes into meta" if "meta" in fields else ""
    return f"no such field: there are {', '.join(fields)}{rest}"


def _body(kind: type[BaseModel], caps: dict[str, int], multipart: type[BaseModel] | None = None) -> Any:
    """The request body of a route for OpenAPI: JSON or a form, with the caps of this server."""
    form = (multipart or kind).model_json_schema(ref_template="#/components/schemas/{model}")
    fields = form["properties"]
    fields["image"] = {"type": "string", "format": "binary", "description": "An image file."}
    if "meta" in fields:
        fields["meta"] = {"type": "string", "contentMediaType": "application/json"}
    whole = kind.model_json_schema()
    inner = whole.pop("$defs", {})
    if "items" in whole["properties"]:
        whole["properties"]["items"] |= {"items": inner["NewItem"], "maxItems": caps["items"]}
    for schema in (whole, form):
        for name in set(caps) & {"beam", "k"}:
            field = schema["properties"].get(name, {})
            for option in field.get("anyOf", [field]):
                if option.get("type") == "integer":
                    option["maximum"] = caps[name]
    content = {"application/json": {"schema": whole}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


def _prefix_of(codes: str) -> list[int]:
    """The prefix written as numbers with commas; the empty one is the whole tree."""
    parts = [part for part in codes.split(",") if part.strip()]
    if len(parts) > 64 or not all(part.strip().isdecimal() and len(part.strip()) < 6 for part in parts):
        raise BadInput("a prefix is codes with commas between them, such as 0,17,3")
    return [int(part) for part in parts]
