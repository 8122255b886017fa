"""What photos tell of themselves is metadata of their items; a server for others hides places."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from PIL import Image

FACTS = {"camera": "Canon", "date": "2019-07-21T18:30:05", "latitude": 48.5, "longitude": 2.25}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    exif = Image.Exif()
    exif[0x010F] = "Canon"
    exif.get_ifd(0x8769)[0x9003] = "2019:07:21 18:30:05"
    exif.get_ifd(0x8825).update({1: "N", 2: (48.0, 30.0, 0.0), 3: "E", 4: (2.0, 15.0, 0.0)})
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("RGB", (32, 24), "red").save(folder / "red.jpg", exif=exif)
    (folder / "plain.txt").write_text("no photo")
    return folder


def meta(engine, id: str) -> dict[str, object]:
    return json.loads(engine.get(id).meta)


def test_photos_of_a_folder_have_their_facts(make_engine, photos, monkeypatch) -> None:
    engine = make_engine()
    engine.add_from(photos)
    assert meta(engine, "red.jpg") == FACTS and meta(engine, "plain.txt") == {}
    assert engine.add_from(photos).unchanged == 2
    past = (photos / "red.jpg").stat().st_mtime - 3600
    os.utime(photos / "red.jpg", (past, past))
    monkeypatch.setattr("genius.store.records.SETTLED_NS", -(10**18))
    engine.add_from(photos)
    assert engine.add_from(photos).unchanged == 2  # known by its stamp, it is not read, and keeps them
    assert meta(engine, "red.jpg") == FACTS
    assert [hit.id for hit in engine.search("red", where="date < '2020' and camera = 'Canon'")] == ["red.jpg"]


def test_they_can_be_left_out(make_engine, photos) -> None:
    engine = make_engine()
    engine.add_from(photos, exif=False)
    assert meta(engine, "red.jpg") == {}


def test_a_server_for_others_hides_places(make_engine, photos) -> None:
    testclient = pytest.importorskip("fastapi.testclient")
    from genius.serve.app import create_app

    engine, key = make_engine(), "a-key-of-some-length"
    engine.add_from(photos)
    told = ({}, set(FACTS)), ({"key": key, "places": True}, set(FACTS)), ({"key": key}, {"camera", "date"})
    for options, shown in told:
        with testclient.TestClient(create_app(engine, **options), base_url="http://localhost") as client:
            client.headers["authorization"] = f"Bearer {key}"
            end = time.monotonic() + 60  # it loads the model after it has begun to listen
            while not client.get("/readyz").is_success and time.monotonic() < end:
                time.sleep(0.01)
            assert set(client.get("/v1/items/red.jpg").json()["meta"]) == shown
            for asked in ({"facet": "latitude"}, {"where": "date > '2000' and not meta.longitude > 1"}):
                answer = client.get("/v1/items", params=asked)
                assert answer.status_code == (200 if "latitude" in shown else 422), answer.text
            search = {"text": "red", "where": "has latitude"}
            assert client.post("/v1/search", json=search).is_success == ("latitude" in shown)
            codes = client.get("/v1/codes").json()
            for item in (*codes["first"], *(item for child in codes["codes"] for item in child["some"])):
                assert set(item["meta"]) <= shown
