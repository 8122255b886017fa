"""The frontier in tables: systems down, pool sizes across. Times are multiples of exact search's.

Milliseconds hold for one machine on one day; what carries over is who is faster, and by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from genius.evaluate.frontier import Crossover
from genius.evaluate.paper import paper
from genius.evaluate.report.tables import Table, percent
from genius.evaluate.systems import FAISS

Frontier = Mapping[str, Any]
Point = Mapping[str, Any]


def frontier_table(frontier: Frontier) -> Table:
    """Hit rate, time and bytes of every system at every pool size; crossovers as notes."""
    lines = []
    for point in frontier["points"]:
        real = "" if point["real"] == point["items"] else f", {point['real']:,} real"
        lines.append([
            f"{point['items']:,}{real}",
            point["system"],
            percent(point["hit_at_5"]),
            f"{point['milliseconds']:.2f}",
            f"{point['slow_milliseconds']:.2f}",
            f"{point['queries_per_second']:,.0f}",
            f"{point['bytes_per_item']:,.1f}",
            f"{point['build_seconds']:.1f}",
        ])  # fmt: skip
    header = ["items", "system", "hit@5 %", "ms", "ms, 95 %", "queries/s", "bytes/item", "build s"]
    machine, model = frontier["machine"], frontier["model"]
    faiss_on_cpu = not on_cpu(frontier) and any(point["system"] in FAISS for point in frontier["points"])
    notes = [
        f"model {model['name']} ({model['fingerprint'][:12]}), data {frontier['data']}, "
        f"{frontier['queries']:,} queries on {machine['device']}, {machine['threads']} threads",
        f"times are without encoding the query, which takes {frontier['encoding_milliseconds']:.1f} ms",
        "beyond the real items, pools are filled with noisy copies: compare times there, not hit rates",
        *(["FAISS ran on the CPU beside it"] if faiss_on_cpu else []),
        *crossover_lines(frontier),
    ]
    return Table("Hit rate, latency and bytes at growing pool sizes", header, lines, notes)


def on_cpu(frontier: Frontier) -> bool:
    """Whether the times are of a CPU."""
    return bool(frontier["machine"].get("kind", "cpu") == "cpu")


def crossover_lines(frontier: Frontier, only: Sequence[str] = ()) -> list[str]:
    """From which pool size each system is faster than exact search, in sentences; `only` some systems."""
    found = [
        Crossover(**{name: value for name, value in each.items() if name != "text"})
        for each in frontier["crossovers"]
    ]
    return [each.line() for each in found if not only or each.system in only]


def relative(frontier: Frontier) -> dict[str, Any]:
    """The same frontier with times and speeds as multiples of exact search's in the smallest pool."""
    exact = [point for point in frontier["points"] if point["system"] == "exact"]
    first = min(exact, key=lambda point: point["items"])
    units = {
        "milliseconds": first["milliseconds"],
        "slow_milliseconds": first["milliseconds"],
        "queries_per_second": first["queries_per_second"],
    }

    def scaled(point: Point) -> dict[str, Any]:
        return {**point, **{name: point[name] / unit for name, unit in units.items() if name in point}}

    return {
        **frontier,
        "points": [scaled(point) for point in frontier["points"]],
        "beams": [scaled(point) for point in frontier["beams"]],
        "unit": f"exact search in {first['items']:,} items = 1",
    }


def with_full_hit_rates(frontier: Frontier, results: Mapping[str, Any]) -> dict[str, Any]:
    """The frontier with the hit rates of all queries in the whole pool, from `results` in that pool.

    A frontier times a few queries of each row: too few to tell hit rates apart.
    """
    means = results["mean"]

    def update(point: Point) -> dict[str, Any]:
        known = point["items"] == point["real"] == frontier["real_items"] and point["system"] in means
        return {**point, "hit_at_5": means[point["system"]]["hit@5"]} if known else dict(point)

    queries = sum(row["queries"] for row in results["rows"] if row["system"] == "exact")
    points = [update(point) for point in frontier["points"]]
    return {**frontier, "points": points, "queries_in_the_whole_pool": queries}


def time_table(frontier: Frontier) -> Table:
    """One query at a time: how many times as long as exact search in the same pool."""
    notes = ["below 1: faster than exact search; encoding the query comes on top, the same for all"]
    title = "Time of a single query; exact search in the same pool = 1"
    return _by_size(frontier, title, _ratio("milliseconds"), notes)


def speed_table(frontier: Frontier) -> Table:
    """Queries in batches: how many times as many per second as exact search in the same pool."""
    title = "Queries per second, in batches of 64; exact search in the same pool = 1"
    return _by_size(frontier, title, _ratio("queries_per_second"), ["above 1: faster"])


def hit_table(frontier: Frontier) -> Table:
    """hit@5 in pools that hold real items only."""
    real = {**frontier, "points": [p for p in frontier["points"] if p["real"] == p["items"]]}
    title = f"hit@5 in %, {frontier['queries']:,} queries of all rows, pools of real items"
    whole = frontier.get("queries_in_the_whole_pool")
    notes = (
        [f"in all {frontier['real_items']:,} items: {whole:,} queries, mean over the rows"] if whole else []
    )
    return _by_size(real, title, lambda point, exact: percent(point["hit_at_5"]), notes)


def storage_table(frontier: Frontier) -> Table:
    """What an index takes per item, measured on its arrays (supplement Table 2)."""
    notes = [
        "measured on the arrays of the index: codes, item numbers, vectors, links; without what does not "
        "grow with the pool (our codebooks, FAISS's centroids)",
        "the paper's figures are computed from the bits of a code, without what finds an item by it",
    ]
    table = _by_size(
        frontier, "Bytes per item", lambda point, exact: f"{point['bytes_per_item']:,.1f}", notes
    )
    blank = [""] * (len(table.header) - 3)
    lines = [[name, "paper", f"{size:,.2f}", *blank] for name, size in paper()["bytes_per_item"].items()]
    return Table(table.title, table.header, [*table.lines, *lines], table.notes)


def _ratio(field: str) -> Callable[[Point, Point], str]:
    """Multiples of exact search with two significant digits: 620, 0.0019."""
    return lambda point, exact: f"{float(f'{point[field] / exact[field]:.2g}'):,g}"


def _by_size(
    frontier: Frontier, title: str, cell: Callable[[Point, Point], str], notes: Sequence[str]
) -> Table:
    sizes = sorted({point["items"] for point in frontier["points"]})
    points = {(point["system"], point["items"]): point for point in frontier["points"]}
    lines = []
    for system in dict.fromkeys(point["system"] for point in frontier["points"]):
        also = ", ".join(name for name, other in frontier.get("same", {}).items() if other == system)
        pairs = [(points.get((system, size)), points.get(("exact", size))) for size in sizes]
        lines.append([system, also, *("–" if not p or not exact else cell(p, exact) for p, exact in pairs)])
    header = ["system", "the same search", *(f"{size:,} items" for size in sizes)]
    copies = [point for point in frontier["points"] if point["real"] < point["items"]]
    more = [f"pools beyond {copies[0]['real']:,} items are filled with noisy copies"] if copies else []
    return Table(title, header, lines, [*notes, *more])
