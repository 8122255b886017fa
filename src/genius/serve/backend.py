"""What the routes call, whoever answers: an engine in this process, or replicas elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from genius.errors import GeniusError
from genius.ingest.result import AddResult
from genius.query.result import SearchResult
from genius.serve.limits import Limits
from genius.serve.metrics import Metrics
from genius.serve.schemas import CodesResponse, ItemPatch, ItemResponse, ListResponse, NewItem, SearchRequest


class NotFound(GeniusError):
    """No item has that id."""


Status = Literal["loading", "ready", "stuck", "stopping", "failed"]


class Backend(Protocol):
    """What the routes call: an engine in this process, or replicas elsewhere."""

    limits: Limits
    metrics: Metrics

    @property
    def status(self) -> Status:
        """Whether searches are answered at the moment: only if it is ready."""

    async def start(self, failed: Callable[[], None]) -> None:
        """Begin to answer; `failed` is called if that cannot be."""

    async def stop(self) -> None:
        """Let work under way end."""

    async def search(self, ask: SearchRequest) -> tuple[SearchResult, int]:
        """The hits of a search, and how many searches were answered together."""

    async def add(self, items: Sequence[NewItem]) -> AddResult:
        """Add items; they are on disk and searchable when this returns."""

    async def update(self, id: str, patch: ItemPatch) -> ItemResponse:
        """Change parts of an item; the item as it is then. Raises NotFound."""

    async def remove(self, id: str) -> int:
        """Remove an item; how many there were."""

    async def item(self, id: str) -> ItemResponse:
        """An item; raises NotFound."""

    async def browse(
        self, where: str | None, limit: int, offset: int, cursor: str | None, facets: Sequence[str]
    ) -> ListResponse:
        """Stored items that pass a filter, in the order they were added."""

    async def thumbnail(self, id: str, side: int) -> bytes:
        """A small JPEG of an item's image; raises NotFound."""

    async def original(self, id: str) -> tuple[str, str]:
        """The file with an item's image and its media type; raises NotFound."""

    async def stats(self) -> dict[str, Any]:
        """What is in the index."""

    async def codes(self, prefix: Sequence[int]) -> CodesResponse:
        """What shares a prefix of codes."""
