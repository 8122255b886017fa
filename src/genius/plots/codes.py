"""What a code means: grids of images and texts that share it (Figure 3, supplement Figures 2-4)."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadInput
from genius.plots.style import INK, PALE, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image

IMAGES, TEXTS = 4, 3  # shown of each code


@dataclass(frozen=True, slots=True)
class Group:
    """Items that share a code at one level, whatever their other codes."""

    level: int
    levels: int
    code: int
    count: int
    images: tuple[int, ...]  # rows of items shown with their image
    texts: tuple[int, ...]  # rows of items shown with their text

    @property
    def label(self) -> str:
        """The code as the paper writes it: (*, 1782, *)."""
        before, after = ["*"] * self.level, ["*"] if self.level < self.levels - 1 else []
        return f"({', '.join([*before, str(self.code), *after])})"


def groups(
    codes: NDArray[np.integer],
    has_image: NDArray[np.bool_],
    has_text: NDArray[np.bool_],
    level: int,
    most: int = 6,
) -> list[Group]:
    """The codes of `level` that most images and texts share; items are spread over the code's other codes."""
    if not 0 <= level < codes.shape[1]:
        raise BadInput(f"level {level}: the codes have levels 0 to {codes.shape[1] - 1}")
    text_only = has_text & ~has_image
    spoken = text_only if text_only.any() else has_text  # a pool of pairs shows their texts
    column = codes[:, level].astype(np.int64)
    size = int(column.max(initial=0)) + 1
    images = np.bincount(column[has_image], minlength=size)
    texts = np.bincount(column[spoken], minlength=size)
    counts = np.bincount(column, minlength=size)
    order = np.lexsort((-counts, -np.minimum(images, texts)))
    found = []
    for code in order[:most].tolist():
        if not counts[code]:
            break
        rows = np.flatnonzero(column == code)
        rows = rows[np.lexsort(codes[rows].T[::-1])]
        shown = _spread(rows[has_image[rows]], IMAGES), _spread(rows[spoken[rows]], TEXTS)
        found.append(Group(level, codes.shape[1], code, int(counts[code]), *shown))
    return found


def grid(
    shown: Sequence[Group], image_of: Callable[[int], Image | None], text_of: Callable[[int], str | None]
) -> Figure:
    """A row for each group: its code and count, some of its images, some of its texts."""
    if not shown:
        raise BadInput("no code to show: the pool is empty")
    made = canvas(11.5, 1.45 * len(shown) + 0.3)
    axes = made.subplots(
        len(shown), 1 + IMAGES + TEXTS, squeeze=False,
        width_ratios=[1.05, *[1.0] * IMAGES, *[1.55] * TEXTS],
    )  # fmt: skip
    for group, line in zip(shown, axes, strict=True):
        for cell in line:
            cell.axis("off")
        line[0].text(0.0, 0.58, group.label, fontsize=11, color=INK, weight="bold", va="center")
        line[0].text(0.0, 0.36, f"{group.count:,} items", fontsize=8.5, color="#6b7280", va="center")
        for cell, row in zip(line[1:], group.images, strict=False):
            _show_image(cell, image_of(row))
        for cell, row in zip(line[1 + IMAGES :], group.texts, strict=False):
            words = textwrap.wrap(text_of(row) or "", 24)
            text = "\n".join(words[:4]) + (" …" if len(words) > 4 else "")
            cell.text(0.03, 0.5, text, fontsize=7.8, color=INK, va="center", linespacing=1.35)
    return made


def _show_image(cell: Axes, image: Image | None) -> None:
    if image is None:
        cell.text(0.5, 0.5, "unreadable", fontsize=7, color=PALE, ha="center", va="center")
        return
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.crop((left, top, left + side, top + side)).resize((192, 192))
    cell.imshow(np.asarray(square))


def _spread(rows: NDArray[np.int64], most: int) -> tuple[int, ...]:
    """Up to `most` rows, evenly spread over all."""
    if len(rows) <= most:
        return tuple(rows.tolist())
    return tuple(rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)].tolist())
