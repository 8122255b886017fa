"""A transaction that fails leaves nothing, and a damaged tree is not walked for ever."""

from __future__ import annotations

from itertools import islice

import pytest

from genius.errors import IndexCorrupt
from genius.store.index import Index


class Stopped(Exception):
    pass


def test_a_transaction_that_fails_leaves_nothing(index: Index, record, contents) -> None:
    index.add([record(1, "a")])
    before = contents(index)
    with pytest.raises(Stopped), index.writing(), index.truth.writing():
        index.truth.upsert([record(2, "b")])
        index.truth.delete(["a"])
        raise Stopped
    assert contents(index) == before
    index.add([record(3, "c")])  # the next one begins from there
    assert len(contents(index)) == len(before) + 1


def test_rows_that_go_backwards_are_damage(index: Index, record, monkeypatch) -> None:
    """As a B-tree with a page in the wrong place gives them: the scan ends with an error."""
    index.add([record(number) for number in range(3)])
    backwards = "SELECT row, modality, codes, codes_sum, vector FROM items ORDER BY row DESC LIMIT 2"

    class Turned:
        def execute(self, query, *values):
            asked = backwards if query.startswith("SELECT row, modality") else query
            return connection.execute(asked, *(values if asked is query else ()))

        def __getattr__(self, name):
            return getattr(connection, name)

    connection = index.truth.connection
    monkeypatch.setattr(type(index.truth), "connection", property(lambda _: Turned()))
    with pytest.raises(IndexCorrupt, match="out of order"):
        list(islice(index.truth.batches(index.levels, index.dim), 10))
