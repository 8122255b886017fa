"""A model without weights: colours and words become vectors by a rule, so that answers can be foreseen.

A picture is its 4 x 4 thumbnail; a colour's name is the vector of a picture of that colour; other words have
a random direction each. Run as a program it is the command line with this model in place of every other.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from genius.encode.base import Parts
from genius.types import Modality

DIM = 48
SIZES = (3, 16, 16, 16, 16)
COLOURS = ("red", "green", "blue", "yellow", "cyan", "magenta", "white", "black", "orange", "purple")


class FakeModel:
    def __init__(self, name: str = "fake", seed: int = 0) -> None:
        noise = np.random.default_rng(seed)
        self.name = name
        self.fingerprint = f"{seed:064d}"
        self.sizes = SIZES
        self.levels = len(SIZES)
        self.modality_codes = {modality: code for code, modality in enumerate(Modality)}
        self.search_defaults: dict[str, Any] = {"method": "lookup", "beam": 50}
        scales = (0.0, 0.6, 0.4, 0.25, 0.15)
        self.books = [
            (scale * noise.standard_normal((size, DIM)) / np.sqrt(DIM)).astype(np.float32)
            for scale, size in zip(scales, SIZES, strict=True)
        ]
        self.dim = DIM
        self.decoder = None
        self.encoded = 0  # items embedded so far
        self.instructions: list[str] = []  # of the last queries

    def embed_items(self, images: Sequence[Image.Image | None], texts: Sequence[str | None]) -> Parts:
        self.encoded += len(images)
        time.sleep(float(os.environ.get("FAKE_MODEL_SECONDS", "0")))
        return Parts(np.stack([_image(one) for one in images]), np.stack([_text(one) for one in texts]))

    def embed_queries(
        self,
        images: Sequence[Image.Image | None],
        texts: Sequence[str | None],
        instructions: Sequence[str],
    ) -> Parts:
        self.instructions = list(instructions)
        return Parts(np.stack([_image(one) for one in images]), np.stack([_text(one) for one in texts]))

    def codebooks(self) -> list[np.ndarray]:
        return self.books

    def phi(self, parts: Parts) -> np.ndarray:
        return parts.phi()

    def z(self, parts: Parts) -> np.ndarray:
        return parts.phi()

    def codes(self, parts: Parts, modalities: Sequence[Modality]) -> np.ndarray:
        rest = parts.phi()
        codes = np.zeros((len(rest), len(SIZES)), dtype=np.uint16)
        codes[:, 0] = [self.modality_codes[modality] for modality in modalities]
        for level in range(1, len(SIZES)):
            book = self.books[level]
            nearest = np.square(rest[:, None] - book).sum(-1).argmin(1)
            codes[:, level] = nearest
            rest = rest - book[nearest]
        return codes


def _image(image: Image.Image | None) -> np.ndarray:
    if image is None:
        return np.zeros(DIM, np.float32)
    small = np.asarray(image.convert("RGB").resize((4, 4)), dtype=np.float32).ravel() / 127.5 - 1
    return small / max(float(np.linalg.norm(small)), 1e-6)


def _text(text: str | None) -> np.ndarray:
    total = np.zeros(DIM, np.float32)
    for word in (text or "").lower().strip(".").split():
        if word in COLOURS:
            total += _image(Image.new("RGB", (4, 4), word))
        else:
            seed = int.from_bytes(word.encode()[:8].ljust(8, b"\0"), "little")
            total += 0.3 * np.random.default_rng(seed).standard_normal(DIM).astype(np.float32) / np.sqrt(DIM)
    norm = float(np.linalg.norm(total))
    return total / norm if norm else total


if __name__ == "__main__":
    from genius import cli
    from genius.engine import opening

    opening.load_model = lambda name, device="cpu": FakeModel(str(name))  # type: ignore[assignment]
    sys.argv[0] = "genius"
    cli.main()
