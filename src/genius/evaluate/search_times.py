"""How long the searches of an indexed system take, in this process or in one of its own.

FAISS and torch bring a pool of threads each, and each slows the other down: what is not searched by torch is
timed in a new process, where torch computes nothing. `clock` says what time is: on one thread that of the
processor, which other work on the machine does not lengthen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.evaluate.embeddings import EncodedQueries
from genius.evaluate.systems import System

BATCH = 64
SINGLES = 50  # queries searched one by one
Clock = Callable[[], float]  # time.perf_counter or time.process_time
WARMUP = 3  # searches before the clock starts


class SearchTimes(NamedTuple):
    """What was found, and when."""

    rows: NDArray[np.int64]  # (queries, k)
    seconds: float  # all queries, in batches
    singles: NDArray[np.float64]  # milliseconds of queries one by one


def search_times(
    system: System, queries: EncodedQueries, k: int, clock: Clock = time.perf_counter
) -> SearchTimes:
    """Search all queries in batches, then some of them one by one."""
    starts = range(0, len(queries), BATCH)
    batches = [queries.take(np.arange(s, min(s + BATCH, len(queries)))) for s in starts]
    system.search(batches[0], k)
    begun = clock()
    rows = np.concatenate([system.search(batch, k).rows for batch in batches])
    seconds = clock() - begun
    return SearchTimes(rows, seconds, _singles(system, queries, k, clock))


def search_times_apart(
    system: System, queries: EncodedQueries, k: int, clock: Clock = time.perf_counter
) -> SearchTimes:
    """The same in a new process, to which the indexed system is sent."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(search_times, system, queries, k, clock).result()


def _singles(system: System, queries: EncodedQueries, k: int, clock: Clock) -> NDArray[np.float64]:
    times = []
    spread = np.linspace(0, len(queries) - 1, min(SINGLES, len(queries))).astype(np.int64)
    for number, row in enumerate([*spread[:WARMUP], *spread]):
        one = queries.take(np.array([row]))
        start = clock()
        system.search(one, k)
        if number >= WARMUP:
            times.append(1000 * (clock() - start))
    return np.array(times)
