"""From which pool size one system answers faster than another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

HORIZON = 100  # times the largest measured pool: nothing is extrapolated beyond


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where a system begins to answer faster than another."""

    system: str
    than: str
    items: float | None  # None: at no size that was measured
    from_start: bool = False  # already at the smallest size
    expected: float | None = None  # extrapolated from the last two sizes; None: nowhere

    def line(self) -> str:
        """The crossover in a sentence."""
        if self.items is None:
            text = f"{self.system} was slower than {self.than} at every pool size"
            if self.expected is not None:
                text += f"; extrapolated, it is faster from about {_rounded(self.expected)} items"
            return text
        if self.from_start:
            return f"{self.system} is faster than {self.than} from {self.items:,.0f} items, the smallest pool"
        return f"{self.system} overtakes {self.than} at about {_rounded(self.items, 2)} items"


def crossovers(points: Sequence[Mapping[str, Any]], than: str = "exact") -> list[Crossover]:
    """For each other system, the pool size from which it answers a single query faster than `than`.

    `points` have system, items and milliseconds. Between two sizes times are interpolated on log-log axes.
    """
    times: dict[str, dict[int, float]] = {}
    for point in points:
        times.setdefault(point["system"], {})[point["items"]] = point["milliseconds"]
    base = times.pop(than, None)
    if base is None:  # it was not measured
        return []
    found = []
    for system, own in times.items():
        sizes = sorted(own.keys() & base.keys())
        gaps = [float(np.log(own[size] / base[size])) for size in sizes]  # below 0: faster
        found.append(_crossover(system, than, sizes, gaps))
    return found


def _crossover(system: str, than: str, sizes: Sequence[int], gaps: Sequence[float]) -> Crossover:
    if not sizes or gaps[-1] >= 0:  # it has to be faster at the end, and stay so
        return Crossover(system, than, None, expected=_extrapolated(sizes, gaps))
    last_slower = max((n for n, gap in enumerate(gaps) if gap >= 0), default=None)
    if last_slower is None:
        return Crossover(system, than, float(sizes[0]), from_start=True)
    low, high = list(pairwise(sizes))[last_slower]
    a, b = gaps[last_slower], gaps[last_slower + 1]
    return Crossover(system, than, float(low * (high / low) ** (a / (a - b))))


def _extrapolated(sizes: Sequence[int], gaps: Sequence[float]) -> float | None:
    """Where a gap that narrows between the last two sizes will be closed; None if it does not narrow."""
    if len(sizes) < 2 or gaps[-2] - gaps[-1] < 0.05:
        return None
    rate = (gaps[-2] - gaps[-1]) / np.log(sizes[-1] / sizes[-2])
    found = float(sizes[-1] * np.exp(gaps[-1] / rate))
    return found if found < HORIZON * sizes[-1] else None


def _rounded(items: float, digits: int = 1) -> str:
    """`items` to one digit, which is all that an extrapolation tells, or to more."""
    unit = 10.0 ** (int(np.log10(max(items, 1))) + 1 - digits)
    return f"{round(items / unit) * unit:,.0f}"
