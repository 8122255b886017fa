"""Figures of a frontier (`genius bench --format json`): hit rate by bytes and time, speed by pool size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from genius.errors import BadInput
from genius.plots.style import INK, PALE, colour, figure, halo, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Frontier = Mapping[str, Any]


Draw = Callable[[Frontier], "Figure"]


def figures(frontier: Frontier) -> dict[str, tuple[str, Draw]]:
    """The figures that `frontier` has data for: file name -> caption, and the function that draws it."""
    found: dict[str, tuple[str, Draw]] = {
        "hit-by-bytes": ("Hit rate against bytes per item", by_bytes),
        "hit-by-time": ("Hit rate against the time of one query", by_time),
        "latency-by-size": ("Time of one query against pool size", latency),
        "speed-by-size": ("Queries per second against pool size", speed),
    }
    if frontier.get("calibration"):
        found["calibration"] = ("Exact search as pools grow, real and made items", calibration)
    if frontier.get("beams"):
        found["hit-by-beam"] = ("Hit rate against the beam", beams)
    return found


def by_bytes(frontier: Frontier) -> Figure:
    """Hit rate against bytes per item, in the largest pool of real items."""
    return _scatter(frontier, "bytes_per_item", "Hit rate by storage", "bytes per item (log)")


def by_time(frontier: Frontier) -> Figure:
    """Hit rate against the time of a single query, in the largest pool of real items."""
    return _scatter(frontier, "milliseconds", "Hit rate by latency", _time_label(frontier))


def speed(frontier: Frontier) -> Figure:
    """Queries per second against pool size, in batches: Figure 4 of the paper with exact search in it."""
    unit = frontier.get("unit")
    label = f"queries per second, {unit} (log)" if unit else "queries per second (log)"
    return _lines(frontier, "queries_per_second", "Speed by pool size, queries in batches", label)


def latency(frontier: Frontier) -> Figure:
    """Time of a single query against pool size."""
    title = "Latency by pool size, one query at a time"
    return _lines(frontier, "milliseconds", title, _time_label(frontier))


def _time_label(frontier: Frontier) -> str:
    """The label of a time axis: milliseconds, or multiples of the frontier's unit."""
    unit = frontier.get("unit")
    return f"time per query, {unit} (log)" if unit else "milliseconds per query, one at a time (log)"


def beams(frontier: Frontier) -> Figure:
    """Hit rate against the beam, without re-ranking by vectors (supplement, Table 4)."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for each in frontier["beams"]:
        curves.setdefault(each["system"], []).append((each["beam"], 100 * each["hit_at_5"]))
    if not curves:
        raise BadInput("no beams were measured: run `genius bench` with --beams")
    made, axes = figure()
    axes.set_xscale("log")
    ends = []
    for system, points in curves.items():
        xs, ys = zip(*sorted(points), strict=True)
        axes.plot(xs, ys, color=colour(system), marker="o", markersize=4, linewidth=1.8)
        ends.append((xs[-1], ys[-1], system))
    ticks = sorted({beam for points in curves.values() for beam, _ in points})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    lowest = min(height for points in curves.values() for _, height in points)
    axes.set_ylim(bottom=max(0, 5 * ((lowest - 5) // 5)))
    titled(axes, "Hit rate by beam", "beam (log)", "hit@5, %")
    _name_ends(axes, ends, linear=True)
    return made


def calibration(frontier: Frontier) -> Figure:
    """Hit rate of exact search as a pool grows by real items, and by made ones of each spread."""
    found = frontier["calibration"]
    made, axes = figure()
    axes.set_xscale("log")
    curves = {f"spread {each['spread']:g}": each["hit_at_5"] for each in found["filled"]}
    chosen, ends = f"spread {found['spread']:g}", []
    for name, hits in {**curves, "real items": found["real"]}.items():
        shade = INK if name == "real items" else colour("lookup+vectors") if name == chosen else PALE
        width = 2.4 if name in ("real items", chosen) else 1.2
        axes.plot(
            found["sizes"], [100 * hit for hit in hits], color=shade, marker="o", markersize=3, lw=width
        )
        ends.append((found["sizes"][-1], 100 * hits[-1], name))
    axes.set_xticks(found["sizes"], [f"{size:,}" for size in found["sizes"]])
    axes.minorticks_off()
    titled(axes, f"Exact search, made items beyond {found['base']:,}", "items in the pool (log)", "hit@5, %")
    _name_ends(axes, ends, linear=True)
    return made


def _scatter(frontier: Frontier, field: str, title: str, x: str) -> Figure:
    points = _largest_real(frontier)
    made, axes = figure()
    axes.set_xscale("log")
    for point in points:
        position, shade = (point[field], 100 * point["hit_at_5"]), colour(point["system"])
        if point["system"] == "exact":  # a ring, so that a system that equals it still shows
            axes.scatter(*position, s=110, facecolors="none", edgecolors=shade, zorder=4, linewidths=1.6)
        else:
            axes.scatter(*position, s=46, color=shade, zorder=3, linewidths=0)
    _draw_frontier(axes, [(p[field], 100 * p["hit_at_5"]) for p in points])
    axes.margins(x=0.16, y=0.14)
    _plain_axis(axes.xaxis)
    _name_points(axes, [(p[field], 100 * p["hit_at_5"], p["system"]) for p in points])
    titled(axes, f"{title}, {points[0]['items']:,} items", x, "hit@5, %")
    return made


def _lines(frontier: Frontier, field: str, title: str, y: str) -> Figure:
    curves: dict[str, list[tuple[int, float]]] = {}
    for point in frontier["points"]:
        curves.setdefault(point["system"], []).append((point["items"], point[field]))
    made, axes = figure()
    axes.set_xscale("log")
    axes.set_yscale("log")
    ends = []
    for system, points in curves.items():
        xs, ys = zip(*sorted(points), strict=True)
        width = 2.4 if system == "exact" else 1.5
        axes.plot(xs, ys, color=colour(system), marker="o", markersize=3.5, linewidth=width)
        ends.append((xs[-1], ys[-1], system))
    sizes = sorted({point["items"] for point in frontier["points"]})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.xaxis.minorticks_off()
    _plain_axis(axes.yaxis)
    titled(axes, title, "items in the pool (log)", y)
    _name_ends(axes, ends)
    return made


def _draw_frontier(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """The Pareto frontier: a line through the points that no other beats in both."""
    best: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or y > best[-1][1]:
            best.append((x, y))
    axes.plot(*zip(*best, strict=True), color=PALE, linewidth=1.2, zorder=1, drawstyle="steps-post")


def _plain_axis(axis: Axis) -> None:
    """Numbers of a logarithmic axis written out; a short one has a 2 and a 5 between its powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
    axis.set_major_formatter(_plain)
    axis.set_minor_formatter(NullFormatter())


