"""How close two copies of a photo are, and how close two photos: the threshold of `genius duplicates`.

    python benchmarks/duplicates.py --data BENCH    # benchmarks/results/duplicates.json

Photos of the val pool, each beside copies of itself: half the size, saved again at quality 50, cropped by a
tenth, darkened. For each threshold: the share of copies that reach it, and the share of photos that have
another photo which reaches it. `genius.confidence:NEAR` is the one that is used.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from _harness import run
from PIL import Image, ImageEnhance

from genius.data.base import open_dataset
from genius.data.images import open_image
from genius.model import Model

THRESHOLDS = (0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99)


def saved_again(image: Image.Image, quality: int = 50) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return open_image(stream.getvalue())


def cropped(image: Image.Image) -> Image.Image:
    width, height = image.size
    return image.crop((width // 20, height // 20, width - width // 20, height - height // 20))


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "half the size": lambda image: image.resize((max(1, image.width // 2), max(1, image.height // 2))),
    "saved again": saved_again,
    "cropped": cropped,
    "darkened": lambda image: ImageEnhance.Brightness(image).enhance(0.8),
}


def main(data: Path, model: str = "mini", photos: int = 120, dataset: str = "flickr8k") -> dict[str, Any]:
    """Shares of copies and of other photos above each threshold."""
    pool = open_dataset("mbeir", data, [dataset]).pool("val")
    files = islice((item.image for item in pool if item.image is not None and item.text is None), photos)
    originals = [open_image(file) for file in files if file is not None]
    loaded = Model.load(model)

    def embedded(images: list[Image.Image]) -> Any:
        phi = loaded.phi(loaded.embed_items(images, [None] * len(images)))
        return phi / np.linalg.norm(phi, axis=1, keepdims=True)

    first = embedded(originals)
    between = first @ first.T
    np.fill_diagonal(between, -1.0)
    nearest = between.max(axis=1)
    copies = {
        name: np.einsum("nd,nd->n", first, embedded([make(image) for image in originals]))
        for name, make in COPIES.items()
    }
    return {
        "photos": len(originals),
        "thresholds": {
            str(at): {
                **{name: round(float((cosines >= at).mean()), 3) for name, cosines in copies.items()},
                "another photo": round(float((nearest >= at).mean()), 3),
            }
            for at in THRESHOLDS
        },
    }


if __name__ == "__main__":
    run(main)
