"""The paper's ablations: Tables 4 and 5, supplement Tables 3-6, R@5 in percent with 30 beams unless said.

Five columns: COCO text -> image and image -> text, WebQA text -> text and text -> pair, CIRR pair -> image.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

Figures = tuple[float, float, float, float, float]

# Table 4 and supplement Table 3, universal pool
GENIUS_UNIVERSAL: Figures = (55.4, 82.7, 28.3, 47.1, 20.5)
NO_MODALITY_LEVEL: Figures = (20.2, 73.2, 25.9, 34.3, 18.3)
NO_AUGMENTATION: Figures = (47.8, 67.7, 19.6, 38.8, 11.7)
NO_CONTRASTIVE: Figures = (0.0, 0.1, 0.0, 0.0, 0.0)
NO_AGREEMENT: Figures = (45.5, 83.1, 27.1, 35.2, 21.6)
CLASSIFIER: Figures = (48.9, 79.2, 25.7, 37.5, 20.3)

# Table 5 and supplement Table 6, local pools: (codes per level, levels)
GENIUS_LOCAL: Figures = (65.3, 83.4, 28.8, 47.4, 21.0)
CODEBOOKS: Mapping[tuple[int, int], Figures] = {
    (4096, 9): GENIUS_LOCAL,
    (4096, 7): (65.2, 82.9, 25.3, 40.8, 23.1),
    (4096, 5): (62.4, 81.5, 17.3, 33.1, 20.4),
    (1024, 9): (66.4, 82.0, 24.7, 39.4, 24.5),
    (256, 9): (61.2, 76.6, 18.3, 33.5, 18.3),
    (1024, 7): (64.3, 82.2, 24.6, 42.7, 16.4),
    (256, 5): (53.4, 72.4, 9.7, 22.8, 13.0),
    (8192, 17): (59.5, 81.8, 30.6, 44.8, 26.5),
}
SHARED: Figures = (18.6, 19.3, 0.2, 1.7, 3.3)

# supplement Table 4, local pools
BEAMS: Mapping[int, Figures] = {
    1: (24.2, 41.6, 5.1, 10.4, 4.9),
    5: (55.6, 79.1, 15.9, 32.3, 18.0),
    10: (62.8, 82.8, 22.4, 40.0, 20.4),
    20: (66.5, 83.7, 28.3, 45.1, 21.1),
    30: GENIUS_LOCAL,
    50: (68.2, 83.3, 32.8, 50.0, 21.0),
}

# supplement Table 5, local pools
DECODERS: Mapping[str, Figures] = {
    "t5-small": GENIUS_LOCAL,
    "t5-base": (67.9, 83.5, 31.6, 48.0, 18.3),
    "t5-large": (67.2, 83.2, 32.4, 50.4, 7.1),
}


def effect(changed: Figures | None, base: Figures | None) -> float | None:
    """Mean difference over the five columns, in points; None where the paper lacks one of the two."""
    if changed is None or base is None:
        return None
    return fmean(a - b for a, b in zip(changed, base, strict=True))