def _plain(value: float, position: object = None) -> str:
    """A number on a logarithmic axis, written out: 0.01, 1, 1,000."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _largest_real(frontier: Frontier) -> list[Mapping[str, Any]]:
    real = [point for point in frontier["points"] if point["real"] == point["items"]]
    if not real:
        raise BadInput("no pool has real items only: run `genius bench` with a size within the data")
    largest = max(point["items"] for point in real)
    return [point for point in real if point["items"] == largest]


def _name_ends(axes: Axes, ends: Sequence[tuple[float, float, str]], *, linear: bool = False) -> None:
    """Names of curves behind their last points, moved apart where they would overlap."""
    axes.figure.canvas.draw()  # positions are known only now
    heights = [float(axes.transData.transform((x, y))[1]) for x, y, _ in ends]
    places = _apart(heights, 13 * axes.figure.dpi / 72)
    for (x, y, name), place, height in zip(ends, places, heights, strict=True):
        axes.annotate(
            name, (x, y), xytext=(8, (place - height) * 72 / axes.figure.dpi), textcoords="offset points",
            fontsize=8.5, color=INK if name == "exact" else colour(name), va="center", annotation_clip=False,
            path_effects=halo(),
        )  # fmt: skip
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (high / low) ** 0.28 if not linear else high * (high / low) ** 0.22)


def _name_points(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Names beside points: each at the first free position around its point."""
    axes.figure.canvas.draw()
    scale = axes.figure.dpi / 72
    centres = [tuple(axes.transData.transform((x, y)) / scale) for x, y, _ in points]
    occupied = [(x - 5, y - 5, x + 5, y + 5) for x, y in centres]  # boxes, in points of 1/72 inch
    for (x, y), (px, py, name) in zip(centres, points, strict=True):
        width = 5.0 * len(name)
        places = [(side, lift) for lift in (0, 11, -11, 22, -22, 33, -33) for side in (1, -1)]
        boxes = {}
        for side, lift in places:
            left = x + 8 if side > 0 else x - 8 - width
            boxes[side, lift] = (left, y + lift - 5, left + width, y + lift + 5)
        free = [place for place in places if not any(_overlap(boxes[place], other) for other in occupied)]
        side, lift = free[0] if free else (1, 0)
        occupied.append(boxes[side, lift])
        axes.annotate(
            name, (px, py), xytext=(8 * side, lift), textcoords="offset points", fontsize=8.5, color=INK,
            va="center", ha="left" if side > 0 else "right", annotation_clip=False, path_effects=halo(),
            arrowprops={"arrowstyle": "-", "color": "#9aa1ab", "linewidth": 0.6} if lift else None,
        )  # fmt: skip


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Heights moved as little as needed for neighbours to be `gap` apart."""
    order = sorted(range(len(heights)), key=lambda n: heights[n])
    placed = list(heights)
    for _ in range(200):
        moved = False
        for low, high in pairwise(order):
            lack = gap - (placed[high] - placed[low])
            if lack > 0.01:
                placed[low] -= lack / 2
                placed[high] += lack / 2
                moved = True
        if not moved:
            break
    return placed
