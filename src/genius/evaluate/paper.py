"""The figures that the paper prints, read from paper.toml."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import fmean
from typing import Any

Row = tuple[str, int]  # dataset, task


@cache
def paper() -> Mapping[str, Any]:
    """Everything in paper.toml."""
    found: Mapping[str, Any] = tomllib.loads(files(__package__).joinpath("paper.toml").read_text("utf-8"))
    return found


@cache
def mbeir_rows() -> tuple[Row, ...]:
    """The sixteen rows of M-BEIR, in the paper's order."""
    return tuple((dataset, task) for dataset, task in paper()["rows"])


@dataclass(frozen=True, slots=True)
class Column:
    """One published column; rows that the paper leaves open are absent."""

    name: str
    table: str
    setting: str  # local or universal
    values: Mapping[Row, float]
    average: float | None = None  # as printed; the paper prints none for local results

    def mean(self) -> float | None:
        """Plain mean over the sixteen rows, None when any of them is missing."""
        return fmean(self.values.values()) if len(self.values) == len(mbeir_rows()) else None

    def remark(self, row: Row) -> str | None:
        """What to know about one figure, None when nothing is known against it."""
        key = (self.table, self.name, list(row))
        remarks = paper()["remarks"]
        return next((r["text"] for r in remarks if (r["table"], r["column"], r["row"]) == key), None)


def table(name: str) -> tuple[Column, ...]:
    """The columns of a table such as `Table 1` or `supplement Table 9`."""
    found = []
    for entry in paper()["columns"]:
        if entry["table"] == name:
            pairs = zip(mbeir_rows(), entry["values"], strict=True)
            values = {row: value for row, value in pairs if not math.isnan(value)}
            found.append(Column(entry["name"], name, entry["setting"], values, entry.get("average")))
    return tuple(found)


def columns(setting: str) -> tuple[Column, ...]:
    """The published columns to print beside ours: Table 1 for local, supplement Table 9 for universal.

    Table 9 rather than Table 2: it has all four embedding systems, and its columns agree with their averages.
    """
    shown = table("Table 1" if setting == "local" else "supplement Table 9")
    return tuple(column for column in shown if "beam 30" not in column.name)


def effect(changed: Sequence[float] | None, base: Sequence[float] | None) -> float | None:
    """Mean difference of an ablation over its five columns, in points; None where the paper lacks one."""
    if changed is None or base is None:
        return None
    return fmean(a - b for a, b in zip(changed, base, strict=True))
