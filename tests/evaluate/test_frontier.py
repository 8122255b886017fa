"""The frontier: pools that grow around the answers, times that can be believed, crossovers by hand."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from genius.cli import app
from genius.encode.base import Parts
from genius.errors import BadInput
from genius.evaluate.baselines.exact import Exact
from genius.evaluate.embeddings import EncodedPool, EncodedQueries
from genius.evaluate.frontier import measure_point, measure_points
from genius.evaluate.metrics import Qrels
from genius.evaluate.results import Crossover, crossovers
from genius.evaluate.scaled_pools import ScaledPools, calibrate


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def pools():
    phi = unit(np.random.default_rng(0).normal(size=(60, 16)))
    codes = np.stack([np.zeros(60), np.arange(60)], axis=1).astype(np.uint16)
    pool = EncodedPool(
        [str(n) for n in range(60)], np.zeros(60, np.uint8), phi, codes, "p", [], lambda r: Parts(r, r)
    )

    def codes_of(z, modality):
        return np.stack([modality, (z[:, 0] > 0).astype(np.int64)], axis=1).astype(np.uint16)

    return ScaledPools(pool, phi, np.array([7, 3, 7, 50]), codes_of)


def test_a_pool_grows_around_its_positives(pools):
    (small, few), (real, all_of), (large, most) = pools.at(3), pools.at(60), pools.at(40_000)
    assert [len(pool) for pool in (small, real, large)] == [3, 60, 40_000]
    assert (few, all_of, most) == (3, 60, 60)
    qrels = pools.qrels(Qrels.of([{3: 1.0}, {7: 1.0}, {50: 1.0}, {60: 1.0}]))  # the pool lacks item 60
    for pool in (small, real, large):
        assert [pool.ids[row] for row in qrels.item[:3]] == ["3", "7", "50"]
        assert len(pool.codes) == len(pool.phi) == len(pool.modality) == len(pool)
    assert qrels.item[3] > 40_000
    assert len(set(large.ids)) == 40_000
    np.testing.assert_allclose(np.linalg.norm(large.phi, axis=1), 1, rtol=1e-5)


def test_a_larger_pool_contains_a_smaller_one(pools):
    small, large = pools.at(20_000)[0], pools.at(30_000)[0]
    assert (small.phi == large.phi[:20_000]).all()
    assert (small.codes == large.codes[:20_000]).all()


def clustered(count, seed=0):
    """Items in twenty clusters on a few dimensions, and a query near each of 200 items."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=(20, 4))[rng.integers(0, 20, count)] + 0.4 * rng.normal(size=(count, 4))
    phi = unit(np.tanh(latent @ rng.normal(size=(4, 24))))
    zeros = np.zeros(count, np.uint8)
    pool = EncodedPool([str(n) for n in range(count)], zeros, phi, zeros[:, None], "p", [], None)
    asked = unit(phi[:200] + 0.1 * rng.normal(size=(200, 24)))
    queries = EncodedQueries([str(n) for n in range(200)], zeros[:200], asked, asked, zeros[:200] == 0, "q")
    return pool, queries, Qrels.of([{n: 1.0} for n in range(200)])


def test_made_items_lie_between_neighbours_of_their_modality():
    pool, _, _ = clustered(400)
    pool = replace(pool, modality=(np.arange(400) % 2).astype(np.uint8))
    codes = []

    def codes_of(z, modality):
        codes.append(z)
        return np.zeros((len(z), 1), np.uint16)

    still, near, far = (
        ScaledPools(pool, pool.phi, np.arange(3), codes_of, spread=spread).at(2000)[0].phi[400:]
        for spread in (0.0, 0.5, 2.0)
    )
    closest = [(made @ pool.phi.T).max(axis=1).mean() for made in (still, near, far)]
    assert closest[0] == pytest.approx(1, abs=1e-5)  # a spread of 0 copies
    assert closest[0] > closest[1] > closest[2]
    np.testing.assert_allclose(codes[1][: len(near)], near, atol=1e-6)  # z is moved as phi is


def test_calibration_finds_the_spread_that_falls_as_real_items_do():
    pool, queries, qrels = clustered(3000)
    found = calibrate(pool, queries, qrels)
    assert found.base == 750
    assert found.sizes[-1] == 3000
    gaps = {spread: np.abs(np.subtract(hits, found.real)).mean() for spread, hits in found.filled.items()}
    assert gaps[found.spread] == min(gaps.values())
    assert gaps[found.spread] < 0.02
    assert max(gaps.values()) > gaps[found.spread] + 0.03  # so it matters
    assert found.real[-1] < found.real[0]


def test_nothing_to_calibrate_with():
    pool, queries, qrels = clustered(200)
    assert calibrate(pool, queries, qrels) is None


