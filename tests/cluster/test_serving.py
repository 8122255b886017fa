"""Ray Serve with two replicas answers as the engine does, on the same routes, though one of them dies."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="a cluster needs the extra `cluster`")

from genius import Client, Item
from genius.cluster import serving
from genius.cluster.serving import Deployment, deploy, withdraw
from genius.engine import Engine
from genius.errors import IndexNotFound
from genius.serve.limits import Limits

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

SEARCHES: list[dict[str, Any]] = [
    {"text": "red and green"},
    {"text": "blue", "want": "text", "limit": 7},
    {"text": "yellow", "want": "image", "rerank": "codes"},
    {"text": "cyan", "want": "pair", "rerank": "none", "beam": 9},
    {"like": "l7", "limit": 3},
    {
        "text": "red",
        "where": "id like '%7%' or id = 'late2'",
        "facets": ["modality"],
        "limit": 4,
        "offset": 1,
    },
]
PLAN = {"replicas": 2, "shards": 2, "limits": Limits(search_s=60.0)}


@pytest.fixture(scope="module")
def index(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the index, with changes that no generation has yet."""
    folder = tmp_path_factory.mktemp("served") / "index"
    shutil.copytree(plain, folder)
    with Engine.open(folder) as engine:
        engine.add([Item("late/1", text="red and green and late"), Item("late2", text="blue, too")])
        engine.remove(["l1"])
    return folder


