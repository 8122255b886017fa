"""Statistics of codes: use of each level, collisions, bucket sizes, modality purity, quantization error.

Only NumPy is imported: `genius stats --codes` shows these figures without loading the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import TrainingStopped

if TYPE_CHECKING:
    from rich.table import Table

Codes = NDArray[np.integer[Any]]  # (n, levels)
LEAST_PURITY = 0.99
LEAST_USAGE = 0.10


@dataclass(frozen=True, slots=True)
class LevelHealth:
    """One level of the codes, and the buckets of items that share all codes up to it."""

    size: int  # number of codes
    usage: float  # used codes as a share of those that could be used (at most one per item)
    dead: int  # codes without an item
    entropy: float  # bits; log2(size) if all codes are equally common
    buckets: int  # different prefixes up to this level
    largest_bucket: int  # items under the most common prefix
    typical_bucket: float  # items that share the prefix of an item drawn at random, itself included
    agreement: float | None  # share of queries that have the code of their target


@dataclass(frozen=True, slots=True)
class CodeHealth:
    """The statistics of a set of codes."""

    items: int
    levels: tuple[LevelHealth, ...]
    collisions: float  # share of items whose codes another item has too
    purity: float | None  # share of items of the most common modality of their level-0 code
    error: float | None  # mean |z - quantized z|^2

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def summary(self) -> str:
        """The figures of all levels together."""
        parts = [f"{self.items:,} items", f"collisions {self.collisions:.2%}"]
        if self.purity is not None:
            parts.append(f"modality purity {self.purity:.4f}")
        if self.error is not None:
            parts.append(f"quantization error {self.error:.4f}")
        return ", ".join(parts)

    def lines(self) -> list[str]:
        """The figures as plain lines, one per level after the summary."""
        rows = [
            "level   size  usage   dead  entropy  buckets  largest  typical  agreement",
            *(
                f"{number:5d} {level.size:6d} {level.usage:6.1%} {level.dead:6d} {level.entropy:8.2f} "
                f"{level.buckets:8d} {level.largest_bucket:8d} {level.typical_bucket:8.1f} "
                + ("        -" if level.agreement is None else f"{level.agreement:9.3f}")
                for number, level in enumerate(self.levels)
            ),
        ]
        return [self.summary(), *rows]

    def table(self) -> Table:
        """The figures as a table to print with rich."""
        from rich.table import Table

        table = Table(title=self.summary())
        names = "level", "codes", "usage", "dead", "entropy", "buckets", "largest", "typical", "agreement"
        for name in names:
            table.add_column(name, justify="right")
        for number, level in enumerate(self.levels):
            table.add_row(
                str(number),
                f"{level.size:,}",
                f"{level.usage:.1%}",
                f"{level.dead:,}",
                f"{level.entropy:.2f}",
                f"{level.buckets:,}",
                f"{level.largest_bucket:,}",
                f"{level.typical_bucket:,.1f}",
                "-" if level.agreement is None else f"{level.agreement:.3f}",
            )
        return table

    def check(self, least_purity: float = LEAST_PURITY, least_usage: float = LEAST_USAGE) -> None:
        """Raise TrainingStopped with the figure if the codes have collapsed."""
        if self.error is not None and not math.isfinite(self.error):
            raise TrainingStopped(f"the codes collapsed: quantization error {self.error}; lower the rate")
        if self.purity is not None and not self.purity >= least_purity:
            raise TrainingStopped(
                f"the codes collapsed: modality purity {self.purity:.4f}, at least {least_purity} is needed; "
                'set quantizer.modality = "assigned"'
            )
        for number, level in enumerate(self.levels):
            if not level.usage >= least_usage:
                raise TrainingStopped(
                    f"the codes collapsed: level {number} uses {level.usage:.1%} of its codes, at least "
                    f"{least_usage:.0%} is needed; raise dead_below or lower the rate"
                )


def measure(
    codes: Codes,
    sizes: Sequence[int],
    *,
    modality: NDArray[np.integer[Any]] | None = None,
    error: float | None = None,
    query_codes: Codes | None = None,
    target_codes: Codes | None = None,
) -> CodeHealth:
    """Statistics of codes (n, levels) of n > 0 items; level l has `sizes[l]` codes.

    `modality` (n,) gives the purity of level 0. `query_codes` and `target_codes`, row by row those of a query
    and of its target, give the agreement.
    """
    buckets = [_bucket_sizes(starts) for starts in _prefix_starts(codes)]
    agreement: list[float | None] = [None] * len(sizes)
    if query_codes is not None and target_codes is not None:
        agreement = [float(share) for share in (query_codes == target_codes).mean(axis=0)]
    levels = tuple(
        _level(codes[:, number], size, buckets[number], agreement[number])
        for number, size in enumerate(sizes)
    )
    shared = buckets[-1]
    return CodeHealth(
        items=len(codes),
        levels=levels,
        collisions=float(shared[shared > 1].sum() / len(codes)),
        purity=None if modality is None else _purity(codes[:, 0], modality),
        error=error,
    )


def _level(code: Codes, size: int, buckets: Codes, agreement: float | None) -> LevelHealth:
    counts = np.bincount(code.astype(np.int64), minlength=size)
    share = counts[counts > 0] / len(code)
    return LevelHealth(
        size=size,
        usage=float((counts > 0).sum() / min(size, len(code))),
        dead=int((counts == 0).sum()),
        entropy=float(-(share * np.log2(share)).sum()) + 0.0,
        buckets=len(buckets),
        largest_bucket=int(buckets.max()),
        typical_bucket=float((buckets.astype(np.float64) ** 2).sum() / len(code)),
        agreement=agreement,
    )


def _prefix_starts(codes: Codes) -> list[NDArray[np.bool_]]:
    """For each level, where a new prefix begins in the sorted codes, (n,)."""
    ordered = codes[np.lexsort(codes.T[::-1])]
    fresh = np.zeros(len(codes), dtype=bool)
    fresh[0] = True
    starts = []
    for level in range(codes.shape[1]):
        fresh = fresh.copy()
        fresh[1:] |= ordered[1:, level] != ordered[:-1, level]
        starts.append(fresh)
    return starts


def _bucket_sizes(starts: NDArray[np.bool_]) -> Codes:
    return np.diff(np.append(np.flatnonzero(starts), len(starts)))


def _purity(code: Codes, modality: Codes) -> float:
    table = np.zeros((int(code.max()) + 1, int(modality.max()) + 1), dtype=np.int64)
    np.add.at(table, (code.astype(np.int64), modality.astype(np.int64)), 1)
    return float(table.max(axis=1).sum() / len(code))
