"""The API: searches, items and codes over HTTP give what the engine gives."""

from __future__ import annotations

import base64
import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from unittest.mock import patch
from urllib.parse import quote

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from genius import Item, Query
from genius.confidence import Calibration, ConfidenceWeights
from genius.serve.app import create_app
from genius.serve.limits import Limits
from genius.store.records import Stamp

KEY = "a-key-of-some-length"


@contextmanager
def client_of(engine, **options) -> Iterator[TestClient]:
    with TestClient(create_app(engine, **options), base_url="http://localhost") as client:
        for _ in range(2000):
            if client.get("/readyz").status_code == 200:
                break
            time.sleep(0.01)
        yield client


@pytest.fixture
def client(engine) -> Iterator[TestClient]:
    with client_of(engine) as opened:
        yield opened


def ids(response) -> list[str]:
    assert response.status_code == 200, response.text
    return [hit["id"] for hit in response.json()["hits"]]


def test_a_search_answers_as_the_engine_does(client, engine):
    response = client.post("/v1/search", json={"text": "something red", "limit": 7, "beam": 40})
    assert ids(response) == [hit.id for hit in engine.search("something red", k=7, beam=40)]
    answer = response.json()
    told = {"took_ms", "generation", "changes", "beams", "leaves", "batch", "pool", "facets", "cursor"}
    assert {"hits", "nearest", "unknown_fields", *told} == set(answer)
    assert answer["beams"] > 0 and answer["leaves"] >= 7 and answer["batch"] == 1
    first = answer["hits"][0]
    shown = {
        "id",
        "score",
        "confidence",
        "missing",
        "rank",
        "modality",
        "codes",
        "text",
        "image",
        "meta",
        "path",
        "span",
    }
    assert set(first) == shown
    assert first["rank"] == 1 and len(first["codes"]) == 5
    assert len(response.headers["x-request-id"]) == 12


def test_a_field_that_is_not_there_is_answered_with_those_that_are(client):
    def detail(response):
        assert response.status_code == 422
        return response.json()["detail"]

    wrong = detail(client.post("/v1/search", json={"text": "red", "top": 3}))
    assert (
        wrong.startswith("top: no such field: there are text, image, vector, like, want") and ", k," in wrong
    )
    both = detail(client.post("/v1/search", json={"text": "red", "k": 3, "limit": 3}))
    assert both == "limit: k and limit are the same: give one of them"
    patch = detail(client.patch("/v1/items/red", json={"price": 7}))
    assert patch == "price: no such field: there are text, image, meta; everything else goes into meta"
    item = detail(client.post("/v1/items", json={"items": [{"id": "a", "text": "red", "price": 7}]}))
    assert item.startswith("items.0.price: no such field: there are id, text, image, vector, meta;")


def test_k_and_limit_are_one_thing(client):
    for name in ("k", "limit"):
        assert len(ids(client.post("/v1/search", json={"text": "red", name: 3}))) == 3
        assert len(ids(client.post("/v1/search", data={"text": "red", name: "3"}, files={"x": b""}))) == 3


def test_an_empty_instruction_of_a_form_asks_without_one(client, engine):
    client.post("/v1/search", data={"text": "red", "want": "image", "instruction": ""}, files={"x": b""})
    assert engine.model.instructions == [""]


def test_confidence_and_a_threshold(client, engine):
    asked = {"text": "something red", "at_least": 0.5}
    refused = client.post("/v1/search", json=asked)
    assert refused.status_code == 422 and "genius calibrate" in refused.json()["detail"]
    engine.model.calibrations = {"vectors": Calibration({}, ConfidenceWeights(-16.0, 20.0, 0.0))}
    answer = client.post("/v1/search", json=asked).json()
    assert answer["hits"] and all(hit["confidence"] >= 0.5 for hit in answer["hits"])
    assert answer["nearest"] == []
    far = client.post("/v1/search", json={"like": "red", "want": "text", "at_least": 0.999}).json()
    assert far["hits"] == [] and far["nearest"][0]["confidence"] < 0.999
    assert "red" not in {hit["id"] for hit in far["nearest"]}
    assert client.post("/v1/search", json={"text": "red", "at_least": 2}).status_code == 422


