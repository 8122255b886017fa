"""The application: routes and page behind the gate, errors as JSON that say what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from genius import __version__
from genius.engine import Engine
from genius.errors import BadInput, GeniusError, IndexLocked, StorageError
from genius.serve.access import AccessRules
from genius.serve.backend import Backend, NotFound
from genius.serve.batching import Busy
from genius.serve.engine_backend import EngineBackend
from genius.serve.gate import Gate
from genius.serve.limits import Limits
from genius.serve.metrics import Metrics
from genius.serve.routes import routes

PAGE = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
STATUS: tuple[tuple[type[GeniusError], int], ...] = (
    (NotFound, 404),
    (BadInput, 422),
    (IndexLocked, 503),
    (StorageError, 507),
    (GeniusError, 503),  # a damaged or strange index: its owner has to act, the asker cannot
)

ROUTES = "/openapi.json describes all routes"
NO_ROUTE = {  # what Starlette says, and what helps
    (404, "Not Found"): f"no such route: {ROUTES}",
    (405, "Method Not Allowed"): f"this route has no such method: {ROUTES}",
}


def create_app(
    engine: Engine,
    *,
    key: str | None = None,
    limits: Limits | None = None,
    loopback: bool = True,
    origins: Collection[str] = (),
    places: bool = False,
    failed: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The server of an open engine, as an ASGI application; closing the engine stays with the caller.

    With `loopback` it answers only requests that name localhost, so that no site on the web can reach it
    through a browser; if it needs no key either, it shows files, their paths and where photos were taken;
    with `places`, others show the last, too. `origins` are sites whose pages may use the API. `failed` is
    called if the model cannot be loaded; `app.state.backend.error` then says why.
    """
    backend = EngineBackend(engine, limits or Limits(), Metrics())
    return app_for(backend, key=key, loopback=loopback, origins=origins, places=places, failed=failed)


def app_for(
    backend: Backend,
    *,
    key: str | None = None,
    loopback: bool = True,
    origins: Collection[str] = (),
    places: bool = False,
    failed: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The same for anything that answers as a backend does."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await backend.start(failed)
        try:
            yield
        finally:
            await backend.stop()

    app = FastAPI(
        title="genius",
        version=__version__,
        summary="Search pictures, texts and pairs of both.",
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.backend = backend
    own = loopback and key is None
    app.include_router(routes(backend, originals=own, places=own or places))
    _add_page(app)
    _add_errors(app)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type", "idempotency-key"],
        )
    app.add_middleware(
        Gate,
        limits=backend.limits,
        metrics=backend.metrics,
        access=AccessRules(key, loopback, tuple(origins)),
    )
    return app


def _add_page(app: FastAPI) -> None:
    files = {file.name: file for file in PAGE.iterdir() if file.suffix in TYPES}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return _file(files["index.html"])

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return _file(files["docs.html"])

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "no such file")
        return _file(files[name])


def _file(file: Path) -> Response:
    return FileResponse(file, media_type=TYPES[file.suffix], headers={"cache-control": "no-cache"})


def _add_errors(app: FastAPI) -> None:
    async def known(_: Request, error: Exception) -> Response:
        fixed = next(status for kind, status in STATUS if isinstance(error, kind))
        status = error.status if isinstance(error, Busy) else fixed
        return JSONResponse({"detail": str(error)}, status)

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        detail = NO_ROUTE.get((error.status_code, str(error.detail)), str(error.detail))
        return JSONResponse({"detail": detail}, error.status_code, error.headers)

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        details = [f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors()[:5]]
        return JSONResponse({"detail": "; ".join(details)}, 422)

    app.add_exception_handler(GeniusError, known)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
