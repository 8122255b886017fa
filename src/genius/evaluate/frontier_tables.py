"""The frontier in tables: systems down, pool sizes across. Times are multiples of exact search's.

Milliseconds hold for one machine on one day; what carries over is who is faster, and by how much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from genius.evaluate.tables import Table

Frontier = Mapping[str, Any]
Point = Mapping[str, Any]
PAPER_BYTES = {"CLIP, 768 numbers of 32 bits": 3072.0, "GENIUS, 2 + 8 x 12 bits": 12.25}  # supplement Table 2


def relative(frontier: Frontier) -> dict[str, Any]:
    """The same frontier with times and speeds as multiples of exact search's in the smallest pool."""
    exact = [point for point in frontier["points"] if point["system"] == "exact"]
    first = min(exact, key=lambda point: point["items"])
    time, speed = first["milliseconds"], first["queries_per_second"]

    def scaled(point: Point) -> dict[str, Any]:
        times = {name: point[name] / time for name in ("milliseconds", "slow_milliseconds") if name in point}
        rates = {name: point[name] / speed for name in ("queries_per_second",) if name in point}
        return {**point, **times, **rates}

    return {
        **frontier,
        "points": [scaled(point) for point in frontier["points"]],
        "beams": [scaled(point) for point in frontier["beams"]],
        "unit": f"exact search in {first['items']:,} items = 1",
    }


def judged_by_all(frontier: Frontier, evaluated: Mapping[str, Any]) -> dict[str, Any]:
    """The frontier with hit rates of all queries in the whole pool; `evaluated` are results in that pool.

    A frontier times a few queries of each row: too few to say who finds more.
    """
    means = evaluated["mean"]

    def judged(point: Point) -> dict[str, Any]:
        known = point["items"] == point["real"] == frontier["real_items"] and point["system"] in means
        return {**point, "hit_at_5": means[point["system"]]["hit@5"]} if known else dict(point)

    asked = sum(row["queries"] for row in evaluated["rows"] if row["system"] == "exact")
    return {**frontier, "points": [judged(p) for p in frontier["points"]], "queries_in_the_whole_pool": asked}


def time_table(frontier: Frontier) -> Table:
    """One query at a time: how many times as long as exact search in the same pool."""
    notes = ["below 1: faster than exact search; encoding the query comes on top, the same for all"]
    title = "Time of a query, asked alone; exact search in the same pool = 1"
    time = "milliseconds"
    return _by_size(frontier, title, lambda p, exact: _times(p[time] / exact[time]), notes)


def speed_table(frontier: Frontier) -> Table:
    """Queries in batches: how many times as many per second as exact search in the same pool."""
    title = "Queries per second, in batches of 64; exact search in the same pool = 1"
    rate = "queries_per_second"
    return _by_size(frontier, title, lambda p, exact: _times(p[rate] / exact[rate]), ["above 1: faster"])


def hit_table(frontier: Frontier) -> Table:
    """hit@5 in pools that hold real items only."""
    real = {**frontier, "points": [p for p in frontier["points"] if p["real"] == p["items"]]}
    title = f"hit@5 in %, {frontier['queries']:,} queries of all rows, pools of real items"
    whole = frontier.get("queries_in_the_whole_pool")
    notes = (
        [f"in all {frontier['real_items']:,} items: {whole:,} queries, mean over the rows"] if whole else []
    )
    return _by_size(real, title, lambda p, exact: f"{100 * p['hit_at_5']:.1f}", notes)


def storage_table(frontier: Frontier) -> Table:
    """What an index takes per item, measured on its arrays (supplement Table 2)."""
    notes = [
        "measured on the arrays of the index: codes, item numbers, vectors, links; without what does not "
        "grow with the pool (our codebooks, FAISS's centroids)",
        "the paper's figures are computed from the bits of a code, without what finds an item by it",
    ]
    title = "Bytes per item"
    table = _by_size(frontier, title, lambda p, exact: f"{p['bytes_per_item']:,.1f}", notes)
    width = len(table.header) - 2
    paper = [[name, "paper", *([f"{size:,.2f}"] + [""] * (width - 1))] for name, size in PAPER_BYTES.items()]
    return Table(table.title, table.header, [*table.lines, *paper], table.notes)


def _times(ratio: float) -> str:
    """A multiple with the two figures that count: 620, 0.0019."""
    return f"{float(f'{ratio:.2g}'):,g}"


def _by_size(frontier: Frontier, title: str, cell: Any, notes: Sequence[str]) -> Table:
    sizes = sorted({point["items"] for point in frontier["points"]})
    found = {(point["system"], point["items"]): point for point in frontier["points"]}
    systems = list(dict.fromkeys(point["system"] for point in frontier["points"]))
    same = frontier.get("same", {})
    lines = []
    for system in systems:
        also = ", ".join(name for name, other in same.items() if other == system)
        cells = []
        for size in sizes:
            point, exact = found.get((system, size)), found.get(("exact", size))
            cells.append("–" if point is None or exact is None else cell(point, exact))
        lines.append([system, also, *cells])
    header = ["system", "the same search", *(f"{size:,} items" for size in sizes)]
    copies = [p for p in frontier["points"] if p["real"] < p["items"]]
    more = [f"pools beyond {copies[0]['real']:,} items are filled with jittered copies"] if copies else []
    return Table(title, header, lines, [*notes, *more])
