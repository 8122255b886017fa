"""Hit rate of `want=any` beside a search for one modality, and of other methods to merge rankings.

    python benchmarks/any_modality.py --data BENCH             # benchmarks/results/any_modality.json
    python benchmarks/any_modality.py --data BENCH --gap 0.4   # items of other modalities 0.4 less similar

Every query of the val split is searched in the universal pool as the engine does it: once for each modality,
with the default instruction. A query is a hit if an item that is relevant to the same content, under any
task, is among the first five of the merged ranking. Exact search on phi.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _harness import run
from numpy.typing import NDArray

from genius.confidence import SAMPLE
from genius.data.base import LabelledQuery, open_dataset
from genius.data.instructions import default_instruction
from genius.evaluate.cache import read_items, read_queries
from genius.evaluate.embeddings import Embedder, EncodedPool
from genius.model import Model
from genius.query.merging import backgrounds, merge_rankings
from genius.types import Modality

Floats = NDArray[np.float32]
MODALITIES = tuple(Modality)
TOP = 50
AT = 5


class Candidates(NamedTuple):
    """The best items of one modality for one query."""

    rows: NDArray[np.int64]  # (TOP,) of the pool, best first
    scores: Floats  # (TOP,)
    sample: Floats  # similarities of a sample of the modality


def search(
    pool: EncodedPool, modality: Modality, phi: Floats, farther: NDArray[np.bool_], gap: float
) -> list[Candidates]:
    """The queries under the instruction for one modality; `farther` queries lose `gap` of similarity."""
    places = np.flatnonzero(pool.modality == MODALITIES.index(modality))
    spread = np.linspace(0, len(places) - 1, min(SAMPLE, len(places))).astype(np.int64)
    found = []
    for row, far in zip(phi, farther, strict=True):
        similar = pool.phi[places] @ row - np.float32(gap * far)
        best = np.argsort(-similar, kind="stable")[:TOP]
        found.append(Candidates(places[best], similar[best], similar[spread]))
    return found


def sentence_for(modality: Modality) -> Callable[[LabelledQuery], str]:
    """The default instruction for a query that wants this modality."""
    return lambda query: default_instruction(query.modality, modality)


def by_background(several: Sequence[Candidates]) -> list[Floats]:
    """What the engine does."""
    ground = backgrounds({m: one.sample for m, one in zip(MODALITIES, several, strict=True)})
    return [ground[m].standardize(one.scores) for m, one in zip(MODALITIES, several, strict=True)]


def by_deviation(several: Sequence[Candidates]) -> list[Floats]:
    """Deviations from the mean of each modality by itself."""
    return [(one.scores - one.sample.mean()) / one.sample.std() for one in several]


METHODS: dict[str, Callable[[Sequence[Candidates]], list[Floats]]] = {
    "background (genius)": by_background,
    "similarity as it is": lambda several: [one.scores for one in several],
    "deviations within each modality": by_deviation,
    "in turns": lambda several: [-np.arange(len(one.scores), dtype=np.float32) for one in several],
}


def figures(
    pool: EncodedPool, queries: Sequence[LabelledQuery], asked: Sequence[Sequence[Candidates]]
) -> dict[str, dict[str, float]]:
    """For each way, means over the rows of the benchmark."""
    place = {name: number for number, name in enumerate(pool.ids)}
    right: dict[Any, set[int]] = defaultdict(set)
    for query in queries:
        right[query.text, query.image] |= {place[name] for name in query.positives if name in place}
    hits: dict[str, dict[Any, list[tuple[bool, bool]]]] = {name: defaultdict(list) for name in METHODS}
    known: dict[Any, list[bool]] = defaultdict(list)
    for query, several in zip(queries, asked, strict=True):
        answers = right[query.text, query.image]
        kinds = {int(pool.modality[one]) for one in answers}
        best = several[MODALITIES.index(query.want)].rows[:AT].tolist()
        known[query.row].append(not answers.isdisjoint(best))
        for name, method in METHODS.items():
            which, rank = merge_rankings(method(several), AT)
            first = [int(several[w].rows[r]) for w, r in zip(which, rank, strict=True)]
            hits[name][query.row].append((not answers.isdisjoint(first), int(which[0]) in kinds))
    wanted = float(np.mean([np.mean(rows) for rows in known.values()]))
    report = {"the modality is told": {"hit@5": round(wanted, 4)}}
    for name, by_row in hits.items():
        found, first = np.mean([np.mean(rows, axis=0) for rows in by_row.values()], axis=0)
        report[name] = {
            "hit@5": round(float(found), 4),
            "share": round(float(found) / wanted, 4),
            "first of a right modality": round(float(first), 4),
        }
    return report


def main(
    data: Path, model: str = "mini", gap: float = 0.0, cache: Path = Path("runs/any-cache")
) -> dict[str, Any]:
    dataset = open_dataset("mbeir", data)
    embedder = Embedder(Model.load(model), cache)
    pool = embedder.pool(read_items(dataset.pool("val"), fuses=embedder.fuses))
    rows = [list(dataset.queries("val", row)) for row in dataset.rows("val")]
    queries = [query for row in rows for query in row]
    found = []
    for modality in MODALITIES:
        inputs = [read_queries(row, sentence_for(modality), fuses=embedder.fuses) for row in rows]
        phi = np.concatenate([embedder.queries(each).phi for each in inputs])
        farther = np.array([query.modality != modality for query in queries])
        found.append(search(pool, modality, phi, farther, gap))
    about = {"model": model, "gap": gap, "queries": len(queries), "items": len(pool)}
    return about | figures(pool, queries, list(zip(*found, strict=True)))


if __name__ == "__main__":
    run(main)
