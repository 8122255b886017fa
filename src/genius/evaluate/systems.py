"""What a system is to the bench: it indexes a pool, answers queries, and says what it stores per item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Row
from genius.evaluate.encoding import Pool, Questions
from genius.evaluate.metrics import NOTHING

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class Found(NamedTuple):
    """Answers to a batch of queries, best first; a short list ends in NOTHING with a score of -inf."""

    rows: Ints  # (queries, k), rows of the pool
    scores: Floats  # (queries, k)


@runtime_checkable
class System(Protocol):
    """One way to search. A new one is one file in baselines/ and one line in `genius.evaluate.catalog`."""

    @property
    def name(self) -> str:
        """What its row of a table is called."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Every value that its answers depend on, beside the model and the pool."""

    def answers(self, row: Row) -> bool:
        """Whether the system is made for this kind of row; a row it is not made for is not run."""

    def index(self, pool: Pool) -> None:
        """Make `pool` searchable, in place of any pool before."""

    def search(self, questions: Questions, k: int) -> Found:
        """The `k` best items for each query."""

    def bytes_per_item(self) -> float:
        """What the index takes per item, measured on its arrays: codes, vectors, graphs, ids."""


def empty(queries: int, k: int) -> Found:
    """Lists with nothing in them yet."""
    return Found(
        np.full((queries, k), NOTHING, dtype=np.int64), np.full((queries, k), -np.inf, dtype=np.float32)
    )


def fill(found: Found, query: int, rows: NDArray[np.integer], scores: NDArray[np.floating]) -> None:
    """Write one query's answers, best first, into `found`; what does not fit is dropped."""
    count = min(len(rows), found.rows.shape[1])
    found.rows[query, :count] = rows[:count]
    found.scores[query, :count] = scores[:count]
