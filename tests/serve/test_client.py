"""The client does what the engine does, through the server."""

from __future__ import annotations

import inspect
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from PIL import Image

import genius
from genius import Client, Item, Query
from genius.client import ServerError
from genius.confidence import Calibration, ConfidenceWeights
from genius.engine import Engine
from genius.errors import BadInput

KEY = "a-key-of-some-length"


@pytest.fixture(scope="module")
def served(tmp_path_factory, fake, module_kit):
    with Engine.create(tmp_path_factory.mktemp("client") / "index", fake.FakeModel()) as engine:
        engine.add(module_kit.colours(fake))
        with module_kit.live(engine, key=KEY) as running:
            yield running


@pytest.fixture
def client(served):
    with Client(served.url, KEY) as opened:
        yield opened


def names(hits) -> list[str]:
    return [hit.id for hit in hits]


def test_it_has_the_methods_of_the_engine(served):
    for name in ("search", "search_batch", "like", "remove"):
        assert inspect.signature(getattr(Client, name)) == inspect.signature(getattr(Engine, name))
    for name in ("add", "remove", "get", "thumbnail", "stats", "close", "__enter__", "__exit__"):
        assert callable(getattr(Client, name))
    assert genius.Client is Client


def test_where_nothing_is_close_the_nearest_are_told(served, client, monkeypatch):
    by = {"vectors": Calibration({}, ConfidenceWeights(-16.0, 20.0, 0.0))}
    monkeypatch.setattr(served.engine.model, "calibrations", by, raising=False)
    page = client.result("xyzzy", k=3, at_least=0.999)
    (own,) = served.engine.results(["xyzzy"], k=3, at_least=0.999)
    assert page.hits == [] and page.nearest == own.nearest and len(page.nearest) == 3
    assert client.result("something red", k=3, at_least=0.5).nearest == []


def test_searches_are_those_of_the_engine(client, served, tmp_path, kit):
    file = tmp_path / "blue.png"
    file.write_bytes(kit.picture("blue"))
    asked = [
        "something red",
        file,
        Query(text="green", image=Image.new("RGB", (9, 9), "green")),
        Query(text="x", instruction="Find it."),
        Query(text="cyan", want=genius.Modality.PAIR),
    ]
    for query in asked:
        assert client.search(query, k=7) == served.engine.search(query, k=7)
    for want in ("image", "text", "pair", "any", genius.Modality.TEXT, "Find a picture of it."):
        assert client.search("red", 5, want) == served.engine.search("red", 5, want)
    assert client.search("red", rerank="codes", search="lookup", beam=9) == served.engine.search(
        "red", rerank="codes", search="lookup", beam=9
    )
    words = client.search("red", match="cyan")
    assert words and words == served.engine.search("red", match="cyan")
    for hybrid in (True, False):
        own = client.search("red t-cyan", hybrid=hybrid)
        assert own == served.engine.search("red t-cyan", hybrid=hybrid)
        assert client.search_batch(["red t-cyan"], hybrid=hybrid) == [own]
    for sentence in ("", "Find a thing of this colour."):
        asked.append(Query(image=file, instruction=sentence))
        found = client.search(file, want="text", instruction=sentence)
        assert found == served.engine.search(file, want="text", instruction=sentence)
    assert client.search_batch(asked, k=3) == served.engine.search_batch(asked, k=3)
    for but in (None, "red red red"):
        assert client.like("p-cyan", but, 5, "image") == served.engine.like("p-cyan", but, 5, "image")


@pytest.mark.parametrize("by", ["http", "client"])
def test_words_count_in_the_order_and_scores_are_similarities(client, served, kit, by):
    found = client.search("t/cyan", 31)
    if by == "http":
        body = json.dumps({"text": "t/cyan", "k": 31}).encode()
        headers = (f"Authorization: Bearer {KEY}", "Content-Type: application/json")
        asked = kit.head("POST", "/v1/search", *headers, f"Content-Length: {len(body)}")
        _, _, answer = served.ask(asked, body)
        told = [(hit["id"], hit["score"]) for hit in json.loads(answer)["hits"]]
    else:
        told = [(hit.id, hit.score) for hit in found]
    similar = {hit.id: hit.score for hit in served.engine.search("t/cyan", 31, hybrid=False)}
    assert told[0][0] == "t/cyan" and told[0][1] < max(similar.values()) <= 1
    assert dict(told) == pytest.approx(similar)