@pytest.mark.parametrize("want", ["image", "text", "pair"])
def test_only_what_is_wanted_is_found(client, want):
    response = client.post("/v1/search", json={"text": "blue", "want": want})
    assert ids(response)
    assert {hit["modality"] for hit in response.json()["hits"]} == {want}


def test_an_image_is_sent_as_base64_or_as_a_file(client, kit, engine):
    data = kit.picture("magenta")
    encoded = base64.b64encode(data).decode()
    expected = [hit.id for hit in engine.search(Query(image=data), k=5, want="text")]
    ask = {"want": "text", "limit": 5}
    assert ids(client.post("/v1/search", json={"image": encoded, **ask})) == expected
    assert (
        ids(client.post("/v1/search", json={"image": f"data:image/png;base64,{encoded}", **ask})) == expected
    )
    assert ids(client.post("/v1/search", data=ask, files={"image": ("m.png", data)})) == expected
    both = client.post("/v1/search", data={"text": "magenta thing", **ask}, files={"image": ("m.png", data)})
    assert ids(both)[0] == "t/magenta"


def test_an_instruction_searches_everything(client, engine):
    sentence = "Find whatever has this colour."
    response = client.post("/v1/search", json={"text": "green", "instruction": sentence, "limit": 6})
    assert ids(response) == [hit.id for hit in engine.search(Query(text="green", instruction=sentence), k=6)]


def test_more_like_this_leaves_the_item_itself_out(client):
    found = ids(client.post("/v1/search", json={"like": "p-cyan", "want": "image", "limit": 3}))
    assert found[0] == "cyan" and len(found) == 3
    found = ids(client.post("/v1/search", json={"like": "cyan", "want": "image", "limit": 30}))
    assert "cyan" not in found and len(found) == 9
    hits = client.post("/v1/search", json={"like": "cyan", "want": "image", "limit": 4}).json()["hits"]
    assert [hit["rank"] for hit in hits] == [1, 2, 3, 4]
    but = ids(client.post("/v1/search", json={"like": "white", "text": "red red red", "want": "text"}))
    assert but.index("t/red") < but.index("t/blue")
    assert client.post("/v1/search", json={"like": "nobody"}).status_code == 404


def test_add_find_remove(client, kit):
    image = base64.b64encode(kit.picture("teal")).decode()
    item = {"id": "new/teal ✓", "image": image, "text": "a teal thing", "meta": {"by": "me"}}
    answer = client.post("/v1/items", json={"items": [item, {"id": "bad", "image": "AAAA"}]}).json()
    assert (answer["added"], answer["updated"]) == (1, 0)
    assert answer["skipped"][0]["id"] == "bad" and "JPEG" in answer["skipped"][0]["reason"]
    path = "/v1/items/new%2Fteal%20%E2%9C%93"
    stored = client.get(path).json()
    assert stored["id"] == item["id"] and stored["meta"] == {"by": "me"} and stored["modality"] == "pair"
    thumbnail = client.get(f"{path}/thumbnail", params={"side": 32})
    assert thumbnail.headers["content-type"] == "image/jpeg" and thumbnail.content[:2] == b"\xff\xd8"
    assert (
        ids(client.post("/v1/search", json={"image": image, "text": "teal", "want": "pair"}))[0] == item["id"]
    )
    assert client.delete(path).json() == {"removed": 1}
    assert client.get(path).status_code == 404 and client.delete(path).status_code == 404
    assert item["id"] not in ids(client.post("/v1/search", json={"image": image, "want": "pair"}))


def test_an_item_is_added_with_a_form(client, kit):
    form = {"id": "f", "text": "from a form", "meta": json.dumps({"n": 1})}
    response = client.post("/v1/items", data=form, files={"image": ("f.png", kit.picture("pink"))})
    assert response.json()["added"] == 1
    assert client.get("/v1/items/f").json()["meta"] == {"n": 1}
    assert client.post("/v1/items", data={"id": "g", "meta": "{"}, files={"image": b""}).status_code == 422


