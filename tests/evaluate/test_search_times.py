"""Times of searches: FAISS's in a process of their own, with the answers of the same index."""

from __future__ import annotations

import pickle
import time

import numpy as np
import pytest

from genius.evaluate import frontier, search_times
from genius.evaluate.baselines.exact import Exact
from genius.evaluate.embeddings import EncodedPool, EncodedQueries
from genius.evaluate.metrics import Qrels

pytest.importorskip("faiss", reason="FAISS is in the extra `bench`")
faiss = pytest.importorskip("genius.evaluate.baselines.faiss")
ITEMS, QUERIES, DIM = 700, 70, 32


@pytest.fixture(scope="module")
def pool() -> EncodedPool:
    phi = np.random.default_rng(0).normal(size=(ITEMS, DIM)).astype(np.float32)
    phi /= np.linalg.norm(phi, axis=1, keepdims=True)
    ids, zeros = [str(n) for n in range(ITEMS)], np.zeros(ITEMS, np.uint8)
    return EncodedPool(ids, zeros, phi, zeros[:, None].astype(np.uint16), "p", [], lambda rows: None)


@pytest.fixture(scope="module")
def queries(pool: EncodedPool) -> EncodedQueries:
    zeros, phi = np.zeros(QUERIES, np.uint8), pool.phi[:QUERIES]
    return EncodedQueries(pool.ids[:QUERIES], zeros, phi, phi, zeros == 0, "q")


SYSTEMS = {
    "flat": lambda: faiss.flat(),
    "flat, int8": lambda: faiss.flat(width="int8"),
    "hnsw": lambda: faiss.hnsw(),
    "ivf-pq": lambda: faiss.ivf_pq(),
    "ivf-pq-best": lambda: faiss.ivf_pq_best(),
    "pq": lambda: faiss.pq(score="cosine"),
    "faiss-rq": lambda: faiss.faiss_rq(levels=4, bits=4, score="cosine"),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_an_index_that_went_to_another_process_gives_the_same_answers(name, pool, queries) -> None:
    system = SYSTEMS[name]()
    system.index(pool)
    copy = pickle.loads(pickle.dumps(system))
    np.testing.assert_array_equal(copy.search(queries, 10).rows, system.search(queries, 10).rows)
    assert copy.bytes_per_item() == system.bytes_per_item() and copy.settings == system.settings


def test_searches_are_timed_in_a_new_process(pool, queries) -> None:
    system = faiss.hnsw()
    system.index(pool)
    apart, here = (
        measure(system, queries, 10)
        for measure in (search_times.search_times_apart, search_times.search_times)
    )
    np.testing.assert_array_equal(apart.rows, here.rows)
    assert apart.rows.shape == (QUERIES, 10) and len(apart.singles) == search_times.SINGLES
    assert apart.seconds > 0 and (apart.singles > 0).all()


def test_faiss_is_timed_apart_and_torch_is_not(pool, queries, monkeypatch) -> None:
    apart = []

    def noted(system, *rest):
        apart.append(system.name)
        return search_times.search_times(system, *rest)

    monkeypatch.setattr(frontier, "search_times_apart", noted)
    qrels = Qrels.of([{n: 1.0} for n in range(QUERIES)])
    points = [frontier.measure_point(s, pool, ITEMS, queries, qrels) for s in (Exact("cpu"), faiss.flat())]
    assert apart == [points[1].system] == ["faiss-flat"]
    assert points[0].hit_at_5 == points[1].hit_at_5 == 1.0


def test_an_error_of_the_new_process_is_an_error_here(pool, queries) -> None:
    system = faiss.flat()
    system.index(pool)
    system.built = faiss.load_faiss().IndexFlatIP(DIM + 1)  # another width than the queries have
    with pytest.raises(AssertionError):
        search_times.search_times_apart(system, queries, 10)


def test_on_one_thread_of_a_cpu_time_is_the_processor_s(pool, queries, monkeypatch) -> None:
    """So other work on the machine makes no search longer, and no system slower than another."""

    class Waiting(Exact):
        def search(self, queries, k):
            time.sleep(0.005)
            return super().search(queries, k)

    system = Waiting("cpu")
    system.index(pool)
    by_clock, by_processor = (
        float(np.median(search_times.search_times(system, queries, 10, clock).singles))
        for clock in (time.perf_counter, time.process_time)
    )
    assert by_processor < 5 <= by_clock
    for threads, clock in ((1, time.process_time), (2, time.perf_counter)):
        monkeypatch.setattr("torch.get_num_threads", lambda threads=threads: threads)
        assert frontier.clock_for("cpu") is clock
        assert frontier.clock_for("cuda") is time.perf_counter
