"""Vectors of items and queries with images, texts or both: each distinct part is encoded once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image

from genius.encode.base import Array, encode_parts


class Counting:
    """An encoder that remembers what it was given: a text's vector is its length, an image's its width."""

    dim, fingerprint = 1, "counting"

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.images: list[Image.Image] = []

    def encode_texts(self, texts: Sequence[str]) -> Array:
        self.texts += texts
        return np.array([[len(text)] for text in texts], dtype=np.float32)

    def encode_images(self, images: Sequence[Image.Image]) -> Array:
        self.images += images
        return np.array([[image.width] for image in images], dtype=np.float32)


class Fusing:
    """The same for an encoder that fuses both."""

    dim, fingerprint = 1, "fusing"

    def __init__(self) -> None:
        self.pairs: list[tuple[Image.Image | None, str | None]] = []

    def encode_items(self, images: Sequence[Image.Image | None], texts: Sequence[str | None]) -> Array:
        self.pairs += zip(images, texts, strict=True)
        sums = [(image.width if image else 0) + len(text or "") for image, text in self.pairs]
        return np.array(sums, dtype=np.float32)[:, None]


RED, BLUE = Image.new("RGB", (7, 1)), Image.new("RGB", (9, 1))
IMAGES = [RED, None, BLUE, RED, None, RED]
TEXTS = ["dog", "dog", None, "", "cats", "dog"]


def test_equal_parts_are_encoded_once() -> None:
    """An image or a text that is asked for in every modality is one that the encoder reads."""
    encoder = Counting()
    parts = encode_parts(encoder, IMAGES, TEXTS)
    assert encoder.texts == ["dog", "cats"]
    assert encoder.images == [RED, BLUE]
    assert parts.text.ravel().tolist() == [3, 3, 0, 0, 4, 3]
    assert parts.image.ravel().tolist() == [7, 0, 9, 7, 0, 7]


def test_equal_pairs_are_fused_once() -> None:
    encoder = Fusing()
    parts = encode_parts(encoder, IMAGES, TEXTS)
    assert encoder.pairs == [(RED, "dog"), (None, "dog"), (BLUE, None), (RED, ""), (None, "cats")]
    assert parts.image.ravel().tolist() == [10, 3, 9, 7, 4, 10]


@pytest.mark.parametrize("encoder", [Counting(), Fusing()])
def test_nothing_to_encode(encoder: Counting | Fusing) -> None:
    assert encode_parts(encoder, [], []).image.shape == (0, 1)