DEEP = {"a": 1}
for _ in range(260):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    "meta", ['{"a": "\\ud800"}', json.dumps(DEEP), '{"\\udfff": 1}', '{"a": NaN}', "[1]", "[" * 2000]
)
def test_metadata_that_cannot_be_shown_is_refused(client, meta):
    """Through a form as through JSON: stored once, it would break every page that shows the item."""
    form = {"id": "f", "text": "x", "meta": meta}
    refused = client.post("/v1/items", data=form, files={"image": b""})
    assert refused.status_code == 422 and "meta" in refused.json()["detail"]
    body = '{"items": [{"id": "j", "text": "x", "meta": ' + meta + "}]}"
    headers = {"content-type": "application/json"}
    assert client.post("/v1/items", content=body, headers=headers).status_code == 422
    assert client.get("/v1/items/f").status_code == client.get("/v1/items/j").status_code == 404


@pytest.mark.parametrize("meta", ['{"a": "\\ud800"}', json.dumps(DEEP)])
def test_metadata_of_an_older_index_is_shown_as_it_is(client, engine, meta):
    with engine.index.writing():
        _, record = engine.index.truth.record("red")
        engine.index.add(
            [dataclasses.replace(record, meta=meta, vector=np.ones(engine.index.dim, np.float16))]
        )
    assert client.get("/v1/items/red").json()["meta"] == json.loads(meta)
    assert client.get("/v1/codes").status_code == 200
    hits = client.post("/v1/search", json={"text": "red", "want": "image"}).json()["hits"]
    assert next(hit for hit in hits if hit["id"] == "red")["meta"] == json.loads(meta)


def test_an_id_that_ends_in_thumbnail_is_no_thumbnail(client):
    client.post("/v1/items", json={"items": [{"id": "a/thumbnail", "text": "a text"}]})
    assert client.get("/v1/items/a%2Fthumbnail").json()["text"] == "a text"
    assert client.get("/v1/items/a%2Fthumbnail/thumbnail").status_code == 404


def test_codes_show_what_shares_a_prefix(client, engine):
    root = client.get("/v1/codes").json()
    assert root["items"] == 31 and root["levels"] == 5 and root["prefix"] == []
    assert sum(code["items"] for code in root["codes"]) == 31
    engine.remove(["red"])
    images = client.get("/v1/codes", params={"prefix": "0"}).json()
    assert images["items"] == 9 and {one["modality"] for one in images["first"]} == {"image"}
    engine.compact()
    engine.add([])
    codes = client.get("/v1/items/blue").json()["codes"]
    for length in range(6):
        answer = client.get("/v1/codes", params={"prefix": ",".join(map(str, codes[:length]))}).json()
        assert "blue" in [one["id"] for one in answer["first"]]
        assert all(one["codes"][:length] == codes[:length] for one in answer["first"])
        assert sum(code["items"] for code in answer["codes"]) == (answer["items"] if length < 5 else 0)
    assert client.get("/v1/codes", params={"prefix": "0,999"}).json()["items"] == 0
    assert client.get("/v1/codes", params={"prefix": "0,x"}).status_code == 422


def test_caps_are_named(engine):
    with client_of(engine, limits=Limits(beam=30, hits=12, items=2, pixels=1000)) as client:
        over = client.post("/v1/search", json={"text": "x", "beam": 31})
        assert over.status_code == 422 and "at most 30" in over.json()["detail"]
        over = client.post("/v1/search", json={"text": "x", "limit": 13})
        assert over.status_code == 422 and "at most 12" in over.json()["detail"]
        items = [{"id": str(number), "text": "x"} for number in range(3)]
        over = client.post("/v1/items", json={"items": items})
        assert over.status_code == 422 and "at most 2" in over.json()["detail"]
        import io

        from PIL import Image

        buffer = io.BytesIO()
        Image.new("1", (9000, 9000)).save(buffer, "PNG")  # a few KB that would be 81 megapixels
        over = client.post("/v1/search", files={"image": ("b.png", buffer.getvalue())})
        assert over.status_code == 422 and "pixels" in over.json()["detail"]
        schema = client.get("/openapi.json").json()["paths"]["/v1/search"]["post"]["requestBody"]
        fields = schema["content"]["application/json"]["schema"]["properties"]
        assert fields["k"]["maximum"] == 12 and fields["beam"]["anyOf"][0]["maximum"] == 30


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": "  "},
        {"text": "x", "limit": 0},
        {"text": "x", "limit": "5"},
        {"text": "x", "want": "video"},
        {"text": "x", "surprise": 1},
        {"text": "x" * 20_001},
        {"text": "nul \0"},
        {"image": "not base64!"},
        {"image": "AAAA"},
    ],
)
def test_what_cannot_be_used_is_refused(client, body):
    response = client.post("/v1/search", json=body)
    assert response.status_code == 422 and isinstance(response.json()["detail"], str)


