"""The front's side of a cluster, with replicas that die at the worst moment; no Ray is started."""
# ruff: noqa: E402

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="a cluster needs the extra `cluster`")

from genius.cluster.session import ray_module

ray_module("ray.serve")  # its imports warn

from ray.exceptions import RayActorError

from genius import Item, Query
from genius.cluster import replica
from genius.cluster.replica import ReplicaBackend
from genius.cluster.vectors import ShardedEngine, ShardedVectors, VectorShard
from genius.engine import Engine
from genius.ingest.result import AddResult
from genius.query.result import SearchResult
from genius.serve.batching import Busy
from genius.serve.engine_backend import EngineBackend
from genius.serve.limits import Limits
from genius.serve.metrics import Metrics
from genius.serve.schemas import ListResponse, NewItem, SearchRequest


class Replicas:
    """A stored set of items; the next change is carried out or not, and then its replica dies."""

    def __init__(self, stored: dict[str, str], dies: str = "") -> None:
        self.stored, self.dies = stored, dies
        self.answers: Callable[[], Awaitable[Any]] | None = None
        self.answer = SimpleNamespace(remote=self._answer)

    async def _answer(self, what: str, *arguments: Any) -> Any:
        if self.answers is not None:
            return await self.answers()
        if what == "status":
            return "ready"
        if what == "versions":
            return {id: self.stored[id] for id in arguments[0] if id in self.stored}
        dies, self.dies = self.dies, ""
        if dies == "before":
            raise RayActorError
        outcome = getattr(self, what)(*arguments)
        if dies == "after":
            raise RayActorError
        return outcome

    def remove(self, id: str) -> int:
        return int(self.stored.pop(id, None) is not None)

    def add(self, items: list[NewItem]) -> AddResult:
        result = AddResult()
        for item in items:
            known = self.stored.get(item.id)
            self.stored[item.id] = str(item.text)
            if known is None:
                result.added += 1
            elif known == item.text:
                result.unchanged += 1
            else:
                result.updated += 1
        return result


def backend_of(replicas: Replicas, **limits: Any) -> ReplicaBackend:
    return ReplicaBackend(replicas, Limits(**limits), Metrics())


@pytest.mark.parametrize("dies", ["", "before", "after"])
@pytest.mark.parametrize(("id", "removed"), [("there", 1), ("never", 0)])
def test_a_removal_is_counted_once(dies: str, id: str, removed: int) -> None:
    """Fault 51, on a cluster."""
    replicas = Replicas({"there": "1", "other": "2"}, dies)
    assert asyncio.run(backend_of(replicas).remove(id)) == removed
    assert id not in replicas.stored


@pytest.mark.parametrize("dies", ["", "before", "after"])
def test_items_are_counted_once(dies: str) -> None:
    replicas = Replicas({"same": "a", "changed": "b"}, dies)
    items = [NewItem(id=id, text=text) for id, text in (("same", "a"), ("changed", "c"), ("new", "d"))]
    added = asyncio.run(backend_of(replicas).add(items))
    assert (added.added, added.updated, added.unchanged) == (1, 1, 1)