def test_a_pool_too_small_for_the_positives_is_refused(pools):
    with pytest.raises(BadInput, match="cannot hold the 3 positives"):
        pools.at(2)


class Slow(Exact):
    """Exact search that takes its time: 2 ms a call and 1 ms a query."""

    def __init__(self):
        super().__init__(name="slow")

    def search(self, queries, k):
        time.sleep(0.002 + 0.001 * len(queries))
        return super().search(queries, k)


def test_times_hits_and_bytes(pools):
    pool, _ = pools.at(60)
    asked = np.arange(60)
    queries = EncodedQueries(
        [str(n) for n in asked], np.zeros(60, np.uint8), pool.phi, pool.phi, asked >= 0, "q"
    )
    qrels = Qrels.of([{n: 1.0} for n in asked])
    point = measure_point(Slow(), pool, 60, queries, qrels)
    assert point.hit_at_5 == 1.0
    assert 3 <= point.milliseconds <= point.slow_milliseconds  # a busy machine is slower, never faster
    assert 0 < point.queries_per_second < 1000
    assert point.bytes_per_item == 64
    said = []
    wanted = [(10, [Exact, Slow]), (500, [Exact])]
    points = measure_points(wanted, pools, queries, qrels, said.append)
    assert [(p.system, p.items, p.real) for p in points] == [
        ("exact", 10, 10),
        ("slow", 10, 10),
        ("exact", 500, 60),
    ]
    assert len(said) == 3


def point(system, items, milliseconds):
    return {"system": system, "items": items, "milliseconds": milliseconds}


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
    assert found["never"].line().startswith("never was slower than exact at every pool size")
    assert "100 items, the smallest pool" in found["always"].line()


def test_a_system_that_was_not_measured_is_not_compared():
    points = [point("exact", 100, 1.0), point("level", 100, 2.0)]
    assert [each.system for each in crossovers(points)] == ["level"]
    assert crossovers(points, "faiss-flat") == []


def test_a_crossover_beyond_the_sizes_is_only_expected():
    points = [point("exact", n, n / 1000) for n in (1000, 10_000)]  # 1, 10 ms: grows with the pool
    points += [point("level", n, 18.0) for n in (1000, 10_000)]
    points += [point("as steep", n, n / 10) for n in (1000, 10_000)]
    points += [point("far", n, 21.0) for n in (1000, 10_000)]  # at 2.1 times the largest size
    found = {each.system: each for each in crossovers(points)}
    assert found["level"].items is None
    assert found["level"].expected == pytest.approx(18_000)
    assert found["level"].line().endswith("; extrapolated, it is faster from about 18,000 items")
    assert found["as steep"].expected is None
    assert found["far"].expected is None


def test_faster_once_but_not_at_the_end_is_no_crossover():
    points = [point("exact", n, 1.0) for n in (10, 100)] + [point("x", 10, 0.5), point("x", 100, 2.0)]
    assert crossovers(points)[0].items is None


@pytest.fixture
def run(colours, tiny_model, tmp_path, monkeypatch):
    """Runs `genius VERB` with a tiny model; errors of the user come out as exceptions."""
    pytest.importorskip("faiss")
    model = tiny_model()
    model.quantizer.codes_of = lambda z, m: np.stack([m, (z[:, 0] > 0), (z[:, 1] > 0)], axis=1)
    monkeypatch.setattr("genius.evaluate.run.load_model", lambda name, device: model)
    monkeypatch.setenv("GENIUS_CACHE", str(tmp_path / "cache"))
    options = ["--device", "cpu", "--sizes", "16,300", "--beams", "1,8", "--queries", "8"]

    def run(verb, *more, data=colours.path):
        own = [] if data is None else ["--data", str(data), *options]
        return CliRunner().invoke(app, [verb, *own, *more], catch_exceptions=False).stdout

    return run


def test_made_items_are_calibrated_on_val(run, colours, monkeypatch):
    """val has three of the colours; what is calibrated on has as many items."""
    seen = []

    def calibrate(pool, queries, qrels):
        seen.append((len(pool), len(queries)))

    monkeypatch.setattr("genius.evaluate.frontier.calibrate", calibrate)
    run("bench", "--systems", "lookup+codes", "--format", "json")
    assert seen == [(16, 16)]  # no val: the pool itself
    for file in [*colours.path.glob("query/test/*"), *colours.path.glob("qrels/test/*")]:
        copy = Path(str(file).replace("/test/", "/val/").replace("_test", "_val"))
        copy.parent.mkdir(exist_ok=True)
        copy.write_text("".join(file.read_text().splitlines(keepends=True)[:3]))
    for file in colours.path.glob("cand_pool/local/*"):
        lines = file.read_text().splitlines(keepends=True)
        file.with_name(file.name.replace("_cand", "_val_cand")).write_text("".join(lines[:3]))
    run("bench", "--systems", "lookup+codes", "--format", "json")
    assert seen[1] == (6, 6)