@pytest.mark.parametrize("body", [b"text=red", b"{bad", b""])
def test_a_body_that_is_no_json_is_told_what_to_send(client, body):
    response = client.post("/v1/search", content=body)
    assert response.status_code == 422
    assert "application/json" in response.json()["detail"] and "multipart" in response.json()["detail"]


def test_a_route_that_is_not_there_is_told_where_all_are(client):
    for response, status in ((client.get("/v1/nothing"), 404), (client.get("/v1/search"), 405)):
        assert response.status_code == status and "/openapi.json" in response.json()["detail"]


@pytest.mark.parametrize("url", ["http://169.254.169.254/x.png", "file:///etc/passwd", "/etc/passwd"])
def test_nothing_is_fetched(client, url, monkeypatch):
    """Fault 29: neither URLs nor files of the server."""
    monkeypatch.setattr("socket.create_connection", lambda *_, **__: pytest.fail("it connects"))
    for response in (
        client.post("/v1/search", json={"image": url}),
        client.post("/v1/search", data={"image": url, "text": "x"}, files={"other": b""}),
        client.post("/v1/items", json={"items": [{"id": "x", "image": url}]}),
    ):
        assert response.status_code == 422, response.text


@pytest.mark.parametrize(
    "path", ["/v1/items/..%2F..%2Fetc%2Fpasswd", "/v1/items/%2Fetc%2Fpasswd", "/v1/items/..%2F/thumbnail",
             "/page/..%2Fapp.py", "/page/%2Fetc%2Fpasswd", "/v1/items/%00", "/v1/items/%ff%fe"]
)  # fmt: skip
def test_ids_are_no_paths(client, path):
    """Fault 28."""
    assert client.get(path).status_code == 404
    assert client.delete(path).status_code in (404, 405)


def test_one_bad_query_spoils_no_other(engine, kit):
    """Searches that are answered together, one of which cannot be."""
    texts = ["red", "green \0", "blue", "cyan", "red"]
    with client_of(engine) as client, ThreadPoolExecutor(len(texts)) as some:
        gate, taken, original = threading.Event(), [], engine.results

        def slow(queries, *args, **options):
            taken.append(len(queries))
            assert gate.wait(20)
            return original(queries, *args, **options)

        engine.results = slow
        waiting = client.app.state.backend.metrics.waiting
        asks = [some.submit(client.post, "/v1/search", json={"text": t, "want": "image"}) for t in texts]
        kit.wait_until(lambda: sum(taken) + waiting._value.get() == len(texts))
        gate.set()
        answers = [ask.result() for ask in asks]
    assert [one.status_code for one in answers] == [200, 422, 200, 200, 200]
    assert [ids(answers[number])[0] for number in (0, 2, 3, 4)] == ["red", "blue", "cyan", "red"]
    assert max(one.json()["batch"] for one in answers if one.status_code == 200) >= 3


