"""How all pictures look, and the one place that loads matplotlib."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

from genius.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, PALE = "#22262b", "#c9ced6"
# systems keep their colour in every picture
COLOURS: dict[str, str] = {
    "exact": "#22262b",
    "genius": "#1c7ed6",
    "decoder+codes": "#8a6fe0",
    "decoder+vectors": "#5a3fb5",
    "lookup+codes": "#3fa764",
    "lookup+vectors": "#176b38",
    "fitted+codes": "#0c8599",
    "fitted+vectors": "#0b4f6c",
    "faiss-flat": "#7a808a",
    "hnsw": "#c92a2a",
    "ivf-pq": "#e8590c",
    "ivf-pq-best": "#8f4a12",
    "pq": "#b08900",
    "faiss-rq": "#c2559b",
}
OTHERS = ("#7b5ea7", "#c2477f", "#5b8c85", "#a0522d", "#6b7280", "#0f766e")


def figure(width: float = 7.2, height: float = 4.6) -> tuple[Figure, Axes]:
    """An empty picture with one pair of axes."""
    made = canvas(width, height)
    axes = made.subplots()
    plain(axes)
    return made, axes


def canvas(width: float, height: float) -> Figure:
    """An empty picture; raises MissingExtra where matplotlib is absent."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra('matplotlib is not installed: pip install "genius-search[bench]"') from None
    made = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(made)
    return made


def plain(axes: Axes) -> None:
    """No frame, a faint grid, small dark letters."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(PALE)
    axes.grid(visible=True, color=PALE, linewidth=0.5, alpha=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9, length=3)


def colour(system: str) -> str:
    """The colour of a system, the same in every picture."""
    return COLOURS.get(system, OTHERS[sum(system.encode()) % len(OTHERS)])


def halo() -> list[Any]:
    """White around letters, so that a line behind them does not cross them out."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.5, foreground="white")]


def titled(axes: Axes, title: str, x: str, y: str) -> None:
    """Title and axis labels."""
    axes.set_title(title, fontsize=11, color=INK, loc="left", pad=10)
    axes.set_xlabel(x, fontsize=9.5, color=INK)
    axes.set_ylabel(y, fontsize=9.5, color=INK)


def png(made: Any) -> bytes:
    """The picture as the bytes of a PNG file, the same bytes for the same picture."""
    out = BytesIO()
    made.savefig(out, format="png", dpi=150, metadata={"Software": None})
    return out.getvalue()
