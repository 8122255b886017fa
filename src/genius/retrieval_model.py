"""What indexing and search need of a model: a protocol, so that an encoder of one's own can take part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from genius.types import Modality

if TYPE_CHECKING:
    from PIL.Image import Image

    from genius.decode.model import Decoder
    from genius.encode.base import Array, Parts


class RetrievalModel(Protocol):
    """Encoder, quantizer and decoder together.

    A model may also have `calibrations`, `genius.confidence.Calibration` by `vectors` or `codes`: then hits
    have a confidence. With `text_limit`, a `genius.encode.base.CountsTokens`, long texts can be split.
    """

    @property
    def name(self) -> str:
        """The name or folder it is loaded by."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the same input could get other vectors or codes."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codes per level."""

    @property
    def modality_codes(self) -> Mapping[Modality, int]:
        """Code of level 0 of each modality; empty if level 0 is something else."""

    @property
    def search_defaults(self) -> Mapping[str, Any]:
        """Fields of `genius.search.options.SearchOptions` that served best on validation data."""

    @property
    def dim(self) -> int:
        """Width of the embeddings."""

    @property
    def decoder(self) -> Decoder | None:
        """The decoder, or None; `lookup` works without."""

    def codebooks(self) -> list[NDArray[np.float32]]:
        """The code vectors of each level, (sizes[level], dim).

        After level 0 they may be those of each modality, (sizes[0], sizes[level], dim).
        """

    def embed_items(self, images: Sequence[Image | None], texts: Sequence[str | None]) -> Parts:
        """Image and text embeddings of items."""

    def embed_queries(
        self, images: Sequence[Image | None], texts: Sequence[str | None], instructions: Sequence[str]
    ) -> Parts:
        """Image and text embeddings of queries, each with its instruction."""

    def phi(self, parts: Parts) -> Array:
        """The fused embedding, unit length, (n, d): what re-ranking compares."""

    def z(self, parts: Parts) -> Array:
        """What is quantized, (n, d)."""

    def codes(self, parts: Parts, modalities: Sequence[Modality]) -> NDArray[np.uint16]:
        """Codes of items of these modalities, (n, M)."""
