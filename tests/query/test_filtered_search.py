"""A filtered search finds what exact search over the items that pass finds."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genius import Item
from genius.engine import Engine
from genius.errors import BadInput
from genius.query import exhaustive

WORDS = ("red", "green", "blue", "cyan", "black", "white", "orange", "yellow")


@pytest.fixture(scope="module")
def model(fake):
    return fake.FakeModel()


def items(count: int) -> list[Item]:
    texts = [f"{WORDS[n % 8]} {WORDS[n // 8 % 8]} {n}" for n in range(count)]
    return [Item(f"i{n}", text=texts[n], meta={"n": n, "even": n % 2 == 0}) for n in range(count)]


@pytest.fixture(scope="module", params=["vectors", "codes"])
def engine(request, tmp_path_factory, model):
    """Some items in a generation, some since, some removed from both."""
    folder = tmp_path_factory.mktemp(request.param) / "index"
    with Engine.create(folder, model, vectors=request.param == "vectors") as opened:
        every = items(300)
        opened.add(every[:200])
        opened.compact()
        opened.add(every[200:])
        opened.remove([f"i{n}" for n in range(0, 300, 7)])
        yield opened


def expected(engine: Engine, query: str, k: int, keep) -> list[float]:
    """The best scores of the items that pass, from a search that returns all there are."""
    every = engine.search(query, k=300, beam=300, want="text")
    return [hit.score for hit in every if keep(hit.meta["n"])][:k]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    low=st.integers(0, 300),
    width=st.integers(0, 300),
    even=st.booleans(),
    k=st.integers(1, 30),
    word=st.sampled_from(WORDS),
    few=st.sampled_from([0, 8192]),
)
def test_exact_search_over_what_passes(engine, low, width, even, k, word, few):
    where = f"n >= {low} and n < {low + width}" + (" and even" if even else "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exhaustive, "MAX_ITEMS", few)  # 0: always by the trie
        hits = engine.search(word, k=k, want="text", where=where, beam=300)
    wanted = expected(engine, word, k, lambda n: low <= n < low + width and (n % 2 == 0 or not even))
    np.testing.assert_allclose([hit.score for hit in hits], wanted, atol=1e-5)
    assert len({hit.id for hit in hits}) == len(hits)
    assert all(low <= hit.meta["n"] < low + width and (hit.meta["even"] or not even) for hit in hits)


@pytest.mark.parametrize("few", [0, 8192])
@pytest.mark.parametrize("rerank", ["none", "codes"])
def test_every_way_to_rank_keeps_to_the_filter(engine, monkeypatch, few, rerank):
    monkeypatch.setattr(exhaustive, "MAX_ITEMS", few)
    where = "n in (1, 2, 3, 250, 251, 252) and not even"
    hits = engine.search("red", k=12, rerank=rerank, where=where)
    assert {hit.id for hit in hits} == {"i1", "i3", "i251"}


def test_a_filter_and_what_is_wanted(engine):
    assert engine.search("red", want="image", where="even") == []
    (found,) = engine.results(["red"], want="text", where="n < 10", facets=["even"])
    assert found.pool == 8 and dict(found.facets["even"]) == {False: 4, True: 4}
    assert len(engine.search("red", k=50, where="modality = 'text' and n < 10")) == 8
    assert engine.search("red", where="modality = 'image'") == []


def test_offset_and_pages_are_parts_of_one_ranking(engine):
    whole = engine.search("red", k=40)
    assert engine.search("red", k=10, offset=25) == whole[25:35]
    assert engine.search("red", k=10, offset=1000) == []
    pages = list(engine.pages("red", k=100))
    seen = [hit.id for page in pages for hit in page]
    assert len(seen) == len(set(seen)) == len(engine) and sorted(seen) == sorted(engine)
    assert [hit.rank for page in pages for hit in page] == list(range(1, len(engine) + 1))
    later = list(engine.pages("red", k=10, offset=20, where="even"))
    assert [hit.id for page in later for hit in page][:5] == [
        hit.id for hit in engine.search("red", 5, offset=20, where="even")
    ]


def test_what_is_like_an_item_is_filtered_and_paged(engine):
    whole = engine.like("i1", k=30, where="even")
    assert all(hit.meta["even"] for hit in whole) and len(whole) == 30
    assert engine.like("i1", k=5, offset=10, where="even") == whole[10:15]
    assert (
        "i1" not in {hit.id for hit in engine.like("i1", k=300)}
        and len(engine.like("i1", k=300)) == len(engine) - 1
    )


def test_an_engine_counts_and_lists_as_a_dict_does(engine):
    assert len(engine) == 300 - 43 and engine
    assert (
        list(engine)[:3] == ["i1", "i2", "i3"] and "i1" in engine and "i0" not in engine and 5 not in engine
    )
    assert engine.count("even") == sum(n % 2 == 0 and n % 7 != 0 for n in range(300))
    page = engine.browse("n >= 100", limit=3, offset=2, facets=["even"])
    assert [one.id for one in page.items] == ["i102", "i103", "i104"]
    assert page.total == engine.count("n >= 100") == sum(count for _, count in page.facets["even"])
    following = engine.browse("n >= 100", limit=2, cursor=page.cursor)
    assert [one.id for one in following.items] == ["i106", "i107"]


def test_an_empty_engine_is_true(tmp_path, model):
    with Engine.create(tmp_path / "index", model) as empty:
        assert empty and len(empty) == 0 and list(empty) == [] and empty.search("red", where="a = 1") == []
        assert list(empty.pages("red")) == [] and empty.browse().items == []


@pytest.mark.parametrize("options", [{"offset": -1}, {"cursor": "x"}, {"facets": "even"}, {"where": "n <"}])
def test_what_makes_no_sense_is_refused(engine, options):
    with pytest.raises(BadInput):
        engine.results(["red"], **options)
    with pytest.raises(BadInput, match="one of them"):
        cursor = engine.results(["red"], 2)[0].cursor
        engine.results(["red"], 2, offset=3, cursor=cursor)


def test_an_amended_price_is_seen_by_the_next_search(tmp_path, model):
    with Engine.create(tmp_path / "index", model) as engine:
        engine.add([Item("a", text="red", meta={"price": 99}), Item("b", text="red", meta={"price": 10})])
        assert [hit.id for hit in engine.search("red", where="price < 50")] == ["b"]
        engine.add([Item("a", text="red", meta={"price": 9})])  # keeps its row
        assert {hit.id for hit in engine.search("red", where="price < 50")} == {"a", "b"}


def test_every_hit_passes_while_metadata_changes(tmp_path, model):
    """Prices go up and down in place, items come and go: no answer mixes two states."""
    with Engine.create(tmp_path / "index", model) as engine, ThreadPoolExecutor(1) as writer:
        engine.add(Item(f"i{n}", text=f"red {n}", meta={"price": 10 if n % 2 else 99}) for n in range(20))

        def change() -> None:
            for turn in range(8):
                price = 10 if turn % 2 else 99
                engine.add(
                    Item(f"i{n}", text=f"red {n}", meta={"price": price if n < 10 else 10}) for n in range(20)
                )
                engine.remove([f"i{19 - turn % 5}"])

        done = writer.submit(change)
        answers = 0
        while not done.done() or not answers:
            hits = engine.search("red", k=30, where="price < 50")
            assert all(hit.meta["price"] < 50 for hit in hits)
            answers += bool(hits)
            time.sleep(0.002)  # a loop that never rests would keep the writer from its turn
        done.result()
        assert {hit.id for hit in engine.search("red", k=30, where="price < 50")} == {
            one.id for one in engine.browse("price < 50").items
        }