def test_items_come_and_go(client, tmp_path, kit):
    file = tmp_path / "a.png"
    file.write_bytes(kit.picture("teal"))
    bad = [
        Item("", text="no id"),
        Item("broken", image=b"no image"),
        Item("absent", image=tmp_path / "nowhere.png"),
        Item("meta", text="red", meta=None),
        Item(["list"], text="red"),
        Item("text", text=5),
        Item("deep", text="red", meta={"a": "\ud800"}),
        None,
    ]
    added = client.add([*bad[:4], Item("a/b ü.png", image=file, text="teal", meta={"n": 1}), *bad[4:]])
    assert (added.added, added.report.skipped) == (1, len(bad))
    assert {"broken", "absent", "meta", "text", "deep"} <= {name for name, _ in added.skipped}
    with pytest.raises(BadInput, match=r"add\(\[item\]\)"):
        client.add(Item("one", text="red"))
    with pytest.raises(BadInput, match=r"search\(query\)"):
        client.search_batch("red")
    with pytest.raises(BadInput, match="search_batch"):
        client.search(["red"])
    stored = client.get("a/b ü.png")
    assert stored is not None and stored.meta == {"n": 1} and stored.modality == "pair"
    thumbnail = client.thumbnail("a/b ü.png", 64)
    assert thumbnail is not None and thumbnail[:2] == b"\xff\xd8"
    assert client.stats()["items"] == 32
    assert "a/b ü.png" in names(client.like("p-cyan", "teal teal", k=20))
    assert client.remove(["nobody"]) == 0
    assert client.remove("a/b ü.png") == 1
    assert client.get("a/b ü.png") is None and client.thumbnail("nobody") is None


def test_what_goes_wrong_is_said(client, served):
    with pytest.raises(BadInput, match="at most 500"):
        client.search("x", beam=501)
    ((name, reason),) = client.add([Item("x", image="/no/such/file.png")]).skipped
    assert name == "x" and "no image at" in reason
    with Client(served.url, "wrong") as stranger, pytest.raises(ServerError, match="key") as refused:
        stranger.stats()
    assert refused.value.status == 401
    with Client("http://127.0.0.1:9") as nobody, pytest.raises(ServerError, match="genius serve"):
        nobody.stats()
    with pytest.raises(BadInput, match="address"):
        Client("ftp://x")


def test_a_404_of_somebody_else_is_not_about_items():
    """A proxy whose server is away, such as Ray's, does not know whether the item is there."""

    class Nothing(BaseHTTPRequestHandler):
        def do_DELETE(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with (
        HTTPServer(("127.0.0.1", 0), Nothing) as server,
        Client(f"http://127.0.0.1:{server.server_port}") as client,
    ):
        threading.Thread(target=server.handle_request).start()
        with pytest.raises(ServerError, match="404: is `genius serve` running") as raised:
            client.remove(["red"])
        assert raised.value.status == 404


def test_items_are_changed_in_part(client, served, tmp_path):
    client.add([Item("sofa", text="a red sofa", meta={"price": 3, "brand": "x"})])
    result = client.update([Item("sofa", meta={"price": 4, "brand": None}), Item("nothere", text="x")])
    assert (result.updated, result.skipped[0].name) == (1, "nothere")
    assert (client.get("sofa").text, client.get("sofa").meta) == ("a red sofa", {"price": 4})
    Image.new("RGB", (32, 32), "blue").save(tmp_path / "blue.png")
    client.update([Item("sofa", image=tmp_path / "blue.png")])
    assert client.get("sofa").modality == "pair"
    assert client.update([Item("sofa", text="")]).updated == 1
    assert client.get("sofa").modality == "image"
    with pytest.raises(BadInput, match=r"update\(\[item\]\)"):
        client.update(Item("sofa"))
    client.remove("sofa")


def test_a_text_whose_image_is_missing_is_sent_alone(client):
    result = client.add([Item("lone", image="absent.png", text="words"), Item("none", image="absent.png")])
    assert (result.added, result.report.noted, result.report.skipped) == (1, 1, 1)
    assert client.get("lone").meta == {"image_missing": True}
    client.remove("lone")


def test_hits_in_long_texts_say_which_passage_was_found(tmp_path, fake, module_kit):
    model = fake.FakeModel()
    model.max_tokens, model.text_limit = 6, model
    model.count_tokens = lambda texts: [2 + len(text.split()) for text in texts]
    with Engine.create(tmp_path / "index", model, split_texts=True) as engine:
        text = "Red apples 🍎. Green grass here. Blue sky above."
        engine.add([Item("long", text=text), Item("black", text="black")])
        with module_kit.live(engine, key=KEY) as running, Client(running.url, KEY) as client:
            first, other = client.search("green", k=2)
            assert first.passage == "Green grass here." and other.span is None
            assert [first, other] == engine.search("green", k=2)
            client.add([Item("more", text="White snow only. Purple rain again. Orange juice.")])
            assert client.search("purple", k=1)[0].passage == "Purple rain again."
