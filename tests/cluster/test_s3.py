"""Object storage: sources, parts and exports behind s3://, on a server that throttles and breaks transfers.

The server is moto's, on loopback; clients find it by AWS_ENDPOINT_URL. They repeat a throttled request for
six seconds, a refused one not at all.
"""

from __future__ import annotations

import json
import logging
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto", reason="an S3 server needs the extra `dev`")
pytest.importorskip("ray", reason="a cluster needs the extra `cluster`")

from genius.cluster.parts import PartStore
from genius.data import remote
from genius.data.report import Report
from genius.data.tables import read_items
from genius.engine import Engine
from genius.errors import GeniusError

pytestmark = pytest.mark.xdist_group("s3")

SLOW_DOWN = ("503 Slow Down", "SlowDown")
REFUSED = ("403 Forbidden", "AccessDenied")
Fault = Callable[[str, str, int], bool]  # method, path, number of the request


def never(*_: Any) -> bool:
    return False


def always(*_: Any) -> bool:
    return True


def every(n: int) -> Fault:
    """A fault of every n-th request; what the client sends again gets through."""
    return lambda _method, _path, number: number % n == n - 1


class FaultyServer:
    """An S3 server; `throttled` requests get 503, `refused` ones 403, `cut` ones half of their answer."""

    def __init__(self, listening: socket.socket) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self.heal()
        host, port = listening.getsockname()
        self._server = make_server(host, port, self, threaded=True, fd=listening.fileno())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def heal(self) -> None:
        """No faults from now on; counting begins anew."""
        self.throttled: Fault = never
        self.refused: Fault = never
        self.cut: Fault = never
        self.requests = self.faults = 0

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer one request (WSGI)."""
        request = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with self._lock:
            faults = (self.throttled, self.refused, self.cut)
            throttled, refused, cut = (fault(*request, self.requests) for fault in faults)
            self.requests += 1
            self.faults += throttled or refused or cut
        if throttled or refused:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            status, code = SLOW_DOWN if throttled else REFUSED
            start_response(status, [("Content-Type", "application/xml")])
            return [f'<?xml version="1.0"?><Error><Code>{code}</Code></Error>'.encode()]
        body = self._app(environ, start_response)
        return half(body) if cut else body


def half(body: Iterable[bytes]) -> Iterator[bytes]:
    data = b"".join(body)
    yield data[: len(data) // 2]
    raise ConnectionAbortedError  # after headers that promise more


@pytest.fixture(scope="module")
def server(s3_socket: socket.socket, sources: dict[str, Path]) -> Iterator[FaultyServer]:
    """A server with all sources in the bucket `shop`, under `in/`."""
    found = FaultyServer(s3_socket)
    client().create_bucket(Bucket="shop")
    root = sources["folder"].parent
    for file in sorted(root.rglob("*")):
        if file.is_file():
            put(f"in/{file.relative_to(root).as_posix()}", file.read_bytes())
    yield found
    found.close()


@pytest.fixture
def s3(server: FaultyServer) -> Iterator[FaultyServer]:
    """The server, without faults at the beginning and at the end."""
    server.heal()
    yield server
    server.heal()


@cache
def client() -> Any:
    import boto3

    return boto3.client("s3")


def put(key: str, data: bytes) -> None:
    client().put_object(Bucket="shop", Key=key, Body=data)


def keys(prefix: str) -> list[str]:
    found = client().list_objects_v2(Bucket="shop", Prefix=prefix).get("Contents", [])
    return [entry["Key"] for entry in found if not entry["Key"].endswith("/")]


def content(index: Path) -> dict[str, Any]:
    """What is stored of every item, without where it came from."""
    truth = sqlite3.connect(index / "index.sqlite")
    rows = truth.execute("SELECT id, modality, text, codes, vector FROM items").fetchall()
    truth.close()
    return {row[0]: row[1:] for row in rows}


def test_sources_are_read_though_requests_are_throttled_and_transfers_cut(
    s3, model, sources, plain, tmp_path
):
    s3.throttled, s3.cut = every(5), every(7)
    with Engine.create(tmp_path / "index", model) as engine:
        report = Report()
        for name in ("folder", "lines.jsonl", "rows.parquet", "shard.tar"):
            place = f"s3://shop/in/{name}"
            engine.add(read_items(place, report=report), source=place, report=report)
    assert s3.faults > 20
    assert report.skipped == 3  # the bad ones that `sources` has
    assert content(tmp_path / "index") == content(plain)


@pytest.mark.slow
def test_a_store_that_does_not_answer_costs_what_it_did_not_give(genius, s3, model, tmp_path, monkeypatch):
    """A picture that cannot be fetched is named; a listing that fails ends the run and prunes nothing."""
    place = "s3://shop/in/folder"
    with Engine.create(tmp_path / "index", model) as engine, monkeypatch.context() as patch:
        patch.setattr(remote, "ATTEMPTS", 1)  # each of them takes six seconds
        s3.throttled = lambda method, path, _: path.endswith("/012.png") and method == "GET"
        report = Report()
        added = engine.add(read_items(place, report=report), source=place, report=report)
        assert added.added == 23 and "SLOW_DOWN" in dict(report.names)["inner/012.png"]
    s3.refused = always
    done = genius("index", place, "--to", tmp_path / "index", "--prune")
    assert done.code not in (0, 1) and "Traceback" not in done.err, done.err
    assert len(content(tmp_path / "index")) == 23
    s3.heal()
    assert genius("index", place, "--to", tmp_path / "index", "--prune").code == 0
    assert len(content(tmp_path / "index")) == 24


def test_parts_are_whole_or_not_there(s3, tmp_path):
    parts = PartStore("s3://shop/parts-alone")
    s3.refused = lambda method, path, _: "whole" in path and method in ("PUT", "POST")
    with pytest.raises((GeniusError, OSError)):
        parts.write("whole.part", b"x" * 10**6)
    s3.heal()
    assert keys("parts-alone/") == []
    assert parts.read("whole.part") is None


@pytest.mark.parametrize("form", ["jsonl", "tar"])
def test_an_export_is_there_whole_or_not_at_all(genius, s3, plain, tmp_path, form):
    place = f"s3://shop/out-{form}/index.{form}"
    s3.refused = lambda method, path, _: path.startswith(f"/shop/out-{form}/") and method in ("PUT", "POST")
    done = genius("export", place, "--in", plain)
    assert done.code == 9 and "cannot write s3://" in done.err, done.err
    assert keys(f"out-{form}/") == []
    s3.heal()
    s3.throttled, s3.cut = every(3), every(4)
    done = genius("export", place, "--in", plain)
    assert (done.code, done.out.strip()) == (0, place), done.err
    done = genius("import", place, "--to", tmp_path / "copy")
    assert (done.code, done.out) == (0, "imported 282\n"), done.err
    assert content(tmp_path / "copy") == content(plain)
    assert s3.faults > 2


@pytest.mark.slow
def test_a_cluster_indexes_from_and_over_a_store_with_faults(genius, ray, s3, kit, plain, model, tmp_path):
    """Sources and parts are objects; the run is the one that files give, and leaves no part behind."""
    s3.throttled, s3.cut = every(6), every(11)
    places = [f"s3://shop/in/{name}" for name in ("folder", "lines.jsonl", "rows.parquet", "shard.tar")]
    words = ["--to", tmp_path / "index", "--model", model, "--cluster", "local", "--workers", "2"]
    done = genius("index", *places, *words, "--parts", "s3://shop/parts", "--format", "json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["added"] == 282
    assert s3.faults > 20
    assert content(tmp_path / "index") == content(plain)
    assert keys("parts/") == []
    with Engine.open(tmp_path / "index") as engine:
        record = engine.get("inner/003.png")
        assert record is not None and record.text == kit.caption(3)
        assert "s3://shop/in/folder/inner/003.png" in record.meta
        assert engine.thumbnail("inner/003.png")


@pytest.mark.slow
def test_a_store_that_goes_away_ends_the_run_and_the_next_one_goes_on(
    genius, ray, s3, plain, model, tmp_path
):
    words = ["s3://shop/in/rows.parquet", "--to", tmp_path / "index", "--model", model]
    words += ["--cluster", "local", "--workers", "1"]
    words += ["--parts", "s3://shop/parts2", "--format", "json"]
    s3.refused = lambda method, path, _: "parts2" in path and method == "GET"
    done = genius("index", *words)
    assert done.code not in (0, 1) and "Traceback" not in done.err, done.err
    assert "what was committed is safe" in done.err
    s3.heal()
    done = genius("index", *words)
    assert done.code == 0, done.err
    expected = {id: row for id, row in content(plain).items() if id[0] == "q"}
    assert content(tmp_path / "index") == expected
    assert keys("parts2/") == []
