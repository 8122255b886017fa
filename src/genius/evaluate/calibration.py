"""Fits a model's confidence on labelled queries: how often an answer of its similarity is right.

Every query asks for the modality it wants, with the engine's own instruction, in the pool of all items. Its
first ten answers are observations: an item is right if any task of the data calls it relevant to that query.
An item that shows the query's own image is left out, as the item that asks is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.confidence import SAMPLE, Calibration, ConfidenceWeights, Kind, background_gaps, sigmoid
from genius.data.base import Dataset, LabelledQuery
from genius.data.instructions import engine_instruction
from genius.errors import BadData
from genius.evaluate.cache import read_items, read_queries
from genius.evaluate.embeddings import Embedder, EncodedPool, EncodedQueries
from genius.model import Model
from genius.search.codebooks import Codebooks
from genius.types import Modality

Floats = NDArray[np.float32]
Similarity = Callable[[EncodedPool, EncodedQueries, int, NDArray[Any]], Floats]
MODALITIES = tuple(Modality)
FIRST = 10  # answers of a query that are looked at
FEWEST = 20  # right answers that a kind of query needs for weights of its own
RIDGE = 1e-3
STEPS = 50


@dataclass(frozen=True, slots=True)
class Observations:
    """Answers of one kind of query: similarity, gap to the background, whether it is right, its query."""

    kind: Kind
    similar: Floats  # (n,)
    gap: Floats  # (n,)
    right: NDArray[np.bool_]  # (n,)
    query: NDArray[np.int64]  # (n,)
    rank: NDArray[np.int64]  # (n,) from 0

    def take(self, rows: NDArray[np.bool_]) -> Observations:
        """Some of them."""
        return Observations(
            self.kind, self.similar[rows], self.gap[rows], self.right[rows], self.query[rows], self.rank[rows]
        )


def observe(dataset: Dataset, model: Model, embedder: Embedder, split: str) -> dict[str, list[Observations]]:
    """What queries of the split find, by kind: by embeddings (`vectors`) and by codes alone (`codes`)."""
    pool = embedder.pool(read_items(dataset.pool(split), fuses=embedder.fuses))
    place = {name: number for number, name in enumerate(pool.ids)}
    shown: dict[Any, set[int]] = defaultdict(set)  # by image
    for item in dataset.pool(split):
        if item.image is not None and item.id in place:
            shown[item.image].add(place[item.id])
    rows = [list(dataset.queries(split, row)) for row in dataset.rows(split)]
    relevant: dict[Any, set[int]] = defaultdict(set)
    for query in (query for row in rows for query in row):
        relevant[query.text, query.image] |= {place[name] for name in query.positives if name in place}
    codebooks = Codebooks(model.codebooks())
    ways: dict[str, Similarity] = {
        "vectors": lambda pool, queries, row, items: np.asarray(pool.phi[items] @ queries.phi[row]),
        "codes": lambda pool, queries, row, items: codebooks.cosine(queries.z[row], pool.codes[items]),
    }
    found: dict[str, list[Observations]] = {name: [] for name in ways}
    first = 0
    for row in rows:
        if not row:
            continue
        queries = embedder.queries(read_queries(row, _sentence, fuses=embedder.fuses))
        for name, similarity in ways.items():
            found[name].append(_observe_row(pool, row, queries, relevant, shown, similarity, first))
        first += len(row)
    return {name: _by_kind(several) for name, several in found.items()}


def _observe_row(
    pool: EncodedPool,
    row: Sequence[LabelledQuery],
    queries: EncodedQueries,
    relevant: dict[Any, set[int]],
    shown: dict[Any, set[int]],
    similarity: Similarity,
    first: int,
) -> Observations:
    want = row[0].want
    items = np.flatnonzero(pool.modality == MODALITIES.index(want))
    spread = np.linspace(0, len(items) - 1, min(SAMPLE, len(items))).astype(np.int64)
    parts = []
    for number, query in enumerate(row):
        if not queries.valid[number] or not len(items):
            continue
        similar = similarity(pool, queries, number, items)
        answers = relevant[query.text, query.image]
        asks = shown.get(query.image, set()) - answers
        order = np.argsort(-similar, kind="stable")[: FIRST + len(asks)]
        best = order[[int(item) not in asks for item in items[order]]][:FIRST]
        labels = [int(item) in answers for item in items[best]]
        gaps = background_gaps(similar[best], similar[spread])
        parts.append((similar[best], gaps, labels, np.full(len(best), first + number), np.arange(len(best))))
    columns: list[NDArray[Any]] = [np.zeros(0)] * 5
    if parts:
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    similar, gap, right, query_numbers, rank = columns
    return Observations((row[0].modality, want), similar, gap, right.astype(bool), query_numbers, rank)


def fit_calibration(observed: Iterable[Observations]) -> Calibration:
    """The weights of each kind that has enough right answers, and those of all together."""
    several = list(observed)
    if not any(one.right.any() for one in several):
        raise BadData("no query found a right item: is this the data that the model was made for?")
    kinds = {
        one.kind: fit_weights(one.similar, one.gap, one.right)
        for one in several
        if one.right.sum() >= FEWEST and not one.right.all()
    }
    names = ("similar", "gap", "right")
    columns = [np.concatenate([getattr(one, name) for one in several]) for name in names]
    return Calibration(kinds, fit_weights(*columns))


def fit_weights(similar: Floats, gap: Floats, right: NDArray[np.bool_]) -> ConfidenceWeights:
    """Logistic regression with weights of similarity and gap that are not negative."""
    both = np.stack([similar, gap], axis=1).astype(np.float64)
    for columns in ([0, 1], [0], [1]):
        bias, *slopes = _logistic(both[:, columns], right)
        if min(slopes) >= 0:
            weights = np.zeros(2)
            weights[columns] = slopes
            return ConfidenceWeights(bias, float(weights[0]), float(weights[1]))
    return ConfidenceWeights(_logistic(both[:, :0], right)[0], 0.0, 0.0)


def _logistic(features: NDArray[np.float64], right: NDArray[np.bool_]) -> list[float]:
    """Bias and slopes by Newton's method; features are standardized first."""
    mean, deviation = features.mean(0), np.maximum(features.std(0), 1e-9)
    inputs = np.c_[np.ones(len(features)), (features - mean) / deviation]
    weights = np.zeros(inputs.shape[1])
    for _ in range(STEPS):
        chance = sigmoid(inputs @ weights)
        gradient = inputs.T @ (right - chance) - RIDGE * weights
        curvature = (inputs * (chance * (1 - chance))[:, None]).T @ inputs + RIDGE * np.eye(len(weights))
        step = np.linalg.solve(curvature, gradient)
        weights += step
        if np.abs(step).max() < 1e-9:
            break
    slopes = weights[1:] / deviation
    return [float(weights[0] - slopes @ mean), *map(float, slopes)]


def _by_kind(rows: Iterable[Observations]) -> list[Observations]:
    """The observations of all rows of the data, by kind."""
    kinds: dict[Kind, list[Observations]] = defaultdict(list)
    for one in rows:
        kinds[one.kind].append(one)
    return [
        Observations(
            kind,
            *(
                np.concatenate([getattr(one, name) for one in own])
                for name in ("similar", "gap", "right", "query", "rank")
            ),
        )
        for kind, own in kinds.items()
    ]


def _sentence(query: LabelledQuery) -> str:
    return engine_instruction(query.modality, query.want)