@pytest.fixture(scope="module")
def url(ray: Any, index: Path) -> Iterator[str]:
    """The index on two replicas, its vectors in two shards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "HEALTH_S", 1.0)  # what is dead is replaced sooner
        yield deploy(Deployment(str(index), **PLAN), 0)
    ray_serve().shutdown()


def ray_serve() -> Any:
    from ray import serve

    return serve


def call(url: str, path: str, body: Any = None, method: str | None = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=90) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        told = error.read()
        return error.code, json.loads(told) if told.startswith(b"{") else told


@pytest.fixture(scope="module")
def replica_pids(kit: Any) -> Callable[..., list[int]]:
    """The processes of this Ray that search; Ray names its workers by what they do."""

    def found(deployment: str = "replicas") -> list[int]:
        name = f"ray::ServeReplica:genius:{deployment}".encode()
        return sorted(
            pid for pid, words in kit.processes_below(os.getpid()).items() if words.startswith(name)
        )

    return found


def test_answers_are_those_of_the_engine(url, index, sources):
    """Bit for bit: codes are in every replica, vectors come from their shards."""
    picture = (sources["folder"] / "inner" / "004.png").read_bytes()
    asked = [*SEARCHES, {"image": base64.b64encode(picture).decode(), "limit": 5}]
    answers = [call(url, "/v1/search", ask) for ask in asked]
    from starlette.testclient import TestClient

    from genius.serve.app import create_app

    with Engine.open(index) as engine, TestClient(create_app(engine), base_url="http://localhost") as one:
        wait(lambda: one.get("/readyz").status_code == 200)
        for ask, (status, answer) in zip(asked, answers, strict=True):
            expected = one.post("/v1/search", json=ask).json()
            assert status == 200, answer
            for name in ("hits", "generation", "beams", "leaves", "changes", "pool", "facets", "cursor"):
                assert answer[name] == expected[name], (ask, name)
        listed = "/v1/items?where=modality%20%3D%20'text'&limit=5&facet=modality"
        for path in (listed, "/v1/items/late%2F1", "/v1/codes", "/v1/stats", "/v1/items/nobody"):
            expected = one.get(path)
            status, answer = call(url, path)
            if path == "/v1/stats":
                assert answer["items"] == expected.json()["items"]
            else:
                assert (status, answer) == (expected.status_code, expected.json()), path
    assert call(url, "/readyz") == (200, {"status": "ready"})
    with urllib.request.urlopen(f"{url}/", timeout=30) as page:
        assert b"<html" in page.read()
    assert call(url, "/v1/search", {"text": "x", "beam": 10**6})[0] == 422
    assert call(url, "/v1/search", {"text": "x", "where": "a <"})[0] == 422


def test_shards_have_a_range_each(ray, url, index):
    serve = ray_serve()
    held = [
        serve.get_deployment_handle(f"vectors-{shard}", "genius").held.remote().result() for shard in (0, 1)
    ]
    with Engine.open(index) as engine:
        count = engine.index.pinned().items
    assert [sum(one.values()) for one in held] == [count // 2, count - count // 2]


def test_writes_through_any_replica_are_seen_by_all(url):
    with Client(url) as client:
        for number in range(6):
            client.add([Item(f"new{number}", text=f"purple {number}")])
        assert client.remove(["new0"]) == 1
        for _ in range(6):
            found = {hit.id for hit in client.search("purple 3", k=8, want="text")}
            assert "new3" in found and "new0" not in found
        assert client.remove([f"new{number}" for number in range(1, 6)]) == 5


def test_a_new_generation_is_taken_up_while_it_is_served(url, index):
    before = call(url, "/v1/search", SEARCHES[0])[1]
    with Engine.open(index) as engine:
        number = engine.compact()
    assert number > before["generation"]
    for _ in range(6):  # whichever replica answers
        after = call(url, "/v1/search", SEARCHES[0])[1]
        assert (after["generation"], after["hits"]) == (number, before["hits"])


def test_a_killed_shard_changes_no_answer(url, replica_pids):
    before = [call(url, "/v1/search", ask)[1]["hits"] for ask in SEARCHES]
    (shard,) = replica_pids("vectors-0")
    os.kill(shard, signal.SIGKILL)
    assert [call(url, "/v1/search", ask)[1]["hits"] for ask in SEARCHES] == before


def wait(true: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


class Load:
    """Threads that search all the time, and every answer they got."""

    def __init__(self, url: str, threads: int = 4) -> None:
        self.url, self.stop = url, threading.Event()
        self.answers: list[tuple[int, Any]] = []
        self.threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(threads)]

    def _ask(self, number: int) -> None:
        while not self.stop.is_set():
            ask = SEARCHES[(number + len(self.answers)) % len(SEARCHES)]
            try:
                self.answers.append(call(self.url, "/v1/search", ask))
            except OSError as error:
                self.answers.append((0, repr(error)))
            time.sleep(0.03)  # processors are for those that start meanwhile, too

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


def test_a_killed_replica_loses_no_request(ray, url, replica_pids):
    before = replica_pids()
    assert len(before) == 2
    with Load(url) as load:
        wait(lambda: len(load.answers) > 20)
        os.kill(before[0], signal.SIGKILL)
        so_far = len(load.answers)
        wait(lambda: len(load.answers) > so_far + 40)
        wait(lambda: len(set(replica_pids()) - {before[0]}) == 2)  # another one took its place
    assert [answer for answer in load.answers if answer[0] != 200] == []


def test_readiness_is_the_truth_when_all_replicas_and_the_front_die(ray, url, replica_pids):
    """Fault 47: it is not ready within 5 s, and recovers by itself."""
    assert call(url, "/readyz") == (200, {"status": "ready"})
    dead = set(replica_pids())
    for process in dead:
        os.kill(process, signal.SIGKILL)
    wait(lambda: call(url, "/readyz")[0] == 503 or set(replica_pids()) - dead, 5)
    assert call(url, "/healthz")[0] == 200
    wait(lambda: call(url, "/readyz")[0] == 200, 240)
    assert call(url, "/v1/search", SEARCHES[0])[0] == 200
    (front,) = replica_pids("front")
    os.kill(front, signal.SIGKILL)
    wait(lambda: replica_pids("front") not in ([], [front]), 240)
    wait(lambda: call(url, "/readyz")[0] == 200, 240)
    assert call(url, "/v1/search", SEARCHES[0])[0] == 200


def test_a_new_index_takes_the_place_of_the_old_one_under_load(ray, url, index, model, tmp_path):
    with Engine.create(tmp_path / "new", model) as engine:
        engine.add([Item(f"fresh{number}", text=f"{colour} again") for number, colour in enumerate("abcdef")])
        engine.compact()
    with Load(url, threads=2) as load:
        wait(lambda: len(load.answers) > 5)
        port = int(url.rpartition(":")[2])
        assert deploy(Deployment(str(tmp_path / "new"), **PLAN), port) == url
        so_far = len(load.answers)
        wait(lambda: len(load.answers) > so_far + 10)
    known = [answer for answer in load.answers if answer[0] != 404]  # `like` names an item of the old index
    assert [answer for answer in known if answer[0] != 200] == []
    every = [{hit["id"][:5] for hit in answer["hits"]} for _, answer in known]
    ids = [found for found in every if found]  # the new index has texts only
    assert all(found == {"fresh"} or "fresh" not in found for found in ids)  # never a mix
    assert "fresh" not in ids[0] and ids[-1] == {"fresh"}


def test_it_can_be_withdrawn(ray, url, tmp_path):
    withdraw()
    assert call(url, "/healthz")[0] == 404
    with pytest.raises(IndexNotFound, match="genius index PATH --to"):
        deploy(Deployment(str(tmp_path / "nothing")), 0)
