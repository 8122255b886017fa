"""What a check costs: in proportion to the items, also with passages, thumbnails and removed ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from genius.store import connection
from genius.store.check import check
from genius.store.index import Index
from genius.store.large_array import LargeArray
from genius.store.records import Passages, Record

SIZES, DIM = (3, 16, 16, 16), 8
STEPS = 100  # of SQLite's virtual machine, between two calls of the handler


def with_parts(record: Record) -> Record:
    """The item with a second passage and a thumbnail, as a check reads those, too."""
    spans = np.array([[0, 2], [2, 4]], dtype=np.int32)
    passages = Passages(spans, record.codes[None], np.ones((1, DIM), np.float16))
    return replace(record, thumbnail=b"jpeg", passages=passages)


def filled(folder: Path, items: int, record: Callable[..., Record]) -> None:
    Index.create(folder, model="m", fingerprint="f" * 16, sizes=SIZES, dim=DIM)
    with Index.open(folder) as index:
        index.add([with_parts(record(number)) for number in range(items)])
        index.compact()
        index.remove([f"item-{number}" for number in range(items // 10)])
        index.add([record(number) for number in range(items, items + items // 10)])


def test_a_check_takes_time_in_proportion_to_the_items(
    tmp_path: Path, record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the items are twice the steps of SQLite and twice the bytes of arrays, not four times."""
    steps = read = 0
    connect, pread = connection._connect, LargeArray._pread

    def counted(file: Path, mode: str) -> object:
        opened = connect(file, mode)

        def passed() -> None:
            nonlocal steps
            steps += 1

        opened.set_progress_handler(passed, STEPS)
        return opened

    def counted_pread(self: LargeArray, size: int, at: int) -> bytes:
        nonlocal read
        read += size
        return pread(self, size, at)

    monkeypatch.setattr(connection, "_connect", counted)
    monkeypatch.setattr(LargeArray, "_pread", counted_pread)
    cost = {}
    for items in (500, 1000, 2000):
        filled(tmp_path / str(items), items, record)
        steps = read = 0
        report = check(tmp_path / str(items))
        assert report.clean, report
        cost[items] = steps, read
    for small, large in ((500, 1000), (1000, 2000)):
        for less, more in zip(cost[small], cost[large], strict=True):
            assert less > 50
            assert more < 2.4 * less, cost
