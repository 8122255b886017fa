"""Filters, pages and facets over HTTP and in the client: the same answers as the engine's."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from genius import Client, Item
from genius.engine import Engine
from genius.errors import BadInput
from genius.serve.app import create_app


@pytest.fixture
def shop(tmp_path, fake) -> Iterator[Engine]:
    """Six texts of each colour, with prices, tags, and types that differ between items."""
    with Engine.create(tmp_path / "index", fake.FakeModel()) as engine:
        engine.add(
            Item(
                f"{colour}-{number}",
                text=f"something {colour} {number}",
                meta={"price": number if number % 2 else f"{number}.0", "colour": colour, "new": number == 5},
            )
            for number in range(6)
            for colour in fake.COLOURS
        )
        yield engine


@pytest.fixture
def http(shop) -> Iterator[TestClient]:
    with TestClient(create_app(shop), base_url="http://localhost") as opened:
        while opened.get("/readyz").status_code != 200:
            time.sleep(0.01)
        yield opened


def found(response) -> dict:
    assert response.status_code == 200, response.text
    return response.json()


def test_only_what_passes_is_found_however_little_it_is(http, shop):
    where = "price < 2 and colour in ('red', 'blue') and not new"
    answer = found(http.post("/v1/search", json={"text": "something green 3", "where": where, "limit": 50}))
    assert {hit["id"] for hit in answer["hits"]} == {"red-0", "red-1", "blue-0", "blue-1"}
    assert answer["pool"] == 4 and answer["cursor"] is None and answer["facets"] == {}
    same = shop.search("something green 3", 50, where=where)
    assert [(hit.id, hit.score) for hit in same] == [(hit["id"], hit["score"]) for hit in answer["hits"]]
    form = {"text": "red", "where": "colour = 'red'", "facets": "colour,new", "limit": "2"}
    by_form = found(http.post("/v1/search", files={name: (None, value) for name, value in form.items()}))
    assert by_form["facets"]["colour"] == [{"value": "red", "count": 6}]
    assert by_form["facets"]["new"] == [{"value": False, "count": 5}, {"value": True, "count": 1}]


def test_fields_that_no_item_has_are_named_where_nothing_is_found(http):
    def unknown(where: str) -> list[str]:
        return found(http.post("/v1/search", json={"text": "red", "where": where}))["unknown_fields"]

    assert unknown("pirce < 2 and price < 9") == ["pirce"]
    assert unknown("price > 99") == [] == unknown("price < 2 or pirce < 2")


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("price <", "a value is expected"),
        ("", "the filter is empty"),
        ("colour = red", "single quotes"),
        ("colour = 'red'; DROP TABLE items", "cannot be read"),
        ("(" * 2000 + "new" + ")" * 2000, "inside each other"),
    ],
)
def test_a_filter_that_cannot_be_read_is_422_with_the_reason(http, where, reason):
    for response in (
        http.post("/v1/search", json={"text": "red", "where": where}),
        http.get("/v1/items", params={"where": where}),
    ):
        assert response.status_code == 422 and reason in response.json()["detail"]


def test_types_that_differ_missing_fields_many_values_and_names_that_inject(http):
    """Fault 54."""

    def total(where: str) -> int:
        return int(found(http.post("/v1/search", json={"text": "red", "where": where, "limit": 1}))["pool"])

    assert total("price >= 4") == 20 and total("price = '4.0'") == 10 and total("price = 4") == 10
    assert total("nothing = 1") == 0 and total("not nothing = 1") == 60 and total("nothing != 1") == 0
    many = ", ".join(str(number) for number in range(3, 10_003))
    assert total(f"price in ({many})") == 30
    for name in ("x'); DROP TABLE items; --", 'a"b', "$", "meta", "' OR 1=1 --", "a\x00b", "{kind}", "%s"):
        quoted = name.replace('"', '""')
        assert total(f'"{quoted}" = 1') == 0 and total(f'"{quoted}" is missing') == 60
    assert total("new") == 10


def test_a_cursor_stays_valid_while_items_come_and_go(http, shop):
    ask = {"text": "something red", "limit": 7, "where": "price < 5"}
    first = found(http.post("/v1/search", json=ask))
    before = [hit.id for hit in shop.search("something red", 60, where="price < 5")]
    assert [hit["id"] for hit in first["hits"]] == before[:7]
    shop.add([Item(f"red-new-{n}", text="something red", meta={"price": 1}) for n in range(30)])
    shop.remove([before[0], before[8]])  # one that was shown, one that was not
    shop.add([Item(before[9], text="something red changed", meta={"price": 1})])
    shop.compact()
    seen, cursor, ranks = [], first["cursor"], []
    while cursor:
        page = found(http.post("/v1/search", json={**ask, "cursor": cursor}))
        seen += [hit["id"] for hit in page["hits"]]
        ranks += [hit["rank"] for hit in page["hits"]]
        cursor = page["cursor"]
    assert seen == [id for id in before[7:] if id not in (before[8], before[9])]
    assert ranks == list(range(8, 8 + len(seen)))


def test_pages_of_a_list(http, shop):
    first = found(http.get("/v1/items", params={"where": "new", "limit": 4, "facet": ["colour", "price"]}))
    assert first["total"] == 10 and [item["id"] for item in first["items"]] == list(shop)[50:54]
    assert first["facets"]["price"] == [{"value": 5, "count": 10}] and len(first["facets"]["colour"]) == 10
    shop.remove([first["items"][0]["id"]])
    shop.add([Item("late", text="red", meta={"new": True})])
    rest = found(http.get("/v1/items", params={"where": "new", "cursor": first["cursor"]}))
    assert [item["id"] for item in rest["items"]] == [*list(shop)[53:59], "late"] and rest["cursor"] is None
    assert found(http.get("/v1/items", params={"limit": 0}))["total"] == 60


@pytest.mark.parametrize(
    "body",
    [
        {"offset": -1},
        {"offset": 995, "limit": 10},
        {"cursor": "nonsense"},
        {"cursor": "AAAA"},
        {"facets": ["a b"]},
        {"facets": ["a"] * 20},
        {"facets": [""]},
    ],
)
def test_what_cannot_be_paged_or_counted_is_refused(http, body):
    response = http.post("/v1/search", json={"text": "red", **body})
    assert response.status_code == 422 and response.json()["detail"]


def test_the_client_has_them_too(shop, kit):
    with kit.live(shop) as running, Client(running.url) as client:
        where = "colour = 'red' and price < 4"
        mine, theirs = (
            client.search("red", 3, where=where, offset=1),
            shop.search("red", 3, where=where, offset=1),
        )
        assert [(hit.id, hit.rank) for hit in mine] == [(hit.id, hit.rank) for hit in theirs]
        assert [hit.rank for hit in mine] == [2, 3, 4]
        assert list(client.pages("red", 7)) == list(shop.pages("red", 7))
        assert client.result("red", where="pirce < 2").unknown_fields == ["pirce"]
        page = client.result("red", 2, where=where, facets=["colour"])
        assert page.pool == 4 and page.facets == {"colour": [("red", 4)]}
        assert [hit.id for hit in client.like("red-0", k=2, where=where)] == [
            hit.id for hit in shop.like("red-0", k=2, where=where)
        ]
        listed = client.browse(where, 2, facets=["price"])
        assert [item.id for item in listed.items] == [one.id for one in shop.browse(where, 2).items]
        assert (
            listed.total == client.count(where) == 4
            and listed.facets == shop.browse(where, facets=["price"]).facets
        )
        assert len(client) == len(shop) == 60 and list(client) == list(shop)
        assert "red-1" in client and "nobody" not in client and client
        with pytest.raises(BadInput, match="single quotes"):
            client.search("red", where="colour = red")
