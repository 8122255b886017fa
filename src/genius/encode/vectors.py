"""`vectors`: no encoder at all. Embeddings were made elsewhere and come with the items and the queries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genius.encode.base import Array
from genius.errors import BadInput, ModelMismatch

if TYPE_CHECKING:
    from PIL.Image import Image


class VectorEncoder:
    """Stands where an encoder would; it knows the width of the embeddings and refuses all else."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.fingerprint = f"vectors-{dim}"

    def encode_images(self, images: Sequence[Image]) -> Array:
        """Raises BadInput."""
        raise self._refusal("images")

    def encode_texts(self, texts: Sequence[str]) -> Array:
        """Raises BadInput."""
        raise self._refusal("texts")

    def _refusal(self, what: str) -> BadInput:
        return BadInput(
            f"this index has embeddings that were made elsewhere and cannot embed {what}: give a vector of "
            f"width {self.dim}, made by the same model (Query(vector=...), `--vector FILE`), or make the "
            "index with that model (--encoder NAME)"
        )


def load(source: str | Path | None, device: str = "cpu") -> VectorEncoder:
    """The encoder for embeddings of the width that `source` says."""
    try:
        return VectorEncoder(int(str(source)))
    except ValueError:
        raise ModelMismatch(f"encoder vectors: the source is their width, not {source!r}") from None
