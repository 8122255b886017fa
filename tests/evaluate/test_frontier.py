"""The frontier: pools that grow around the answers, times that can be believed, crossovers by hand."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from genius.cli.bench import bench
from genius.encode.base import Parts
from genius.errors import BadInput
from genius.evaluate.baselines.exact import Exact
from genius.evaluate.encoding import Pool, Questions
from genius.evaluate.frontier import Crossover, Point, as_json, crossovers, measure_frontier, measure_point
from genius.evaluate.grown import Growth
from genius.evaluate.metrics import Judgements
from genius.evaluate.tables import frontier_table


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def growth():
    phi = unit(np.random.default_rng(0).normal(size=(60, 16)))
    codes = np.stack([np.zeros(60), np.arange(60)], axis=1).astype(np.uint16)
    pool = Pool(
        [str(n) for n in range(60)], np.zeros(60, np.uint8), phi, codes, "p", [], lambda r: Parts(r, r)
    )

    def codes_of(z, modality):
        return np.stack([modality, (z[:, 0] > 0).astype(np.int64)], axis=1).astype(np.uint16)

    return Growth(pool, phi, np.array([7, 3, 7, 50]), codes_of)


def test_a_pool_grows_around_its_answers(growth):
    places = growth.place_of(np.array([3, 7, 50]))
    small, real, large = growth.at(3), growth.at(60), growth.at(40_000)
    assert [len(g.pool) for g in (small, real, large)] == [3, 60, 40_000]
    assert [g.real for g in (small, real, large)] == [3, 60, 60]
    for grown in (small, real, large):
        assert [grown.pool.ids[place] for place in places] == ["3", "7", "50"]
        assert len(grown.pool.codes) == len(grown.pool.phi) == len(grown.pool.modality) == len(grown.pool)
    assert len(set(large.pool.ids)) == 40_000
    np.testing.assert_allclose(np.linalg.norm(large.pool.phi, axis=1), 1, rtol=1e-5)


def test_a_larger_pool_contains_a_smaller_one(growth):
    small, large = growth.at(20_000).pool, growth.at(30_000).pool
    assert (small.phi == large.phi[:20_000]).all()
    assert (small.codes == large.codes[:20_000]).all()


def test_a_pool_too_small_for_the_answers_is_refused(growth):
    with pytest.raises(BadInput, match="cannot hold the 3 answers"):
        growth.at(2)


class Slow(Exact):
    """Exact search that takes its time: 2 ms a call and 1 ms a query."""

    def __init__(self):
        super().__init__(name="slow")

    def search(self, questions, k):
        time.sleep(0.002 + 0.001 * len(questions))
        return super().search(questions, k)


def test_times_hits_and_bytes(growth):
    pool = growth.at(60).pool
    asked = np.arange(60)
    questions = Questions(
        [str(n) for n in asked], np.zeros(60, np.uint8), pool.phi, pool.phi, asked >= 0, "q"
    )
    judged = Judgements.of([{n: 1.0} for n in asked])
    point = measure_point(Slow(), pool, 60, questions, judged)
    assert point.hit_at_5 == 1.0
    assert 3 <= point.milliseconds <= point.slow_milliseconds  # a busy machine is slower, never faster
    assert 0 < point.queries_per_second < 1000
    assert point.bytes_per_item == 64
    said = []
    wanted = [(10, [Exact, Slow]), (500, [Exact])]
    points = measure_frontier(wanted, growth, questions, judged, said.append)
    assert [(p.system, p.items, p.real) for p in points] == [
        ("exact", 10, 10),
        ("slow", 10, 10),
        ("exact", 500, 60),
    ]
    assert len(said) == 3


def point(system, items, milliseconds):
    return Point(system, items, items, 1.0, 0.0, 1.0, milliseconds, milliseconds, 1.0)


def test_crossovers_by_hand():
    points = [point("exact", n, n / 1000) for n in (100, 1000, 10_000)]  # 0.1, 1, 10 ms
    points += [point("flat", n, 1.0) for n in (100, 1000, 10_000)]
    points += [point("level", n, 10**0.5) for n in (100, 1000, 10_000)]
    points += [point("never", n, 20.0) for n in (100, 1000, 10_000)]
    points += [point("always", n, 0.01) for n in (100, 1000, 10_000)]
    found = {each.system: each for each in crossovers(points)}
    assert found["flat"].items == pytest.approx(1000)
    assert found["level"].items == pytest.approx(10**3.5)
    assert found["never"].items is None
    assert found["always"] == Crossover("always", "exact", 100, from_start=True)
    assert "overtakes exact at about 3,200 items" in found["level"].line()
    assert "at no measured size" in found["never"].line()
    assert "100 items, the smallest pool" in found["always"].line()


def test_nothing_is_said_of_a_system_that_was_not_measured():
    points = [point("exact", 100, 1.0), point("level", 100, 2.0)]
    assert [each.system for each in crossovers(points)] == ["level"]
    assert crossovers(points, "faiss-flat") == []
    frontier = as_json(
        points, [], machine={"device": "NVIDIA H200", "kind": "cuda", "threads": 16}, data="bench",
        model={"name": "mini", "fingerprint": "f"}, queries=1, encoding_milliseconds=1.0,
    )  # fmt: skip
    assert not any("FAISS" in note for note in frontier_table(frontier).notes)
    frontier["points"].append({**frontier["points"][0], "system": "hnsw"})
    assert any("FAISS ran on the CPU" in note for note in frontier_table(frontier).notes)


def test_a_crossover_beyond_the_sizes_is_only_expected():
    points = [point("exact", n, n / 1000) for n in (1000, 10_000)]  # 1, 10 ms: grows with the pool
    points += [point("level", n, 100.0) for n in (1000, 10_000)]
    points += [point("as steep", n, n / 10) for n in (1000, 10_000)]
    points += [point("far", n, 1e5) for n in (1000, 10_000)]
    found = {each.system: each for each in crossovers(points)}
    assert found["level"].items is None
    assert found["level"].expected == pytest.approx(100_000)
    assert "at no measured size faster" in found["level"].line()
    assert "if times go on as they grew last, from about 100,000 items" in found["level"].line()
    assert found["as steep"].expected is None
    assert found["far"].expected is None


def test_faster_once_but_not_at_the_end_is_no_crossover():
    points = [point("exact", n, 1.0) for n in (10, 100)] + [point("x", 10, 0.5), point("x", 100, 2.0)]
    assert crossovers(points)[0].items is None


def test_the_command(colours, tiny_model, tmp_path, monkeypatch):
    model = tiny_model()
    model.quantizer.codes_of = lambda z, m: np.stack([m, (z[:, 0] > 0), (z[:, 1] > 0)], axis=1)
    monkeypatch.setattr("genius.evaluate.measure.load_model", lambda name, device: model)
    monkeypatch.setenv("GENIUS_CACHE", str(tmp_path))
    import typer

    app = typer.Typer()
    app.command()(bench)
    options = ["--data", str(colours.path), "--device", "cpu", "--systems", "lookup+codes,hnsw"]
    options += ["--sizes", "16,300", "--beams", "1,8", "--queries", "8"]
    pytest.importorskip("faiss")
    out = CliRunner().invoke(app, [*options, "--format", "json"], catch_exceptions=False)
    frontier = json.loads(out.stdout)
    assert [(p["system"], p["items"]) for p in frontier["points"]] == [
        (system, size) for size in (16, 300) for system in ("exact", "lookup+codes", "hnsw")
    ]
    assert {b["beam"] for b in frontier["beams"]} == {1, 8}
    assert frontier["queries"] == 16
    assert frontier["encoding_milliseconds"] > 0
    assert {c["system"] for c in frontier["crossovers"]} == {"lookup+codes", "hnsw"}
    assert frontier["points"][0]["hit_at_5"] > 0.5
    few = CliRunner().invoke(
        app, [*options, "--build-limit", "200", "--format", "json"], catch_exceptions=False
    )
    largest = [p["system"] for p in json.loads(few.stdout)["points"] if p["items"] == 300]
    assert largest == ["exact", "lookup+codes"]
    table = CliRunner().invoke(app, [*options, "--format", "markdown"], catch_exceptions=False).stdout
    assert "| 300, 16 real | exact |" in table
    monkeypatch.setattr(
        "sys.argv", ["genius", "bench", "--data", "/secret/place", "--cache", "/x", "--write"]
    )
    file, numbers = tmp_path / "docs" / "results.md", tmp_path / "numbers"
    numbers.mkdir()
    elsewhere = frontier | {"machine": {"device": "NVIDIA H200", "kind": "cuda", "threads": 16}}
    (numbers / "frontier-cuda.json").write_text(json.dumps(elsewhere))
    written = [*options, "--write", str(file), "--numbers", str(numbers), "--systems", "lookup+codes,pq"]
    CliRunner().invoke(app, [*written, "--seeds", "2", "--limit", "6"], catch_exceptions=False)
    text = file.read_text()
    assert "genius bench --data BENCH --write" in text
    assert "/secret" not in text
    assert "## Local pool" in text
    assert "## Frontier: accuracy, time and bytes on NVIDIA H200" in text
    assert "at most 6 queries of each row" in text
    assert "pq: mean of 2 seeds, standard deviation" in text
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == 14  # five pictures of each device, four files of numbers
    assert all((file.parent / link).is_file() for link in links)
    assert json.loads((numbers / "results-local.json").read_text())["mean"]["pq"]["seeds"]
    with pytest.raises(BadInput, match="--sizes 'many'"):
        CliRunner().invoke(app, [*options, "--sizes", "many"], catch_exceptions=False)