def test_the_key_is_asked_for(engine):
    """Fault 30, second half."""
    with client_of(engine, key=KEY, loopback=False) as client:
        for path in ("/v1/stats", "/metrics", "/v1/items/red", "/v1/codes", "/v1/items/red/thumbnail"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
            assert client.get(path, headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
        refused = client.post("/v1/items", json={"items": []}, headers={"Authorization": f"Bearer {KEY}x"})
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
        for path in ("/", "/healthz", "/readyz", "/openapi.json", "/page/app.js", "/docs"):
            assert client.get(path).status_code == 200


def test_health_is_told_when_no_other_request_is_let_in(engine):
    with client_of(engine, limits=Limits(requests=0, open_requests=0)) as client:
        for path in ("/", "/docs", "/v1/stats"):
            assert client.get(path).status_code == 503
        for path in ("/healthz", "/readyz"):
            assert client.get(path).status_code == 200


def test_other_sites_cannot_ask_through_a_browser(engine):
    with client_of(engine, origins=["https://friend.example"]) as client:
        post = {"json": {"text": "red"}}
        assert (
            client.post("/v1/search", **post, headers={"Origin": "https://evil.example"}).status_code == 403
        )
        assert client.post("/v1/search", **post, headers={"Origin": "http://localhost"}).status_code == 200
        assert client.post("/v1/search", **post, headers={"Host": "evil.example"}).status_code == 421
        friend = client.post("/v1/search", **post, headers={"Origin": "https://friend.example"})
        assert friend.headers["access-control-allow-origin"] == "https://friend.example"


def test_cross_origin_requests_are_off_by_default(client):
    ask = {"Origin": "https://x.example", "Access-Control-Request-Method": "POST"}
    refused = client.options("/v1/search", headers=ask)
    assert refused.status_code == 403 and "access-control-allow-origin" not in refused.headers


def test_stats_health_and_metrics(client):
    client.post("/v1/search", json={"text": "red"})
    facts = client.get("/v1/stats").json()
    assert facts["items"] == 31 and facts["limits"]["hits"] == 200 and "folder" not in facts
    assert client.get("/healthz").json() == {"status": "ok"}
    text = client.get("/metrics").text
    assert 'genius_requests_total{route="/v1/search",status="200"} 1.0' in text
    assert 'genius_items{modality="pair"} 11.0' in text and "genius_search_batch_size_bucket" in text


def test_logs_are_json_and_do_not_tell_what_was_asked(engine, capsys):
    import io

    from genius.serve.log import LOGGER, log_to

    stream = io.StringIO()
    log_to(stream)
    try:
        with client_of(engine, key=KEY) as client:
            client.post("/v1/search", json={"text": "secret"}, headers={"Authorization": f"Bearer {KEY}"})
    finally:
        LOGGER.handlers.clear()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    (one,) = [line for line in lines if line.get("route") == "/v1/search"]
    assert one["event"] == "request" and one["status"] == 200 and one["ms"] > 0 and one["level"] == "info"
    assert "secret" not in stream.getvalue() and KEY not in stream.getvalue()


def test_an_error_of_ours_is_a_500_without_its_inside(engine):
    engine.stats = lambda: 1 / 0
    app = create_app(engine)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        response = client.get("/v1/stats")
        assert response.status_code == 500 and "division" not in response.text
        assert client.get("/healthz").status_code == 200


def test_the_original_file_and_its_path(engine, kit, tmp_path):
    file = tmp_path / "näher.png"
    file.write_bytes(kit.picture("teal"))
    engine.add([Item("teal", image=file)])
    with client_of(engine) as client:
        response = client.get("/v1/items/teal/original")
        assert response.content == file.read_bytes() and response.headers["content-type"] == "image/png"
        assert client.get("/v1/items/teal").json()["path"] == str(file)
        hits = client.post("/v1/search", json={"like": "green", "want": "image"}).json()["hits"]
        assert {hit["id"]: hit["path"] for hit in hits}["teal"] == str(file)
        assert client.get("/v1/items/red/original").status_code == 404, "it came as bytes"
        file.write_text("<script>alert(1)</script>")
        assert client.get("/v1/items/teal/original").status_code == 404, "no picture any more"
        file.write_bytes(b"\xff\xd8\xff\xe0\x00\x04JF\xff\xc0\x00\x02")
        assert client.get("/v1/items/teal/original").status_code == 404, "a broken header"
    with client_of(engine, key=KEY) as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        assert client.get("/v1/items/teal/original").status_code == 404
        assert client.get("/v1/items/teal").json()["path"] is None
        hits = client.post("/v1/search", json={"like": "green", "want": "image"}).json()["hits"]
        assert {hit["path"] for hit in hits} == {None}


def test_originals_of_every_format_that_is_read(engine, kit, tmp_path):
    """Photos of phones and cameras, and a JPEG of more pixels than Pillow opens by itself."""
    pytest.importorskip("pillow_heif", reason="HEIC needs the extra heic").register_heif_opener()
    jpeg = BytesIO()
    Image.new("RGB", (64, 64), "teal").save(jpeg, "JPEG")
    Image.new("RGB", (64, 64), "teal").save(tmp_path / "phone.heic")
    (tmp_path / "raw.CR2").write_bytes(b"II*\0\x10\0\0\0CR\2\0" + bytes(100) + jpeg.getvalue() + bytes(9))
    Image.new("L", (19_000, 10_000), 99).save(tmp_path / "große.jpg")
    types = {"phone.heic": "image/heif", "raw.CR2": "application/octet-stream", "große.jpg": "image/jpeg"}
    engine.add([Item(name, image=tmp_path / name) for name in types])
    with client_of(engine) as client:
        for name, kind in types.items():
            answer = client.get(f"/v1/items/{name}/original")
            assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
            assert answer.content == (tmp_path / name).read_bytes()
            assert quote(name) in answer.headers["content-disposition"]
            assert answer.headers["content-disposition"].startswith("inline")


def test_a_path_that_came_with_an_import_is_not_opened(engine, kit, tmp_path):
    """Fault 41: whoever makes an export could name any picture of this machine in it."""
    secret = tmp_path / "secret.png"
    secret.write_bytes(kit.picture("teal"))
    engine.add([Item("teal", image=secret)])
    with patch.object(Stamp, "of", lambda status: Stamp()):
        engine.add([Item("imported", image=secret, text="with a stamp that nobody set")])
    with client_of(engine) as client:
        assert client.get("/v1/items/teal/thumbnail").status_code == 200
        assert client.get("/v1/items/imported/thumbnail").status_code == 404
        assert client.get("/v1/items/imported/original").status_code == 404


def test_an_item_without_an_id_is_named_after_its_content(client, kit):
    def add(**fields) -> tuple[str, int]:
        answer = client.post("/v1/items", data=fields, files={"image": kit.picture("teal")}).json()
        return answer["ids"][0], answer["added"]

    first, added = add(text="a teal thing")
    assert added == 1 and client.get(f"/v1/items/{first}").json()["text"] == "a teal thing"
    assert add(text="a teal thing") == (first, 0), "the same content is the same item"
    assert add(text="another text")[0] != first
    both = client.post("/v1/items", json={"items": [{"text": "one"}, {"id": "named", "text": "two"}]}).json()
    assert both["added"] == 2 and both["ids"][1] == "named"
    assert client.post("/v1/items", json={"items": [{"id": "", "text": "x"}]}).status_code == 422


def test_one_item_is_changed_in_part(client, engine, kit):
    client.post("/v1/items", json={"items": [{"id": "a/b", "text": "red", "meta": {"price": 3, "x": 1}}]})
    changed = client.patch("/v1/items/a%2Fb", json={"meta": {"price": 4, "x": None}})
    assert changed.status_code == 200, changed.text
    assert (changed.json()["text"], changed.json()["meta"]) == ("red", {"price": 4})
    changed = client.patch("/v1/items/a%2Fb", files={"image": ("b.png", kit.picture("blue"))})
    assert changed.json()["modality"] == "pair" and engine.get("a/b").text == "red"
    assert client.patch("/v1/items/nothere", json={"text": "x"}).status_code == 404
    assert client.patch("/v1/items/a%2Fb", json={"price": 3}).status_code == 422
    broken = client.patch("/v1/items/a%2Fb", json={"image": base64.b64encode(b"no image").decode()})
    assert broken.status_code == 422
