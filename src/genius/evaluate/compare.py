"""Two systems on the same queries: the difference on every row, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from genius.data.base import Row
from genius.errors import BadInput
from genius.evaluate.intervals import Interval, interval, interval_of_mean
from genius.evaluate.protocol import RowFigures, headline
from genius.evaluate.results import Results


@dataclass(frozen=True, slots=True)
class Difference:
    """How much better the first system is than the second, as a fraction; paired over queries."""

    row: Row | None  # None: the mean over the rows
    value: float
    interval: Interval

    @property
    def verdict(self) -> str:
        """better or worse where the interval leaves out 0, else even."""
        low, high = self.interval
        return "better" if low > 0 else "worse" if high < 0 else "even"

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One system against another on the rows that both were run on."""

    one: str
    other: str
    bytes_per_item: tuple[float, float]
    rows: Sequence[Difference]
    mean: Difference

    def line(self) -> str:
        """The comparison for people: how many rows each way, and which ones are lost."""
        by = {
            verdict: [d for d in self.rows if d.verdict == verdict] for verdict in ("better", "even", "worse")
        }
        lost = "; ".join(f"{d.row} {d}" for d in by["worse"])
        return (
            f"{self.one} ({self.bytes_per_item[0]:,.1f} bytes per item) against {self.other} "
            f"({self.bytes_per_item[1]:,.1f}): mean {self.mean}; better on {len(by['better'])} rows, "
            f"no clear difference on {len(by['even'])}, worse on {len(by['worse'])}"
            + (f": {lost}" if lost else "")
        )


def compare(results: Results, one: str, other: str) -> Comparison:
    """`one` against `other` in the same results."""
    return compare_entries(
        figures_of(results, one), figures_of(results, other), (one, other), _sizes(results, one, other)
    )


def compare_entries(
    ours: dict[Row, RowFigures],
    theirs: dict[Row, RowFigures],
    names: tuple[str, str],
    sizes: tuple[float, float] = (0.0, 0.0),
) -> Comparison:
    """Figures of one system against those of another, which may come from another evaluation."""
    shared = [row for row in ours if row in theirs]
    if not shared:
        raise BadInput(f"{names[0]} and {names[1]} were run on no row together")
    gaps = []
    for row in shared:
        mine, other = (side[row].values[headline(row.dataset)] for side in (ours, theirs))
        if len(mine) != len(other):
            raise BadInput(f"{row}: {len(mine)} queries against {len(other)}; ask both the same queries")
        gaps.append(mine - other)
    rows = [Difference(row, float(gap.mean()), interval(gap)) for row, gap in zip(shared, gaps, strict=True)]
    value = sum(difference.value for difference in rows) / len(rows)
    return Comparison(*names, sizes, rows, Difference(None, value, interval_of_mean(gaps)))


def figures_of(results: Results, system: str) -> dict[Row, RowFigures]:
    """The figures of one system, by row."""
    found = {e.figures.row: e.figures for e in results.entries if e.figures.system == system}
    if not found:
        raise BadInput(f"{system} was not run: the results have {', '.join(results.systems())}")
    return found


def _sizes(results: Results, one: str, other: str) -> tuple[float, float]:
    sizes = {
        name: max(e.bytes_per_item for e in results.entries if e.figures.system == name)
        for name in (one, other)
    }
    return sizes[one], sizes[other]
