"""benchmarks/fit_folds.py: folds of train."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genius.types import Item

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def folds(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import fit_folds

    yield fit_folds
    for name in ("fit_folds", "fit", "_harness"):
        sys.modules.pop(name, None)


def test_pictures_of_a_group_follow_one_another(tmp_path, folds):
    paths = [f"mbeir_images/{name}/{n}.webp" for name in ("ikea", *folds.PICTURES) for n in range(40)]
    lines = ["img_path\tsource\tgroup\tsplit"]
    lines += [f"{path}\t\t{int(Path(path).stem) % 8}\ttrain" for path in paths]
    (tmp_path / "sources.tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    items = [Item(id=path, image=tmp_path / path) for path in paths]
    ordered = folds.shuffled_pictures(tmp_path, items, np.random.default_rng(0))
    assert ordered["ikea"] == paths[:40]
    for name in folds.PICTURES:
        groups = [int(Path(path).stem) % 8 for path in ordered[name]]
        assert len(set(ordered[name])) == 40
        assert all(len(set(groups[start : start + 5])) == 1 for start in range(0, 40, 5))
        assert groups[::5] != sorted(groups[::5])
