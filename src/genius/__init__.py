"""genius: search images, texts and image-text pairs with any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from genius.types import Hit, Item, Modality, Query

if TYPE_CHECKING:
    from genius.client import Client
    from genius.engine import Engine

__all__ = ["Client", "Engine", "Hit", "Item", "Modality", "Query", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the engine (and torch behind it) only when somebody asks for it."""
    if name == "Engine":
        from genius.engine import Engine

        return Engine
    if name == "Client":
        from genius.client import Client

        return Client
    raise AttributeError(f"module 'genius' has no attribute {name!r}")
