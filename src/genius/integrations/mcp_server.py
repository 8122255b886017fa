"""An MCP server, so that assistants can search an index: `genius mcp --in INDEX`, over stdin and stdout."""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Image

from genius.engine import Engine
from genius.integrations.stored import stored_item
from genius.types import Hit, Modality, Query

MOST = 50  # hits of one call
SIDE = 512  # pixels of a picture
ABOUT = (
    "Searches a collection of images, texts and image-text pairs by meaning. `search` finds items by a text, "
    "or like a stored item; `picture` shows the image of one."
)


def mcp_server(engine: Engine) -> MCPServer:
    """The server for one index; it only reads."""
    server = MCPServer("genius", instructions=ABOUT)

    @server.tool()
    def search(
        text: str | None = None,
        like: str | None = None,
        want: str = "any",
        k: int = 10,
        where: str | None = None,
        at_least: float | None = None,
    ) -> list[dict[str, Any]]:
        """Find items by a text, by the id of an item they should be `like`, or by both (like it, but red).

        `want` is image, text, pair or any. `where` filters by metadata: "price < 50 and not sold". Hits have
        a confidence from 0 to 1 where it is known; `at_least` leaves out hits of less.
        """
        most = max(1, min(k, MOST))
        if like is None:
            hits = engine.search(Query(text=text), most, want, where=where, at_least=at_least)
        else:
            hits = engine.like(like, text, most, want, where=where, at_least=at_least)
        return [_fields(hit) for hit in hits]

    @server.tool()
    def item(id: str) -> dict[str, Any]:
        """What is stored of an item: its text, metadata and modality."""
        found = stored_item(engine, id)
        if found is None:
            raise ValueError(f"no item is called {id!r}: `search` gives ids")
        return {"id": found.id, "modality": found.modality.value, "text": found.text, "meta": found.meta}

    @server.tool()
    def picture(id: str) -> Image:
        """The picture of an item, small."""
        jpeg = engine.thumbnail(id, SIDE)
        if jpeg is None:
            raise ValueError(f"no item called {id!r} has a picture: `search` gives ids and modalities")
        return Image(data=jpeg, format="jpeg")

    @server.tool()
    def stats() -> dict[str, Any]:
        """How many items of each modality there are."""
        facts = engine.stats()
        return {"items": facts["items"], "modalities": facts["modalities"], "model": facts["model"]}

    return server


def _fields(hit: Hit) -> dict[str, Any]:
    fields = {"id": hit.id, "modality": hit.modality.value, "score": round(hit.score, 4), "text": hit.passage}
    if hit.confidence is not None:
        fields["confidence"] = round(hit.confidence, 4)
    return {**fields, "picture": hit.modality is not Modality.TEXT, "meta": dict(hit.meta)}
