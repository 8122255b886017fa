"""The outcome of an evaluation with all it takes to believe it: model, pools, recipe, versions, faults."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from genius.evaluate.protocol import RowFigures, mean_over_rows

PACKAGES = ("genius-search", "torch", "transformers", "numpy", "safetensors", "faiss-cpu")


@dataclass(frozen=True, slots=True)
class Entry:
    """One system on one row."""

    figures: RowFigures
    fingerprint: str  # of the model or encoder that was searched with
    pool_hash: str
    queries_hash: str
    bytes_per_item: float
    seconds: float  # searching all queries of the row, without encoding them
    seeds: Sequence[float] = ()  # the headline figure under each seed, where there were several

    def as_json(self) -> dict[str, Any]:
        """Figures and where they come from."""
        return self.figures.as_json() | {
            "fingerprint": self.fingerprint,
            "pool_hash": self.pool_hash,
            "queries_hash": self.queries_hash,
            "bytes_per_item": self.bytes_per_item,
            "seconds": self.seconds,
            **({"seeds": list(self.seeds)} if self.seeds else {}),
        }


@dataclass(frozen=True, slots=True)
class Results:
    """All systems on all rows of one setting and split."""

    setting: str
    split: str
    data: str
    model: str
    fingerprint: str
    entries: Sequence[Entry]
    recipe: Mapping[str, Any] | None = None
    systems_used: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # name -> its settings
    instructions: str = "chosen"  # how they were picked
    limit: int = 0  # queries per row, 0: all
    not_run: Sequence[Mapping[str, Any]] = ()  # system, dataset, task, reason
    reading: Sequence[str] = ()  # what the reader left out, for people
    versions: Mapping[str, str] = field(default_factory=lambda: versions())

    def systems(self) -> list[str]:
        """The systems that were run, in order."""
        return list(dict.fromkeys(entry.figures.system for entry in self.entries))

    def as_json(self) -> dict[str, Any]:
        """One object of plain values: `rows` and, per system, their `mean`; figures are fractions."""
        rows_in_all = len({entry.figures.row for entry in self.entries})
        mean = {}
        for system in self.systems():
            mine = [entry for entry in self.entries if entry.figures.system == system]
            mean[system] = mean_over_rows([entry.figures for entry in mine]) | {
                "complete": len(mine) == rows_in_all,
                "bytes_per_item": max(entry.bytes_per_item for entry in mine),
                "seconds": sum(entry.seconds for entry in mine),
            }
            if all(entry.seeds for entry in mine):
                means = np.mean([entry.seeds for entry in mine], axis=0)
                mean[system] |= {"seeds": means.tolist(), "seed_deviation": float(np.std(means, ddof=1))}
        return {
            "setting": self.setting,
            "split": self.split,
            "data": self.data,
            "model": {"name": self.model, "fingerprint": self.fingerprint, "recipe": self.recipe},
            "systems": {name: dict(settings) for name, settings in self.systems_used.items()},
            "instructions": self.instructions,
            "limit": self.limit,
            "rows": [entry.as_json() for entry in self.entries],
            "mean": mean,
            "not_run": [dict(each) for each in self.not_run],
            "reading": list(self.reading),
            "versions": dict(self.versions),
        }


def versions() -> dict[str, str]:
    """Versions of what the figures depend on, the hash of our own source among them."""
    found = {"python": platform.python_version(), "source": source_hash()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


@cache
def source_hash(*parts: str) -> str:
    """A hash of this package's own files, or of those under `parts` only (folders and files of it)."""
    folder = Path(__file__).resolve().parents[1]
    state = hashlib.blake2b(digest_size=8)
    for file in sorted(folder.rglob("*.py")):
        name = file.relative_to(folder).as_posix()
        if not parts or any(name == part or name.startswith(f"{part}/") for part in parts):
            state.update(name.encode() + b"\0" + file.read_bytes())
    return state.hexdigest()
