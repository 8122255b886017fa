"""Embeddings made elsewhere through the server: added, searched with, and fitted codes taken over."""

from __future__ import annotations

import numpy as np
import pytest

from genius import Client, Engine, Item, Query
from genius.errors import BadInput

DIM = 12


@pytest.fixture
def served(tmp_path, kit):
    with Engine.create(tmp_path / "index", encoder="vectors", dim=DIM) as engine, kit.live(engine) as running:
        yield running


def test_vectors_go_in_and_ask(served):
    points = np.random.default_rng(0).standard_normal((60, DIM))
    with Client(served.url) as client:
        added = client.add(
            [Item(f"i{n}", text=f"number {n}", vector=point) for n, point in enumerate(points)]
        )
        assert added.added == 60
        for query in (Query(vector=points[5]), Query(vector=points[5].tolist(), want="text")):
            found = client.search(query, k=3)
            assert found == served.engine.search(query, k=3)
            assert (found[0].id, found[0].text) == ("i5", "number 5")
        assert "i7" not in [hit.id for hit in client.like("i7")]
        before = client.search(Query(vector=points[9]), k=5)
        served.engine.fit(item_bytes=4)
        after = client.search(Query(vector=points[9]), k=5)
        assert [hit.id for hit in after] == [hit.id for hit in before]
        assert [len(hit.codes) for hit in after] == [5] * 5
        assert client.stats()["fit"]["fits"] == 1


def test_what_is_no_vector_of_this_index_is_refused(served):
    with Client(served.url) as client:
        client.add([Item("one", vector=np.ones(DIM))])
        for query, reason in (
            (Query(vector=np.ones(DIM + 1)), "13 numbers where this index has 12"),
            (Query(text="a dog"), "made elsewhere"),
            (Query(vector=np.zeros(DIM)), "all zeros"),
        ):
            with pytest.raises(BadInput, match=reason):
                client.search(query)
        skipped = client.add([Item("two", vector=np.ones(3)), Item("three", text="words alone")]).skipped
        assert [one.name for one in skipped] == ["two", "three"]
        assert client.stats()["items"] == 1