def test_bench(run):
    systems = ("--systems", "lookup+codes,hnsw")
    frontier = json.loads(run("bench", *systems, "--format", "json"))
    assert [(p["system"], p["items"]) for p in frontier["points"]] == [
        (system, size) for size in (16, 300) for system in ("exact", "lookup+codes", "hnsw")
    ]
    assert {b["beam"] for b in frontier["beams"]} == {1, 8}
    assert frontier["queries"] == 16
    assert frontier["encoding_milliseconds"] > 0
    assert {c["system"] for c in frontier["crossovers"]} == {"lookup+codes", "hnsw"}
    assert frontier["points"][0]["hit_at_5"] > 0.5
    few = run("bench", "--systems", "hnsw", "--sizes", "300", "--build-limit", "200", "--format", "markdown")
    assert "| 300, 16 real | exact |" in few and "| hnsw |" not in few
    with pytest.raises(BadInput, match="--sizes 'many'"):
        run("bench", "--sizes", "many")


def test_a_saved_bench_has_the_hit_rates_of_all_queries(run, colours, tmp_path):
    evaluate = ["eval", "--data", str(colours.path), "--systems", "exact", "--device", "cpu"]
    save = ["--save", str(tmp_path / "results-universal.json")]
    CliRunner().invoke(app, [*evaluate, *save], catch_exceptions=False)
    bench = ("bench", "--systems", "exact", "--queries", "1", "--save", str(tmp_path / "frontier-cpu.json"))
    run(*bench)
    saved = json.loads((tmp_path / "frontier-cpu.json").read_text())
    assert saved["command"] and saved["queries_in_the_whole_pool"] > saved["queries"]
    results = json.loads((tmp_path / "results-universal.json").read_text())
    other = results | {"model": {"name": "another", "fingerprint": "0"}}
    (tmp_path / "results-universal.json").write_text(json.dumps(other))
    run(*bench)
    assert "queries_in_the_whole_pool" not in json.loads((tmp_path / "frontier-cpu.json").read_text())


def test_report_writes_pages_from_numbers_and_again_without_data(run, tmp_path):
    numbers, docs = tmp_path / "numbers", tmp_path / "docs"
    where = ("--numbers", str(numbers), "--to", str(docs))
    with pytest.raises(BadInput, match="give --data"):
        run("report", *where, data=None)
    run("report", *where, "--systems", "lookup+codes,pq", "--seeds", "2", "--limit", "6")
    cpu = json.loads((numbers / "frontier-cpu.json").read_text())
    elsewhere = cpu | {"machine": {"device": "NVIDIA H200", "kind": "cuda", "threads": 16}}
    (numbers / "frontier-cuda.json").write_text(json.dumps(elsewhere))
    before = (docs / "results.md").read_text()
    written = run("report", *where, data=None).splitlines()
    assert len(written) == 5  # the page, two settings, two devices
    assert "at most 6 queries of each row" in before
    assert (docs / "results.md").read_text() != before  # it knows the other device now
    for page in map(Path, written):
        links = re.findall(r"\]\(([^)]+)\)", page.read_text())
        assert links and all((page.parent / link).is_file() for link in links)
    text = (docs / "appendix" / "local.md").read_text()
    assert "pq: mean of 2 seeds, standard deviation" in text
    assert "# Hit rate, time and bytes by pool size on NVIDIA H200" in Path(written[-1]).read_text()
    assert json.loads((numbers / "results-local.json").read_text())["mean"]["pq"]["seeds"]


def test_report_reads_what_processes_of_one_thread_have_searched(run, tmp_path, monkeypatch):
    """Answers are cached by the number of threads; times are measured with all of them."""
    before, seen = torch.get_num_threads(), []
    monkeypatch.setattr("genius.evaluate.run.search_in_parallel", lambda *_: seen.append("processes"))
    for where, name in (
        ("genius.evaluate.run", "evaluate"),
        ("genius.evaluate.frontier", "measure_frontier"),
    ):
        real = getattr(import_module(where), name)

        def noted(*arguments, real=real, name=name):
            seen.append((name, torch.get_num_threads()))
            return real(*arguments)

        monkeypatch.setattr(f"{where}.{name}", noted)
    torch.set_num_threads(2)
    try:
        where = ("--numbers", str(tmp_path / "numbers"), "--to", str(tmp_path / "docs"))
        run("report", *where, "--systems", "lookup+codes", "--processes", "2", "--limit", "2")
    finally:
        torch.set_num_threads(before)
    first, second = [("evaluate", 2)] * 2, [("evaluate", 1)] * 2
    assert seen == [*first, "processes", *second, ("measure_frontier", 2)]