def test_the_status_follows_the_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 47: whatever they answer or raise, and when they do not answer at all."""
    monkeypatch.setattr(replica, "PING_S", 0.1)
    monkeypatch.setattr(replica, "SILENCE_S", 0.3)
    replicas = Replicas({})
    backend = backend_of(replicas)

    async def until(status: str) -> None:
        async with asyncio.timeout(5):
            while backend.status != status:
                await asyncio.sleep(0.01)

    async def strange() -> Any:
        raise ValueError("nobody expects this")

    async def never() -> Any:
        await asyncio.sleep(60)

    async def dead() -> Any:
        raise RayActorError

    async def stuck() -> Any:
        return "stuck"

    async def story() -> None:
        replicas.answers = strange
        assert backend.status == "loading"
        await backend.start(lambda: None)
        await asyncio.sleep(0.3)
        for trouble in (strange, never, dead, stuck):
            replicas.answers = None
            await until("ready")
            replicas.answers = trouble
            await until("loading")
        await backend.stop()
        assert backend.status == "stopping"

    asyncio.run(story())


def test_when_no_replica_answers_the_request_ends_in_time() -> None:
    replicas = Replicas({})

    async def never() -> Any:
        await asyncio.sleep(60)

    replicas.answers = never
    with pytest.raises(Busy, match="no replica answers"):
        asyncio.run(backend_of(replicas, search_s=0.2).stats())


def test_a_shard_that_does_not_answer_is_left_alone_for_a_while() -> None:
    """Its rows are read from the file; the next searches do not wait for it again."""
    rows = np.arange(40, dtype=np.float16).reshape(10, 4)
    asked: list[int] = []

    def shard(number: int, *, dead: bool) -> Any:
        def remote(_: int, places: Any) -> Any:
            asked.append(number)

            def result(timeout_s: float) -> Any:
                if dead:
                    raise TimeoutError
                return rows[places]

            return SimpleNamespace(result=result)

        return SimpleNamespace(rows=SimpleNamespace(remote=remote))

    own: Any = _Own(rows)
    sharded = ShardedVectors(own, 1, [shard(0, dead=True), shard(1, dead=False)])
    for _ in range(3):
        assert np.array_equal(sharded[np.array([7, 1, 4, 9])], rows[[7, 1, 4, 9]])
    assert asked == [0, 1, 1, 1]


def test_a_fitted_index_with_its_vectors_in_shards_answers_as_it_does_alone(tmp_path: Path) -> None:
    points = np.random.default_rng(0).standard_normal((1200, 16)).astype(np.float32)
    asked = [Query(vector=point + 0.1) for point in points[:20]]
    with Engine.create(tmp_path / "index", encoder="vectors", dim=16) as engine:
        engine.add(Item(f"i{n}", vector=point) for n, point in enumerate(points))
        assert engine.fit().number
        engine.compact()
        alone = engine.search_batch(asked, k=10)
    read: list[int] = []

    def shard(number: int) -> Any:
        own = VectorShard(str(tmp_path / "index"), number, 2)

        def remote(generation: int, places: Any) -> Any:
            read.append(number)
            return SimpleNamespace(result=lambda timeout_s: own.rows(generation, places))

        return SimpleNamespace(rows=SimpleNamespace(remote=remote))

    with ShardedEngine.open(tmp_path / "index") as sharded:
        sharded.shards = [shard(0), shard(1)]
        assert sharded.search_batch(asked, k=10) == alone
    assert set(read) == {0, 1}


class _Own:
    """An array that is read, not mapped."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.shape = rows, rows.shape

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, places: Any) -> Any:
        return self.rows[places]


def test_filtered_searches_and_lists_pass_through_the_front(fake: ModuleType, tmp_path: Path) -> None:
    """The front pickles what is asked and what is answered, as Ray does; the answers are the engine's."""
    with Engine.create(tmp_path / "index", fake.FakeModel()) as engine:
        engine.add(Item(f"i{n}", text=f"red {n}", meta={"price": n, "even": n % 2 == 0}) for n in range(20))
        asked = {"text": "red", "where": "price >= 5 and even", "limit": 3, "offset": 1, "facets": ["even"]}
        own, listed = asyncio.run(_through_the_front(engine, SearchRequest(**asked)))
        (expected,) = engine.results(["red"], 3, where=asked["where"], offset=1, facets=["even"])
        assert [(hit.id, hit.rank) for hit in own.hits] == [(hit.id, hit.rank) for hit in expected.hits]
        assert (own.pool, own.facets, own.cursor) == (expected.pool, expected.facets, expected.cursor)
        assert own.pool == 7 and own.cursor is not None
        assert [item.id for item in listed.items] == ["i6", "i8"] and listed.total == 7
        assert listed.facets["even"][0].count == 7 and listed.cursor is not None


async def _through_the_front(engine: Engine, ask: SearchRequest) -> tuple[SearchResult, ListResponse]:
    behind = EngineBackend(engine, Limits(search_s=60.0), Metrics())

    async def answer(what: str, *arguments: Any) -> Any:
        assert what in replica.READS
        sent = pickle.loads(pickle.dumps(arguments))
        return pickle.loads(pickle.dumps(await getattr(behind, what)(*sent)))

    await behind.start(lambda: None)
    await behind.started()
    front = ReplicaBackend(
        SimpleNamespace(answer=SimpleNamespace(remote=answer)), Limits(search_s=60.0), Metrics()
    )
    try:
        result, _ = await front.search(ask)
        return result, await front.browse("price >= 5 and even", 2, 0, None, ["even"])
    finally:
        await behind.stop()
