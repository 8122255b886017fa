"""Maps: vectors on their two main axes, several panels side by side (supplement, Figure 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadInput
from genius.plots.style import INK, canvas, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float32]
SHADES = {
    "query": "#d9480f",
    "image": "#1b4f9c",
    "text": "#3fa764",
    "pair": "#7b5ea7",
}


def principal(vectors: Floats) -> NDArray[np.float64]:
    """The vectors (n, dim) on their two directions of largest variance, (n, 2); signs are fixed."""
    if len(vectors) < 3:
        raise BadInput(f"{len(vectors)} vectors do not make a map: give at least 3")
    centred = np.asarray(vectors, dtype=np.float64)
    centred = centred - centred.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)  # ascending
    main = axes[:, ::-1][:, :2]
    main = main * np.sign(main[np.abs(main).argmax(axis=0), np.arange(main.shape[1])])
    return np.asarray(centred @ main)


def maps(panels: Mapping[str, tuple[Floats, list[str]]], title: str) -> Figure:
    """One panel per entry: a name, its vectors (n, dim) and the kind of each (query, image, text, pair)."""
    if not panels:
        raise BadInput("nothing to map")
    made = canvas(4.4 * len(panels) + 0.6, 4.6)
    made.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    for axes, (name, (vectors, kinds)) in zip(
        np.atleast_1d(made.subplots(1, len(panels))).tolist(), panels.items(), strict=True
    ):
        plain(axes)
        axes.set_xticks([])
        axes.set_yticks([])
        places = principal(vectors)
        order = np.random.default_rng(0).permutation(len(places))  # no kind covers the others
        shades = np.array([SHADES.get(kind, "#6b7280") for kind in kinds])
        axes.scatter(*places[order].T, s=7, c=shades[order].tolist(), alpha=0.55, linewidths=0)
        for kind in dict.fromkeys(kinds):
            axes.scatter([], [], s=26, color=SHADES.get(kind, "#6b7280"), label=kind)
        axes.legend(fontsize=8, frameon=False, loc="best", handletextpad=0.1)
        axes.set_title(name, fontsize=9.5, color=INK)
    return made
